"""The only access to a terminal: untrusted text never acts as a control, an escape sequence, or markup.

A run's name, a member's sentence or a file's field may be part of a printed line, an error or a log. Callers do not
check for such characters: standard output and error are replaced while a command runs.
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from dht.ground.fields import printable

LAYOUT = "\n\t"
"""Characters that form lines and tables. In a remote's text they were replaced on arrival."""


class PlainOutput:
    """A text stream that passes only printable text, in its own encoding."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream for rich, whose own colours are escape sequences; see `plain_console.py`."""
        return self._stream

    def write(self, text: str) -> int:
        """Write text as to any text stream. Characters that cannot be shown are replaced."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        clean = printable(text, LAYOUT).encode(encoding, "backslashreplace").decode(encoding)
        self._stream.write(clean)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """Make standard output and error pass printable text only, until the end of the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = make_plain(before[0]), make_plain(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_plain(stream: TextIO) -> TextIO:
    """Wrap `stream` so that only printable text passes. Returns `stream` itself if it is wrapped already or is None."""
    if stream is None or isinstance(stream, PlainOutput):
        return stream
    return cast(TextIO, PlainOutput(stream))


def reader_has_left(stream: TextIO) -> bool:
    """Return whether the reader of a pipe has ended, as with `| head`: a command that prints rarely would not
    notice.
    """
    found = select.poll()
    try:
        found.register(stream.fileno(), 0)
    except (OSError, ValueError):  # not a file, as under a test
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in found.poll(0))
