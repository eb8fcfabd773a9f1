"""A private directory for the sockets of one daemon, recognisable as stale when its owner was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from dht.ground.errors import LocalFault

_PREFIX: Final = "murmuration-p2pd-"
_LOCK_NAME: Final = "owner.lock"
_MAX_SOCKET_PATH_BYTES: Final = 100
"""Unix socket paths end at 104 bytes on macOS and 108 on Linux."""
_LONGEST_SOCKET_NAME: Final = "p2pclient-0123456789ab.sock"


class SocketDirectory:
    """A directory with mode 0700 whose lock file is held as long as this process lives.

    Raises:
        LocalFault: there is no folder to make it in.

    The operating system drops the lock with the process, however it ends; `remove_stale` then finds it free. A
    process id in a file would not do: ids are reused, and containers that share the folder have their own.
    """

    def __init__(self) -> None:
        claimed = None
        while claimed is None:
            claimed = _claim(_made())
        self.path, self._lock = claimed

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def remove_stale() -> int:
    """Delete the directories of processes that no longer exist; returns how many.

    One that was made just now and is not locked yet goes too: its maker sees that and makes another.
    """
    num_removed = 0
    found = [path for folder in _short_folders() for path in folder.glob(f"{_PREFIX}*")]
    for path in found:
        with contextlib.suppress(OSError):
            if path.stat(follow_symlinks=False).st_uid == os.getuid():
                num_removed += _remove_if_unowned(path)
    return num_removed


def _claim(path: Path) -> tuple[Path, int] | None:
    """Lock a directory that was just made; None when a sweep was faster."""
    try:
        lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), (path / _LOCK_NAME).stat()):
            return path, lock
    except (BlockingIOError, FileNotFoundError):
        # A sweep holds the lock, or has deleted the file behind it.
        pass
    os.close(lock)
    return None


def _remove_if_unowned(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Only an empty one: its owner may be locking it at this moment.
        path.rmdir()
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _made() -> Path:
    """A new directory, in the first folder that takes one."""
    reasons = []
    for folder in _short_folders():
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise LocalFault(
        f"the network daemon's sockets have no place ({'; '.join(reasons)}); expected a writable folder with a short "
        "path; set TMPDIR to one"
    )


def _short_folders() -> list[Path]:
    """Where sockets may be, the likeliest first: their paths must stay short."""
    names = ["/tmp", "/var/tmp", os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm"]
    with contextlib.suppress(FileNotFoundError):  # no folder for temporary files that can be written
        names.insert(0, tempfile.gettempdir())
    folders = [Path(name) for name in dict.fromkeys(names) if name.startswith("/")]
    return [folder for folder in folders if _is_short(folder)]


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder / f"{_PREFIX}12345678" / _LONGEST_SOCKET_NAME)) <= _MAX_SOCKET_PATH_BYTES
