"""Standard error while a panel has the screen: kept, said, and never lost."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from peer.panel.stderr_capture import MAX_LINE_BYTES, KeptErrors


@contextmanager
def a_terminal() -> Iterator[int]:
    """The other end of a terminal that standard error is inside; not a fixture, for pytest changes it in between."""
    before = os.dup(2)
    master, slave = pty.openpty()
    os.dup2(slave, 2)
    os.set_blocking(master, False)
    try:
        yield master
    finally:
        os.dup2(before, 2)
        for one in (before, master, slave):
            os.close(one)


def shown(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except BlockingIOError:
        return b""


def test_what_others_write_is_said_in_whole_lines_and_the_rest_at_the_end() -> None:
    with a_terminal() as terminal:
        kept = KeptErrors()
        kept.open()
        os.write(2, b"a warning\nhalf")
        assert kept.lines() == ["a warning"]
        assert kept.lines() == []
        os.write(2, b" a line\n" + b"x" * 2 * MAX_LINE_BYTES + b"\nnot read")
        assert kept.lines() == ["half a line", "x" * MAX_LINE_BYTES]
        assert shown(terminal) == b""
        kept.close()
        assert shown(terminal) == b"not read"
        os.write(2, b"after")
        assert shown(terminal) == b"after"
        kept.close()


def test_the_file_begins_anew_when_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_terminal():
        monkeypatch.setattr("peer.panel.stderr_capture.MAX_BYTES", 64)
        kept = KeptErrors()
        kept.open()
        said = []
        for number in range(20):
            os.write(2, b"line %02d\n" % number)
            said += kept.lines()
        kept.close()
        assert said == [f"line {number:02d}" for number in range(20)]


def test_an_error_output_that_is_no_terminal_is_left_alone() -> None:
    before = os.fstat(2).st_ino
    kept = KeptErrors()
    kept.open()
    if not os.isatty(2):
        assert os.fstat(2).st_ino == before
    kept.close()
    assert os.fstat(2).st_ino == before


def test_a_line_is_said_without_the_time_that_news_have_anyway() -> None:
    with a_terminal():
        kept = KeptErrors()
        kept.open()
        os.write(2, b"11:16:06 The disk is slow\nWARNING: of others\n11:16:06 ERROR numpy.core: theirs\n")
        assert kept.lines() == ["The disk is slow", "WARNING: of others", "ERROR numpy.core: theirs"]
        kept.close()
