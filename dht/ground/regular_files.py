"""Files: read without waiting, because pipes, devices and sockets are refused, and written atomically.

Opening a named pipe waits for a writer that may never come, and a device such as /dev/zero has no end. Both would block
or fill a reader that expects a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from io import BufferedReader
from pathlib import Path

from dht.ground.errors import UsageFault

_KINDS = (
    (stat.S_ISDIR, os.strerror(errno.EISDIR), errno.EISDIR),
    (stat.S_ISFIFO, "is a named pipe, not a regular file", errno.ESPIPE),
    (stat.S_ISSOCK, "is a socket, not a regular file", errno.ENXIO),
    (stat.S_ISCHR, "is a device, not a regular file", errno.ENODEV),
    (stat.S_ISBLK, "is a device, not a regular file", errno.ENODEV),
)


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file (or a link to one) for reading bytes, without waiting.

    Raises:
        OSError: as from `open`, or the path is not a regular file; `strerror` fits into a sentence about the path.
    """
    # Checked before opening, since opening may have an effect on a device, and after it, since the name may have
    # changed.
    _check(os.stat(path).st_mode, path)
    # With an opener, an interrupt during the call cannot make Python close the descriptor twice.
    file = open(path, "rb", opener=_without_a_wait)  # noqa: SIM115 (the caller closes it)
    try:
        _check(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def _without_a_wait(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_regular(path: str | Path, max_bytes: int) -> bytes:
    """Return all bytes of a regular file.

    Raises:
        OSError: as from `open_regular`, or the file has more than `max_bytes`.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"has more than {max_bytes} bytes", str(path))
    return content


def read_private(path: str | Path, max_bytes: int, what: str, advice: str = "") -> bytes:
    """Return at most `max_bytes` + 1 bytes of a file that only its owner may use. `what`: its name in the error,
    `advice`: its end.

    Raises:
        OSError: as from `open_regular`.
        UsageFault: other users of this machine can read or write it.
    """
    with open_regular(path) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        content = file.read(max_bytes + 1)
    if mode & 0o077:
        raise UsageFault(
            f"{what} has mode {mode:04o}, so other users of this machine can use it; expected 0600; "
            f"run: chmod 600 {path}{advice}"
        )
    return content


def write_new(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Create a file with this mode and flush it to the disk. Raises OSError, also if the file exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write `content` to `path` and flush it to the disk. After a crash or with a full disk, the earlier file is
    intact.

    The file has this mode, less the umask, from its first byte on. A missing folder is created with mode 0700, and
    removed if the file cannot be written.

    Raises:
        OSError: the folder cannot be created or written, or the disk is full.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    new_folders = [one for one in path.parents if not one.exists()]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_new(draft, content, mode)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
            for folder in new_folders:
                folder.rmdir()
        raise


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check(mode: int, path: str | Path) -> None:
    for is_kind, text, number in _KINDS:
        if is_kind(mode):
            raise OSError(number, text, str(path))
