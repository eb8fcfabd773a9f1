"""Captures standard error while a panel has the screen, and shows its lines as notes, because other output would
damage the picture.

A file is used instead of a pipe, because a writer must not wait for the panel.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import tempfile
from typing import BinaryIO

MAX_BYTES = 1 << 20
"""Bytes read after which the file is truncated."""
MAX_LINE_BYTES = 4096
"""Length limit of a shown line; the rest is left out."""
_CLOCK = re.compile(r"^\d\d:\d\d:\d\d ")
"""Time prefix of the network process's lines (`peer/network/process/main.py`); the panel's news have their own time."""


class KeptErrors:
    """Captures what this process and its children write to standard error, from `open` until `close`."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._terminal: int | None = None
        self._read_bytes = 0
        self._begun = b""

    def open(self) -> None:
        """Begin, if standard error is a terminal."""
        try:
            if self._file is not None or not os.isatty(2):
                return
            file = tempfile.TemporaryFile(prefix="murmuration-")  # noqa: SIM115 (closed in `close`)
            # Writers append, even after the read part was truncated.
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
            self._terminal = os.dup(2)
            sys.stderr.flush()
            os.dup2(file.fileno(), 2)
        except OSError:
            return  # no space: continue without capturing
        self._file = file

    def lines(self) -> list[str]:
        """Return the complete lines written since the last call."""
        if self._file is None:
            return []
        try:
            new = os.pread(self._file.fileno(), MAX_BYTES, self._read_bytes)
            self._read_bytes += len(new)
            if self._read_bytes >= MAX_BYTES:
                os.ftruncate(self._file.fileno(), 0)
                self._read_bytes = 0
        except OSError:
            return []
        *whole, self._begun = (self._begun + new).split(b"\n")
        self._begun = self._begun[:MAX_LINE_BYTES]
        texts = (line[:MAX_LINE_BYTES].decode("utf-8", "replace") for line in whole if line.strip())
        return [_CLOCK.sub("", text) for text in texts]

    def close(self) -> None:
        """Restore standard error, and write the unread rest to it."""
        file, self._file = self._file, None
        if file is None or self._terminal is None:
            return
        with contextlib.suppress(OSError):
            sys.stderr.flush()
            os.dup2(self._terminal, 2)
            os.close(self._terminal)
            rest = self._begun + os.pread(file.fileno(), MAX_BYTES, self._read_bytes)
            if rest:
                os.write(2, rest)
        file.close()
