"""Files that hold what somebody wrote, opened without waiting: pipes, devices and sockets are refused.

Opening a named pipe waits for a writer that may never come, and a device such as /dev/zero has no end; both would hang
or fill a reader that expects a file at that place.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

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
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


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


def _check(mode: int, path: str | Path) -> None:
    for is_kind, text, number in _KINDS:
        if is_kind(mode):
            raise _fault(number, text, path)


def _fault(number: int, text: str, path: str | Path) -> OSError:
    return OSError(number, text, str(path))
