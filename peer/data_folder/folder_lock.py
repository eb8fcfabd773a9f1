"""One process for each data folder: two in one would train under one name and delete each other's checkpoints.

The system takes the lock back however its holder ends, so nothing stale is left behind. Only the lock says that a
folder is in use. What the file says tells people which process that is, and the next start what the folder was for.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import re
import time
import weakref
from pathlib import Path

from dht.ground.errors import LocalFault, unwritable
from dht.ground.quantities import date_text

LOCK_NAME = "peer.lock"
"""In the data folder."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Of file systems without locks, such as some of those in the network: there each owner has to take care."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_SHOWN = re.compile(r"process [0-9]{1,10} \(([a-z. ]{1,40})\), since [0-9: -]{1,30}")
_MAX_BYTES = 200
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

log = logging.getLogger(__name__)
_HERE: weakref.WeakSet[FolderLock] = weakref.WeakSet()
"""Those that this process made. Its number would not do to tell them: containers have equal ones."""


class FolderInUse(LocalFault):
    """Another process holds the folder."""


class FolderLock:
    """Holds a data folder until `close`, or until this process ends.

    Args:
        what: runs here, e.g. "peer join"; None: what stood there stays.

    Raises:
        FolderInUse: another process holds the folder.
        LocalFault: nothing can be written there.
    """

    def __init__(self, folder: Path, what: str | None) -> None:
        self._folder = folder
        self._what = what
        self._descriptor: int | None = None
        self._take()
        _HERE.add(self)
        _watch_forks()

    def what_happened(self) -> str | None:
        """A sentence, once, when the folder was deleted or replaced since; a new one in its place is locked instead."""
        if self._descriptor is None or self._is_same(self._descriptor):
            return None
        self.close()
        sentence = (
            f"the data folder {self._folder} was deleted or replaced while this peer uses it, and with it its key, "
            "checkpoints and event log; what is saved from now on goes to a new folder there, without the key; end "
            "this peer, bring the folder back from a copy if there is one, and start again"
        )
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take()
        except (OSError, LocalFault) as error:
            return f"{sentence} ({error})"
        return sentence

    def _is_same(self, descriptor: int) -> bool:
        try:
            return os.path.samestat((self._folder / LOCK_NAME).stat(), os.fstat(descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # a disk in the network that does not answer now: nobody knows, and the next look will tell

    def close(self) -> None:
        """Let go; may be called twice."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def holds(self, descriptor: int) -> bool:
        """Whether this is the lock of that file."""
        return self._descriptor is not None and os.path.sameopenfile(self._descriptor, descriptor)

    def _take(self) -> None:
        path = self._folder / LOCK_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno in _NO_ROOM:
                # What else is to be written says so, too, and goes on when there is room.
                self._warn(error)
                return
            raise unwritable(path, error, "give another --data-dir") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder, is_here = _said_in(descriptor), any(lock.holds(descriptor) for lock in _HERE)
            os.close(descriptor)
            if error.errno in _NO_LOCKS:
                self._warn(error)
                return
            if not isinstance(error, BlockingIOError):
                raise LocalFault(
                    f"{path} cannot be locked: {error.strerror}; expected a data folder on a disk of this machine; "
                    "give another --data-dir"
                ) from error
            way_out = (
                "that process is this one: leave the session that is open in it" if is_here else "end that process"
            )
            raise FolderInUse(
                f"the data folder {self._folder} is in use by {holder}; expected a folder for each peer, because two "
                f"in one would lose each other's work; {way_out}, or give this one another --data-dir"
            ) from error
        self._descriptor = descriptor
        if self._what is None:
            return
        started = date_text(time.time())
        with contextlib.suppress(OSError):
            # A full disk: the lock holds, only without a name.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} ({self._what}), since {started}\n".encode(), 0)

    def _warn(self, error: OSError) -> None:
        if self._what is not None:  # whoever only looks whether it is free starts no peer
            log.warning("%s cannot be locked (%s); start no second peer there", self._folder, error.strerror)


@functools.cache
def _watch_forks() -> None:
    """From the first lock on."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """In the new process, such as a data loader's worker: it would hold the folder when its parent was killed."""
    for lock in [*_HERE]:
        lock.close()


def holder_of(folder: Path) -> str | None:
    """What holds the folder, in words such as "process 4711 (peer seed), since ..."; None: nothing. Writes nothing.

    Raises:
        LocalFault: it cannot be told, as of a folder that this user may not read.
    """
    try:
        return read_holder_of(folder)
    except OSError as error:
        raise LocalFault(
            f"{folder / LOCK_NAME} cannot be read ({error.strerror}), so that nobody knows whether a peer runs there; "
            "expected a folder of your own; ask as its owner"
        ) from error


def read_holder_of(folder: Path) -> str | None:
    """The same. Raises OSError: it cannot be told."""
    try:
        descriptor = os.open(folder / LOCK_NAME, _READING)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _said_in(descriptor)
    except OSError:
        return None  # a file system without locks
    finally:
        os.close(descriptor)
    return None


def told_holder_of(folder: Path) -> str | None:
    """The same; None also where it cannot be told."""
    with contextlib.suppress(LocalFault):
        return holder_of(folder)
    return None


def last_use_of(folder: Path) -> str | None:
    """What used the folder last, or does now, e.g. "peer seed"; None: nothing did, or it cannot be told."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / LOCK_NAME, _READING)
        try:
            found = _shown_in(descriptor)
            return None if found is None else found[1]
        finally:
            os.close(descriptor)
    return None


def _said_in(descriptor: int) -> str:
    found = _shown_in(descriptor)
    return "another process" if found is None else found.group()


def _shown_in(descriptor: int) -> re.Match[str] | None:
    with contextlib.suppress(OSError):
        return _SHOWN.match(os.pread(descriptor, _MAX_BYTES, 0).decode("ascii", "replace"))
    return None
