"""Private directory for the sockets of one daemon, recognisable as stale after its owner was killed."""

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
    """A directory with mode 0700 whose lock file is locked while this process lives.

    Raises:
        LocalFault: no folder is suitable for it.

    The operating system releases the lock with the process, however it ends, and `remove_stale` then finds it free. A
    process id in a file would not work: ids are reused, and containers that share the folder have separate ids.
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
    """Delete the directories of processes that no longer exist. Return their number.

    A new directory that is not locked yet is deleted too: its creator notices this and makes another.
    """
    num_removed = 0
    found = [path for folder in _short_folders() for path in folder.glob(f"{_PREFIX}*")]
    for path in found:
        with contextlib.suppress(OSError):
            if path.stat(follow_symlinks=False).st_uid == os.getuid():
                num_removed += _remove_if_unowned(path)
    return num_removed


def _claim(path: Path) -> tuple[Path, int] | None:
    """Lock a new directory; None if `remove_stale` was faster."""
    try:
        lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), (path / _LOCK_NAME).stat()):
            return path, lock
    except (BlockingIOError, FileNotFoundError):
        # `remove_stale` holds the lock, or has deleted the file.
        pass
    os.close(lock)
    return None


def _remove_if_unowned(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Only if empty: its owner may be locking it at this moment.
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
    """Create a directory in the first usable folder."""
    reasons = []
    for folder in _short_folders():
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise LocalFault(
        f"no folder fits the network daemon's sockets ({'; '.join(reasons)}); expected a writable folder with a short "
        "path; set TMPDIR to such a folder"
    )


def _short_folders() -> list[Path]:
    """Return the folders for sockets, preferred first: socket paths must be short."""
    names = ["/tmp", "/var/tmp", os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm"]
    with contextlib.suppress(FileNotFoundError):  # no writable folder for temporary files
        names.insert(0, tempfile.gettempdir())
    folders = [Path(name) for name in dict.fromkeys(names) if name.startswith("/")]
    return [folder for folder in folders if _is_short(folder)]


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder / f"{_PREFIX}12345678" / _LONGEST_SOCKET_NAME)) <= _MAX_SOCKET_PATH_BYTES
