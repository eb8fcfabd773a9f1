"""The folders of one user of the machine, and paths as users write them."""

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
"""The signed manifest in a peer's data folder, from `peer init` or from the swarm."""
PASS_NAME = "membership.pass"
"""The file that admits this peer to a private run."""


def user_data_dir_here() -> Path:
    """Return the folder of this user; see `user_data_dir`.

    Raises:
        UsageFault: this user has no home folder, and no variable specifies another folder.
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
    """Return the path with the home folder instead of ``~``.

    Raises:
        UsageFault: the home folder does not exist.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageFault(
            f"{str(path)!r} begins with the home folder of an unknown user; give the complete path"
        ) from error


def paths_in(text: str) -> list[Path]:
    """Return the paths in ``PATH[,PATH...]``; a comma in the name of an existing file is not a separator.

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
    """Return the folder itself, or its nearest existing parent."""
    return next((one for one in (folder.absolute(), *folder.absolute().parents) if _exists(one)), folder)


def folder_fault(folder: Path) -> str:
    """Return why a folder cannot be created or written; empty: its permissions allow writing."""
    place = place_of(folder)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return ""
    return f"{place} cannot be written" if place.is_dir() else f"{place} is not a folder"


def check_out(folder: Path) -> None:
    """Check, before any work, that the result can be written to the folder.

    Raises:
        UsageFault: the folder of `--out` cannot be created or written.
    """
    if fault := folder_fault(folder):
        raise UsageFault(f"--out {folder}: {fault}; expected a writable folder; choose another --out")


def contributor_key_path() -> Path:
    """Return the default path of a person's contributor key."""
    return user_data_dir_here() / "contributor.key"


def user_data_dir(environ: Mapping[str, str], platform: str, home: Path) -> Path:
    """Return the folder in which this software stores the files of one user.

    Args:
        environ: may contain XDG_DATA_HOME (XDG Base Directory Specification).
        platform: as `sys.platform`.
        home: the user's home folder.
    """
    if platform == "darwin":
        return home / "Library" / "Application Support" / DATA_DIR_NAME
    configured = environ.get("XDG_DATA_HOME", "")
    # According to the specification, relative values are ignored.
    return (Path(configured) if configured.startswith("/") else home / ".local" / "share") / DATA_DIR_NAME
