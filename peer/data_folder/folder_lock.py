"""Limits each data folder to one process: two would train under one name and delete each other's checkpoints.

The system releases the lock however its holder ends, so no stale lock remains. Only the lock shows that a folder is in
use. The content of the file describes the process for people, and shows the next start how the folder was used.
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
"""Name of the lock file in the data folder."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without locks, such as some network file systems; there users must avoid conflicts."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_SHOWN = re.compile(r"process [0-9]{1,10} \(([a-z. ]{1,40})\), since [0-9: -]{1,30}")
_MAX_BYTES = 200
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

log = logging.getLogger(__name__)
_HERE: weakref.WeakSet[FolderLock] = weakref.WeakSet()
"""Locks of this process. Its number would not identify them, because containers use the same numbers."""


class FolderInUse(LocalFault):
    """Another process holds the folder."""


class FolderLock:
    """Holds a data folder until `close`, or until this process ends.

    Args:
        what: the command that runs here, e.g. "peer join"; None: keep the content of the file.

    Raises:
        FolderInUse: another process holds the folder.
        LocalFault: the folder is not writable.
    """

    def __init__(self, folder: Path, what: str | None) -> None:
        self._folder = folder
        self._what = what
        self._descriptor: int | None = None
        self._take()
        _HERE.add(self)
        _watch_forks()

    def what_happened(self) -> str | None:
        """Return a sentence, once, if the folder was deleted or replaced; lock the new folder at its path instead."""
        if self._descriptor is None or self._is_same(self._descriptor):
            return None
        self.close()
        sentence = (
            f"the data folder {self._folder} was deleted or replaced while this peer was using it, with its key, "
            "checkpoints and event log; this peer now saves to a new folder at the same path, without the key; end "
            "this peer, restore the folder from a copy if there is one, and start again"
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
            return True  # unknown, for example because a network disk does not answer; a later call checks again

    def close(self) -> None:
        """Release the folder; may be called twice."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def holds(self, descriptor: int) -> bool:
        """Return whether this is the lock of the file with this descriptor."""
        return self._descriptor is not None and os.path.sameopenfile(self._descriptor, descriptor)

    def _take(self) -> None:
        path = self._folder / LOCK_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno in _NO_ROOM:
                # Other writers also report the full disk, and continue when there is space.
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
            way_out = "that is this process: leave the session that is open in it" if is_here else "end that process"
            raise FolderInUse(
                f"the data folder {self._folder} is in use by {holder}; expected a separate folder for each peer, "
                f"because two in one would lose each other's work; {way_out}, or choose a different --data-dir"
            ) from error
        self._descriptor = descriptor
        if self._what is None:
            return
        started = date_text(time.time())
        with contextlib.suppress(OSError):
            # On a full disk the lock works, but without a description.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} ({self._what}), since {started}\n".encode(), 0)

    def _warn(self, error: OSError) -> None:
        if self._what is not None:  # a caller that only checks the folder starts no peer
            log.warning("%s cannot be locked (%s); start no second peer there", self._folder, error.strerror)


@functools.cache
def _watch_forks() -> None:
    """Register the fork handler, once, with the first lock."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """Close the locks in a forked process, such as a data loader's worker, which may outlive its parent."""
    for lock in [*_HERE]:
        lock.close()


def holder_of(folder: Path) -> str | None:
    """Return the holder of the folder, e.g. "process 4711 (peer seed), since ..."; None: no process. Writes nothing.

    Raises:
        LocalFault: the holder is unknown, for example because this user may not read the folder.
    """
    try:
        return read_holder_of(folder)
    except OSError as error:
        raise LocalFault(
            f"{folder / LOCK_NAME} cannot be read ({error.strerror}), so it is unknown whether a peer runs there; "
            "expected a folder that you may read; run this command as its owner"
        ) from error


def read_holder_of(folder: Path) -> str | None:
    """Return the holder like `holder_of`. Raises OSError: the holder is unknown."""
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
    """Return the holder like `holder_of`; None also if the holder is unknown."""
    with contextlib.suppress(LocalFault):
        return holder_of(folder)
    return None


def last_use_of(folder: Path) -> str | None:
    """Return the command that uses or last used the folder, e.g. "peer seed"; None: no command, or unknown."""
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
