"""Files that nobody else on the machine may read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from dht.errors import LocalFault


def write_secret(path: Path, content: str | bytes) -> None:
    """Write a file of mode 0600, from its first byte on; it appears whole or not at all.

    Raises:
        LocalFault: the folder cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise LocalFault(
            f"{path} cannot be written: {error.strerror}; expected a writable folder with free space; choose another"
        ) from error
