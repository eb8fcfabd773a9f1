"""Files: read without waiting, since pipes, devices and sockets are refused, and written whole or not at all.

Opening a named pipe waits for a writer that may never come, and a device such as /dev/zero has no end. Both would hang
or fill a reader that expects a file at that place.
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
    """Open a regular file (or a link to one) for reading, in bytes and without a wait.

    Raises:
        OSError: as `open` does, or it is no regular file; `strerror` fits into a sentence about the path.
    """
    # Asked before it is opened, since a device may act on being opened, and after, since the name may be another's.
    _check(os.stat(path).st_mode, path)
    # By an opener: an interrupt in the middle would close a descriptor of ours a second time, and be taken for a fault.
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
    """All bytes of a regular file.

    Raises:
        OSError: as `open_regular`, or there are more than `max_bytes`.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"has more than {max_bytes} bytes", str(path))
    return content


def read_private(path: str | Path, max_bytes: int, what: str, advice: str = "") -> bytes:
    """At most `max_bytes` + 1 bytes of a file that only its owner may use; `what` it is called, `advice` in the end.

    Raises:
        OSError: as `open_regular`.
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
    """A file with this mode that was not there, on the disk for good. Raises OSError, also when it was there."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Put `content` at `path`, on the disk for good; an earlier file survives a crash or a full disk.

    The file has this mode, but for the umask, from its first byte on. A missing folder is made with mode 0700, and goes
    again if the file cannot be written.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full.
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
    """Bring a file, or the names in a folder, down to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check(mode: int, path: str | Path) -> None:
    for is_kind, text, number in _KINDS:
        if is_kind(mode):
            raise OSError(number, text, str(path))
