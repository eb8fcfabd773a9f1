"""Files that nobody else on the machine may read."""

from __future__ import annotations

from pathlib import Path

from dht.errors import unwritable
from dht.regular_files import write_whole


def write_secret(path: Path, content: str | bytes) -> None:
    """Write a file of mode 0600, from its first byte on; it appears whole or not at all.

    Raises:
        LocalFault: the folder cannot be written.
    """
    try:
        write_whole(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise unwritable(path, error) from error
