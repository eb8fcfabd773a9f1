"""A private directory for the sockets of one daemon, recognisable as stale when its owner was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

_PREFIX: Final = "murmuration-p2pd-"
_LOCK_NAME: Final = "owner.lock"
_MAX_SOCKET_PATH_BYTES: Final = 100
"""Unix socket paths end at 104 bytes on macOS and 108 on Linux."""
_LONGEST_SOCKET_NAME: Final = "p2pclient-0123456789ab.sock"
_FRESH_SECONDS: Final = 60.0
"""A directory younger than this may belong to a process that has not locked it yet."""


class SocketDirectory:
    """A directory with mode 0700 whose lock file is held as long as this process lives.

    The operating system drops the lock with the process, however it ends; `remove_stale` then finds it free. A
    process id in a file would not do: ids are reused.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_short_folder()))
        self._lock = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Delete the directory and everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def remove_stale() -> int:
    """Delete the directories of processes that no longer exist; returns how many."""
    num_removed = 0
    for path in _short_folder().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            info = path.stat(follow_symlinks=False)
            if info.st_uid == os.getuid() and time.time() - info.st_mtime > _FRESH_SECONDS and _is_unowned(path):
                shutil.rmtree(path, ignore_errors=True)
                num_removed += 1
    return num_removed


def _is_unowned(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _short_folder() -> Path:
    folder = Path(tempfile.gettempdir())
    longest = folder / f"{_PREFIX}12345678" / _LONGEST_SOCKET_NAME
    return folder if len(os.fsencode(longest)) <= _MAX_SOCKET_PATH_BYTES else Path("/tmp")
