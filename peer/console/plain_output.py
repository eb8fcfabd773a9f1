"""The one way to a terminal: text of others is never a control, an escape sequence, or markup.

A run's name, a member's sentence or a file's field may end in a line that is printed, in an error or in a log. So it is
not the callers who look for such characters: standard output and error are replaced while a command runs.
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from dht.ground.fields import printable

LAYOUT = "\n\t"
"""Characters that lines and tables are made of. Within a remote's text they were replaced where it came in."""


class PlainOutput:
    """A text stream through which only printable text passes, in whatever encoding it has."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def rich_proxied_file(self) -> TextIO:
        """Where rich writes, whose own colours are escape sequences; see `plain_console.py`."""
        return self._stream

    def write(self, text: str) -> int:
        """As of any text stream; what cannot be shown is replaced."""
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
    """Standard output and error let printable text through only, until the end of the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = make_plain(before[0]), make_plain(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_plain(stream: TextIO) -> TextIO:
    """`stream`, through which only printable text passes; itself when it is one already, or nothing."""
    if stream is None or isinstance(stream, PlainOutput):
        return stream
    return cast(TextIO, PlainOutput(stream))


def reader_has_left(stream: TextIO) -> bool:
    """Whether what reads a pipe has gone, as `| head` does: who prints seldom would wait for nobody."""
    found = select.poll()
    try:
        found.register(stream.fileno(), 0)
    except (OSError, ValueError):  # no file, as under a test
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in found.poll(0))
