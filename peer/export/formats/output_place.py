"""Checks the place of an export before anything is loaded or downloaded. Loads no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.regular_files import read_regular
from peer.export.formats.model_header import MAX_CONFIG_BYTES, RUN_NAME


def _check_parent(path: Path) -> None:
    """Check that a new file or folder may be created beside `path`.

    Raises:
        UsageFault: the parent folder does not exist.
        LocalFault: the parent folder is not writable.
    """
    if not path.parent.is_dir():
        raise UsageFault(
            f"{path.parent} is not a folder; expected an existing folder; create it or choose another --out."
        )
    if not os.access(path.parent, os.W_OK):
        raise LocalFault(f"{path.parent} cannot be written; expected a writable folder; choose another --out.")


def check_folder(folder: Path, *, replace: bool) -> None:
    """Check, before any download, that an exported folder may be written to `folder`.

    Raises:
        UsageFault: there is a file or folder that may not be replaced, or no place for a new folder.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageFault(f"--out {folder} is not a folder; expected a new folder; choose another --out.")
    _check_parent(folder.absolute())
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not replace:
        raise UsageFault(
            f"{folder} already exists and contains files; expected a new folder; choose another --out or use --force."
        )
    # --force replaces only an earlier model, no other files.
    others = sorted({entry.name for entry in folder.iterdir()} - _files_of_earlier(folder))
    if others:
        raise UsageFault(
            f"{folder} contains {others[0]!r}, which is not from an export; expected an earlier export or a new "
            "folder; move that file away or choose another --out."
        )


def _files_of_earlier(folder: Path) -> set[str]:
    """Return the names of the files that an export wrote into `folder`, from its run.json; empty: not an export."""
    try:
        names = json.loads(read_regular(folder / RUN_NAME, MAX_CONFIG_BYTES))["files"]
        return {name for name in names if isinstance(name, str)}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return set()
