"""The process that holds a data folder, and how to ask it to leave."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dht.ground.errors import LocalFault
from dht.identity.multiaddr import parse_peer_multiaddr
from dht.identity.speakable import speakable_name
from peer.config.peer_config import ADDRESSES_NAME, read_cached_peers
from peer.data_folder.folder_lock import LOCK_NAME, holder_of, told_holder_of
from peer.data_folder.run_folders import given_name

LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Running:
    """A process that holds `folder`; `words` describe the process and its start."""

    folder: Path
    words: str
    process: int | None

    @property
    def named(self) -> str:
        """The peer's name, if known, and the words."""
        name = name_in(self.folder)
        return f"{name}, {self.words}" if name else self.words


def name_in(folder: Path) -> str:
    """Return the name of a data folder's peer and of its key, as panel and page show them; empty if both are
    unknown.
    """
    return " ".join(f"({name})" if number else name for number, name in enumerate(names_in(folder)))


def names_in(folder: Path) -> list[str]:
    """Return the given name of a folder's peer, and the name of its key, which is known once the peer has listened."""
    own = read_cached_peers(folder / ADDRESSES_NAME)
    spoken = speakable_name(parse_peer_multiaddr(own[0])[0]) if own else ""
    return [name for name in (given_name(folder), spoken) if name]


def running_in(folder: Path) -> Running | None:
    """Return the process that runs in the folder; None if there is none.

    Raises:
        LocalFault: this cannot be determined.
    """
    words = holder_of(folder)
    if words is None:
        return None
    number = words.split()[1] if words.startswith("process ") else ""
    return Running(folder, words, int(number) if number.isdigit() else None)


def running_in_any(folders: Iterable[Path]) -> list[Running]:
    """Return the processes in all folders for which they can be determined.

    Raises:
        LocalFault: no process is known, and for one folder it cannot be determined.
    """
    found, untold = [], None
    for folder in folders:
        try:
            found.append(running_in(folder))
        except LocalFault as fault:
            untold = fault
    running = [one for one in found if one is not None]
    if untold is not None and not running:
        raise untold
    return running


def ask_to_leave(running: Running) -> bool:
    """Send SIGTERM, like Ctrl+C there; return False if the process has left meanwhile.

    Raises:
        LocalFault: the process belongs to another user, or is not on this machine.
    """
    hint = "expected one of your processes on this machine; end it where it was started"
    if running.process is None or not _holds(running.process, running.folder / LOCK_NAME):
        # An ending process closes its files in any order, so the lock may be released last.
        if has_left(running, LOOK_SECONDS):
            return False
        raise LocalFault(
            f"{running.words} holds {running.folder}, but is not visible here, perhaps because of a container; {hint}"
        )
    try:
        os.kill(running.process, signal.SIGTERM)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise LocalFault(f"{running.words} cannot be asked to leave ({error.strerror}); {hint}") from error
    return True


def has_left(running: Running, timeout_seconds: float) -> bool:
    """Wait until the process releases its folder; return False if it still holds it."""
    end = time.monotonic() + timeout_seconds
    while told_holder_of(running.folder) == running.words:
        if time.monotonic() >= end:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _holds(process: int, lock: Path) -> bool:
    """Return whether this process has the file open; in a container or after a restart another process may have its
    number.
    """
    opened = Path(f"/proc/{process}/fd")
    try:
        wanted = lock.stat()
        return any(os.path.samestat(one.stat(), wanted) for one in opened.iterdir() if one.exists())
    except PermissionError:
        return True  # a process of another user, as the signal will show
    except OSError:
        return not Path("/proc/self").exists()  # without /proc only the lock is known
