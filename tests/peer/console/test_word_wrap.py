"""Sentences on a terminal: broken between words, and whole where they are copied or read by programs."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from peer.console.plain_console import PlainConsole
from peer.console.word_wrap import fitting, wrapped
from peer.import_path import python_command, python_environment
from peer.panel.plain_and_json_views import PlainView
from peer.panel.screen_painter import Painter

LINK = (
    "murmuration://tinybytes.abcdefghij234567abcd@203.0.113.5:4001/12D3KooWRwrzCMWT9dfFDzGopyHLHgzUb2AcVRwHJHM9zXN8vNvQ"
)
SENTENCE = "'foo' is neither a run id nor the name of a run here; expected NAME.FINGERPRINT, a link or a page."


@contextmanager
def terminal(columns: int) -> Iterator[tuple[int, TextIO]]:
    """Both ends of a terminal of that width: what it shows, and what is written to."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(theirs, "w", encoding="utf-8") as stream:
        yield ours, stream
    os.close(ours)


def shown(ours: int) -> list[str]:
    said = b""
    while select.select([ours], [], [], 0.2)[0]:
        said += os.read(ours, 65536)
    return said.decode().replace("\r", "").splitlines()


@pytest.mark.parametrize("columns", [40, 80, len(SENTENCE)])
def test_a_sentence_is_broken_between_words(columns: int) -> None:
    lines = wrapped(SENTENCE, columns)
    assert " ".join(lines) == SENTENCE
    assert all(len(line) <= columns for line in lines)


def test_what_is_copied_stays_in_one_piece() -> None:
    command = f"peer join {LINK}"
    assert wrapped(f"11:03:52 Others join with: {command}", 80) == ["11:03:52 Others join with:", command]
    assert f"`{command}`," in wrapped(f"Do this: `{command}`, and not that.", 60)
    assert wrapped(LINK, 40) == [LINK]


def test_only_a_terminal_has_lines_of_its_width() -> None:
    assert fitting(SENTENCE, io.StringIO()) == SENTENCE
    with terminal(60) as (_, stream):
        assert fitting(SENTENCE, stream) == "\n".join(wrapped(SENTENCE, 60))
        assert fitting(f"short\n{SENTENCE}", stream).startswith("short\n'foo'")


def test_plain_lines_and_goodbyes_keep_their_words() -> None:
    with terminal(60) as (ours, stream):
        PlainView(stream).note(SENTENCE)
        assert shown(ours) == wrapped(SENTENCE, 60)
        Painter(stream, {"TERM": "dumb"}).say([SENTENCE])
        assert shown(ours) == wrapped(SENTENCE, 60)


def test_a_console_tells_whole_words_beside_its_tables() -> None:
    stream = io.StringIO()
    PlainConsole(file=stream, width=40).tell(f"No peer is in the run now. {SENTENCE}")
    assert stream.getvalue().splitlines() == wrapped(f"No peer is in the run now. {SENTENCE}", 40)


def test_a_refused_command_keeps_its_words(tmp_path: Path) -> None:
    environment = {**python_environment(), "XDG_DATA_HOME": str(tmp_path), "TERM": "dumb"}
    for words in (["stop", "foo"], ["runs"], ["logs"]):
        with terminal(60) as (ours, stream):
            command = python_command("peer", *words)
            subprocess.run(command, stdin=stream, stdout=stream, stderr=stream, env=environment, check=False)
            lines = shown(ours)
        assert len(lines) > 1, lines
        assert all(len(line) <= 60 for line in lines), lines
        assert " ".join(lines).startswith(("peer: 'foo' is neither", "No run on this", "peer: No peer has written")), (
            lines
        )
