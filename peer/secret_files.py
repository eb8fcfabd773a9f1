"""Files and folders that nobody else on the machine may read."""

from __future__ import annotations

from pathlib import Path

from dht.ground.errors import writing
from dht.ground.regular_files import write_whole


def write_secret(path: Path, content: str | bytes, advice: str = "choose another place for it") -> None:
    """Write a file of mode 0600, from its first byte on; it appears whole or not at all.

    Args:
        advice: what to do if that fails.

    Raises:
        LocalFault: the folder cannot be written.
    """
    with writing(path, advice):
        write_whole(path, content.encode() if isinstance(content, str) else content)


def make_secret_folder(folder: Path, advice: str) -> None:
    """Make a folder of mode 0700, unless it is there; `advice` as above.

    Raises:
        LocalFault: it cannot be made.
    """
    with writing(folder, advice):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
