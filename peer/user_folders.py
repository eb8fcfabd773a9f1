"""Where this software keeps what belongs to one user of the machine, and the paths that they write."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dht.ground.errors import UsageFault

DATA_DIR_NAME = "murmuration"
OWNER_KEY_NAME = "owner.key"
RUN_RECORD_NAME = "run.record"
"""The signed manifest in a peer's data folder: made by `peer init`, or kept from the swarm."""
PASS_NAME = "membership.pass"
"""What lets this peer into a private run."""
"""In the folder of a run that was made here."""


def user_data_dir_here() -> Path:
    """The folder of this machine's user; see `user_data_dir`.

    Raises:
        UsageFault: this user has no home folder, and nothing says where else.
    """
    try:
        return user_data_dir(os.environ, sys.platform, Path.home())
    except RuntimeError as error:
        if os.environ.get("XDG_DATA_HOME", "").startswith("/"):
            return Path(os.environ["XDG_DATA_HOME"]) / DATA_DIR_NAME
        raise UsageFault(
            f"user {os.getuid()} has no home folder: HOME is not set, and the system does not know that user; expected "
            "a folder for this peer's files; give --data-dir, or set HOME or XDG_DATA_HOME"
        ) from error


def expanded(path: str | Path) -> Path:
    """The path with the home folder in place of ``~``.

    Raises:
        UsageFault: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageFault(f"{str(path)!r} begins with the home folder of nobody; give the whole path") from error


def paths_in(text: str) -> list[Path]:
    """The paths of ``PATH[,PATH...]``; a comma that belongs to the name of something that exists separates nothing.

    Raises:
        UsageFault: there is no home folder for a ``~``.
    """
    parts, paths = text.split(","), []
    while parts:
        whole = (end for end in range(len(parts), 1, -1) if _exists(expanded(",".join(parts[:end]))))
        num_parts = next(whole, 1)
        paths.append(expanded(",".join(parts[:num_parts])))
        del parts[:num_parts]
    return paths


def _exists(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return path.exists()
    return False


def place_of(folder: Path) -> Path:
    """The folder itself, or the nearest one above that is there."""
    return next((one for one in (folder.absolute(), *folder.absolute().parents) if _exists(one)), folder)


def folder_fault(folder: Path) -> str:
    """Why nothing can be written into a folder, or it cannot be made; empty: it can, as far as its rights say."""
    place = place_of(folder)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return ""
    return f"{place} cannot be written" if place.is_dir() else f"{place} is not a folder"


def check_out(folder: Path) -> None:
    """Before any work: may its result go there?

    Raises:
        UsageFault: the folder of `--out` cannot be made or written.
    """
    if fault := folder_fault(folder):
        raise UsageFault(f"--out {folder}: {fault}; expected a folder of your own; choose another --out")


def contributor_key_path() -> Path:
    """Where a person's contributor key is kept unless they say otherwise."""
    return user_data_dir_here() / "contributor.key"


def user_data_dir(environ: Mapping[str, str], platform: str, home: Path) -> Path:
    """The folder in which this software keeps what belongs to one user of the machine.

    Args:
        environ: XDG_DATA_HOME (XDG Base Directory Specification) is looked up in it.
        platform: as `sys.platform`.
        home: the user's home folder.
    """
    if platform == "darwin":
        return home / "Library" / "Application Support" / DATA_DIR_NAME
    configured = environ.get("XDG_DATA_HOME", "")
    # The specification: relative values are to be ignored.
    return (Path(configured) if configured.startswith("/") else home / ".local" / "share") / DATA_DIR_NAME
