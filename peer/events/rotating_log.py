"""An append-only file of text lines whose failures never stop the process: a full disk causes one warning."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_LOG_BYTES = 32 << 20
"""Size at which a log becomes the earlier log and replaces the one before it: about a day of one peer's events."""
EARLIER_SUFFIX = ".1"

MAX_PENDING_LINES = 1000
"""Lines kept in memory while the file cannot be written: hours of one peer's events in about 300 kB."""


@dataclass(eq=False)
class LineLog:
    """Appends whole lines to one file, unbuffered, so that a killed process loses nothing that was appended.

    Attributes:
        path: the file, opened with the first line; missing parents are created.
        warn: called with one sentence when an outage begins, and with one when it ends.
        max_bytes: size at which the file is renamed with `EARLIER_SUFFIX` and a new file begins.
    """

    path: Path
    warn: Callable[[str], None]
    max_bytes: int = MAX_LOG_BYTES

    def __post_init__(self) -> None:
        self._num_bytes = 0
        self._file: int | None = None
        self._pending: deque[bytes] = deque(maxlen=MAX_PENDING_LINES)
        self._num_dropped = 0
        self._failing = False
        self._mid_line = False

    def append(self, line: str) -> None:
        """Write all pending lines and then `line`, which holds no newline. Never raises."""
        self._num_dropped += len(self._pending) == MAX_PENDING_LINES
        self._pending.append(line.encode("utf-8", "replace") + b"\n")
        try:
            self._write_pending()
        except OSError as error:
            self.close()
            if not self._failing:
                self._failing = True
                self.warn(
                    f"The event log {self.path} cannot be written ({error.strerror or error}); training continues, and "
                    "the log resumes once writing works; free some space or check the folder."
                )
            return
        if self._failing:
            lost = f"; {self._num_dropped} lines were lost" if self._num_dropped else "; nothing was lost"
            self._failing, self._num_dropped = False, 0
            self.warn(f"The event log {self.path} can be written again{lost}.")

    def close(self) -> None:
        """Release the file; a later `append` opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _write_pending(self) -> None:
        if self._file is not None and not os.fstat(self._file).st_nlink:
            # The file was deleted: lines written to it would be lost.
            self.close()
        if self._file is not None and self._num_bytes >= self.max_bytes:
            self.close()
            os.replace(self.path, earlier_log(self.path))
        if self._file is None:
            self._file = self._open()
        if self._mid_line:
            # A full disk or a crash cut the last line; the next line must not continue it.
            self._write_all(b"\n")
        while self._pending:
            self._write_all(self._pending[0])
            self._pending.popleft()

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe there must not hold us up
        file = os.open(self.path, flags, 0o600)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.ESPIPE, "it is a pipe or a device, not a regular file")
            if stat.S_IMODE(found.st_mode) & 0o077:
                # The log holds addresses and names; older versions created it readable by all users.
                with contextlib.suppress(OSError):  # a file system without modes, or another user's file
                    os.fchmod(file, 0o600)
            self._num_bytes = found.st_size
            self._mid_line = found.st_size > 0 and os.pread(file, 1, found.st_size - 1) != b"\n"
        except OSError:
            os.close(file)
            raise
        return file

    def _write_all(self, data: bytes) -> None:
        assert self._file is not None
        rest = memoryview(data)
        while rest:
            written = os.write(self._file, rest)
            self._num_bytes += written
            rest = rest[written:]
            self._mid_line = bool(rest)


def earlier_log(path: Path) -> Path:
    """Return the path to which a full log is renamed."""
    return path.with_name(path.name + EARLIER_SUFFIX)
