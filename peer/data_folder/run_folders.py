"""The data folders of a run on this machine: the default, additional ones, and folders elsewhere, which are listed."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dht.ground.errors import UsageFault
from dht.ground.fields import printable
from dht.ground.regular_files import read_regular, write_whole
from dht.identity.keys import split_run_id
from peer.data_folder.folder_lock import last_use_of, told_holder_of
from peer.user_folders import user_data_dir_here

PLACES_NAME: Final = "places.json"
"""Name of the list in this user's folder: [run id, data folder] of each folder elsewhere, newest first."""
MAX_PLACES: Final = 50
"""More folders than any user has for peers on one machine."""
_MAX_BYTES: Final = 256 * 1024
"""About `MAX_PLACES` of the longest paths on Linux."""
SEED: Final = "peer seed"
COMMAND_NAME: Final = "return.command"
"""Name of the file in a seed's data folder with the command that restarts the seed."""
NAME_NAME: Final = "given.name"
"""Name of the file in the data folder with the name under which its peer last joined; empty: none."""
_MAX_COMMAND_BYTES: Final = 16 * 1024
"""Room for a command with every flag and long paths."""


def remember_place(run_id: str, folder: Path) -> None:
    """List the folder of a peer or an owner of this run, unless it is in the default place.

    The list is a convenience, so a failure to write it is ignored.
    """
    with contextlib.suppress(OSError, UsageFault):
        here = user_data_dir_here()
        place = (run_id, folder.resolve())
        if place[1].parent == here.resolve():
            return
        known = known_places()
        if known[:1] != [place]:
            kept = [place, *(one for one in known if one[1] != place[1])][:MAX_PLACES]
            _write(here / PLACES_NAME, kept)


def forget_places(folder: Path) -> None:
    """Remove the listed folders below `folder`, e.g. those of a finished demo; delete an empty list."""
    _forget(lambda run_id, place: folder.resolve() in place.parents)


def forget_run(run_id: str) -> None:
    """Remove the listed folders of a run."""
    _forget(lambda of_run, place: of_run == run_id)


def _forget(goes: Callable[[str, Path], bool]) -> None:
    with contextlib.suppress(OSError, UsageFault):
        file, known = user_data_dir_here() / PLACES_NAME, known_places()
        kept = [one for one in known if not goes(*one)]
        if kept == known:
            return
        if kept:
            _write(file, kept)
        else:
            file.unlink()


def known_places(run_id: str | None = None) -> list[tuple[str, Path]]:
    """Return (run id, folder) of the listed folders that exist, newest first, for this run or for all runs."""
    try:
        entries = json.loads(read_regular(user_data_dir_here() / PLACES_NAME, _MAX_BYTES))
    except (OSError, ValueError, RecursionError, UsageFault):
        return []
    found = []
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case [str(name), str(path)] if run_id in (None, name) and path.startswith("/") and "\0" not in path:
                with contextlib.suppress(UsageFault, OSError):
                    split_run_id(name)
                    if Path(path).is_dir():
                        found.append((name, Path(path)))
    return found[:MAX_PLACES]


def folders_of(run_id: str, usual: Path | None = None) -> list[Path]:
    """Return the possible folders of a run's peers: the default, even if missing, additional ones beside it, others.

    Args:
        usual: the folder to return instead of the default.

    Raises:
        UsageFault: this user has no home folder.
    """
    first = user_data_dir_here() / run_id if usual is None else usual
    further = re.compile(re.escape(first.name) + r"-([1-9][0-9]?)")
    try:
        found = [(int(name[1]), one) for one in first.parent.iterdir() if (name := further.fullmatch(one.name))]
    except OSError:
        found = []
    return [first, *(folder for _, folder in sorted(found)), *(folder for _, folder in known_places(run_id))]


def folders_in_use(run_id: str, besides: Path | None = None) -> list[Path]:
    """Return the run's folders on this machine in which a peer runs now, except `besides`, the caller's own folder."""
    own = None if besides is None else besides.absolute()
    with contextlib.suppress(UsageFault):
        return [one for one in folders_of(run_id) if one.absolute() != own and told_holder_of(one) is not None]
    return []


def stopped_seed(run_id: str) -> str | None:
    """Return a sentence if this machine has a seed of the run and none is running; otherwise None."""
    with contextlib.suppress(UsageFault):  # no home folder
        seeds = [folder for folder in folders_of(run_id) if last_use_of(folder) == SEED]
        if seeds and not any(told_holder_of(folder) for folder in seeds):
            return f"the run's seed on this machine is not running; start it with `{seed_command(run_id, seeds[0])}`"
    return None


def kept_command(folder: Path) -> str | None:
    """Return the command that a seed stored in its folder; None: no command, or an unprintable one."""
    with contextlib.suppress(OSError, ValueError):
        command = read_regular(folder / COMMAND_NAME, _MAX_COMMAND_BYTES).decode().rstrip("\n")
        return command if command.isprintable() and command else None
    return None


def keep_name(folder: Path, name: str) -> None:
    """Store the name of a folder's peer; a failure, e.g. on a full disk, is ignored."""
    with contextlib.suppress(OSError):
        write_whole(folder / NAME_NAME, f"{name}\n".encode())


def given_name(folder: Path) -> str:
    """Return the name under which the folder's peer last joined; empty: none, or unreadable."""
    with contextlib.suppress(OSError, ValueError):
        return printable(read_regular(folder / NAME_NAME, _MAX_COMMAND_BYTES).decode().strip())
    return ""


def seed_command(run_id: str, folder: Path) -> str:
    """Return the command that starts a seed in this folder, with the flags of an earlier seed if there was one."""
    if (kept := kept_command(folder)) is not None:
        return kept
    is_found = folder.parent == user_data_dir_here()
    return shlex.join([*SEED.split(), run_id, *([] if is_found else ["--data-dir", str(folder)])])


def _write(file: Path, places: list[tuple[str, Path]]) -> None:
    write_whole(file, json.dumps([[run_id, str(path)] for run_id, path in places]).encode())
