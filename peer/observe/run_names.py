"""Ids and names of the runs that have a folder on this machine. Loads nothing heavy."""

from __future__ import annotations

import contextlib
from difflib import get_close_matches
from pathlib import Path

from dht.ground.errors import LocalFault, UsageFault
from dht.identity.keys import split_run_id
from peer.data_folder.run_folders import folders_of, known_places
from peer.user_folders import OWNER_KEY_NAME, PASS_NAME, RUN_RECORD_NAME, user_data_dir_here

NEAR = 0.8
"""Share of equal letters for a mistyped run id. Ids of two owners with the same, longest name are 0.75 alike."""


def runs_here() -> list[str]:
    """Return the ids of runs with a folder on this machine, by name; empty if unknown."""
    with contextlib.suppress(LocalFault):
        return every_run_here()
    return []


def every_run_here() -> list[str]:
    """Return the ids like `runs_here`, but raise a fault.

    Raises:
        LocalFault: the folder of this user's runs cannot be read, or the user has no home folder.
    """
    home = user_data_dir_here()
    try:
        names = {folder.name for folder in home.iterdir()}
    except FileNotFoundError:
        names = set()
    except OSError as error:
        raise LocalFault(
            f"{home} cannot be read ({error.strerror}), so the runs on this machine are unknown; expected a readable "
            "folder; restore its permissions, or set XDG_DATA_HOME"
        ) from error
    found = []
    for name in sorted(names | {run_id for run_id, _ in known_places()}):
        with contextlib.suppress(UsageFault):
            split_run_id(name)
            found.append(name)
    return found


def runs_of_name(name: str) -> list[str]:
    """Return the ids of the runs here with this name: those joined, made or invited to; if there are none, all.

    A folder may be left behind from a mistyped id.
    """
    same = [run_id for run_id in runs_here() if run_id.partition(".")[0] == name]
    return [run_id for run_id in same if any(map(_is_of_a_run, folders_of(run_id)))] or same


def _is_of_a_run(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any((folder / name).exists() for name in (RUN_RECORD_NAME, OWNER_KEY_NAME, PASS_NAME))
    return False


def owned_folders(run_id: str) -> list[Path]:
    """Return the folders of a run with its owner's key, the default folder first."""
    return [folder for folder in folders_of(run_id) if has_owner_key(folder)]


def has_owner_key(folder: Path) -> bool:
    """Return whether a folder has the key of its run's owner; also False if only another user may read it."""
    with contextlib.suppress(OSError):
        return (folder / OWNER_KEY_NAME).exists()
    return False


def near_run(text: str) -> str | None:
    """Return the run of this machine whose id or name resembles a mistyped one; None if none does, or if it
    is exact.
    """
    known = runs_here()
    if not known or text in known:
        return None
    text = text.lower()
    if "." not in text:
        names = {one.partition(".")[0]: one for one in known}
        return next((names[name] for name in get_close_matches(text, names, 1)), None)
    begun = (one for one in known if one.startswith(text))
    return next(iter(get_close_matches(text, known, 1, NEAR)), next(begun, None))
