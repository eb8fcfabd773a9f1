"""Files and folders that no other user of the machine may read."""

from __future__ import annotations

from pathlib import Path

from dht.ground.errors import writing
from dht.ground.regular_files import write_whole


def write_secret(path: Path, content: str | bytes, advice: str = "choose another place for it") -> None:
    """Write a file with mode 0600 from the first byte on, completely or not at all.

    Args:
        advice: advice for the user if writing fails.

    Raises:
        LocalFault: the folder cannot be written.
    """
    with writing(path, advice):
        write_whole(path, content.encode() if isinstance(content, str) else content)


def make_secret_folder(folder: Path, advice: str) -> None:
    """Create a folder with mode 0700 if it is missing; `advice` as for `write_secret`.

    Raises:
        LocalFault: the folder cannot be created.
    """
    with writing(folder, advice):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
