"""Keys on a pseudo-terminal: taken as they are pressed, and the terminal is left as it was found."""

from __future__ import annotations

import io
import os
import pty
import signal
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from peer.panel.live_panel import PanelView
from peer.panel.terminal_keys import Keys, keys_in
from peer.panel.updates import Action, Doing, LineLimits
from tests.kit.panels import NOW, an_evening
from tests.kit.peer_events import StringTerminal


@dataclass
class Board:
    """A terminal; `type` presses keys on it."""

    master: int
    stream: io.TextIOWrapper

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    @property
    def flags(self) -> int:
        return int(termios.tcgetattr(self.stream.fileno())[3])


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    master, slave = pty.openpty()
    # Not the controlling terminal of the test's process: there this process is in front.
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())
    with os.fdopen(slave, encoding="utf-8") as stream:
        yield Board(master, stream)
    os.close(master)


def test_keys_come_one_by_one_and_the_terminal_is_given_back(board: Board) -> None:
    before = board.flags
    keys = Keys(board.stream)
    assert not keys.are_there
    keys.open()
    assert keys.are_there
    assert not board.flags & (termios.ICANON | termios.ECHO)
    assert board.flags & termios.ISIG  # Ctrl+C and Ctrl+Z stay signals
    assert keys.pressed() == []
    board.type("qp")
    assert keys.pressed() == ["q", "p"]
    for part in ("d\x1b[200~q", "q" * 250, "q" * 250, "q\x1b[20"):
        board.type(part)
        assert keys.pressed() == (["d"] if part[0] == "d" else []), "a paste is not over before its end"
    board.type("1~p")
    assert keys.pressed()[1:] == ["p"]
    keys.close()
    keys.close()
    assert board.flags == before
    assert keys.pressed() == []


def test_a_job_in_the_background_touches_nothing(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp() + 1)
    before = board.flags
    keys = Keys(board.stream)
    keys.open()
    assert (keys.are_there, keys.is_in_front, keys.pressed()) == (False, False, [])
    assert board.flags == before


def test_a_terminal_of_no_session_is_used_all_the_same() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, encoding="utf-8") as stream:
        keys = Keys(stream)
        assert keys.is_in_front
        keys.open()
        os.write(master, b"q")
        assert keys.pressed() == ["q"]
        keys.close()
    os.close(master)


def test_without_a_terminal_there_are_no_keys() -> None:
    for stream in (None, io.StringIO("q")):
        keys = Keys(stream)
        keys.open()
        assert (keys.are_there, keys.is_in_front, keys.pressed()) == (False, True, [])
        keys.close()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"q\r\n\x7f", ["q", "enter", "enter", "backspace"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[A\x1b[1;5Cq\x1bOP\x1b[15~d", ["q", "d"]),
        ("é\x00\x05?".encode(), ["é", "?"]),
        (b"\xff\xfe", []),
        (b"d\x1b[200~quit\r\n\x1b[Ap\x1b[201~i\x1b[200~q\x1b[201~", ["d", "pasted:quit[Ap", "i", "pasted:q"]),
    ],
)
def test_what_was_pressed(data: bytes, expected: list[str]) -> None:
    assert keys_in(data) == expected


def test_the_panel_does_what_its_keys_say(board: Board) -> None:
    done: list[Action] = []
    terminal = StringTerminal()
    before = board.flags
    view = PanelView(terminal, an_evening(), done.append, board.stream, {"TERM": "xterm"})
    view.tick(NOW)
    assert "q leave" in terminal.getvalue()
    assert "Words" not in terminal.getvalue()
    board.type("?")
    view.tick(NOW + 0.1)  # at once, and not when the next picture is due
    assert "Words" in terminal.getvalue()
    board.type("pl2\r\r")
    view.tick(NOW + 0.2)
    board.type("q")
    view.tick(NOW + 0.3)
    assert done == ["rest", LineLimits(2.0, None), "leave"]
    view.close()
    assert board.flags == before


@pytest.mark.parametrize("page", ["", "?", "i", "l2\x1b"])
def test_every_page_says_at_once_that_the_peer_is_leaving(board: Board, page: str) -> None:
    terminal = StringTerminal()

    def act(action: Action) -> None:
        assert action == "leave"
        view.tell(Doing("leaving", "leaving: finishing the step"))

    view = PanelView(terminal, an_evening(), act, board.stream, {"TERM": "xterm"})
    view.tick(NOW)
    board.type(page)
    view.tick(NOW + 0.1)
    assert "Leaving" not in terminal.getvalue()
    board.type("q")
    view.tick(NOW + 0.2)
    assert "Leaving: finishing the step" in terminal.getvalue()
    terminal.truncate(0)
    view.tick(NOW + 9.0)
    assert "q leave" not in terminal.getvalue()
    view.close()


def test_the_terminal_is_given_back_even_if_the_output_is_stuck(board: Board) -> None:
    before = board.flags
    view = PanelView(StringTerminal(), an_evening(), keyboard=board.stream, environ={"TERM": "xterm"})
    view.tick(NOW)
    assert board.flags != before
    view.restore()
    assert board.flags == before


def test_ctrl_z_gives_the_terminal_back_before_the_process_stops(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, before, seen = StringTerminal(), board.flags, []
    view = PanelView(terminal, an_evening(), keyboard=board.stream, environ={"TERM": "xterm"})
    view.tick(NOW)

    def stop(thread: int, number: int) -> None:
        is_stop = (thread, number) == (threading.get_ident(), signal.SIGSTOP)
        seen.append((is_stop, board.flags == before, terminal.getvalue().endswith("\x1b[?1049l")))

    monkeypatch.setattr(signal, "pthread_kill", stop)
    view.suspend_soon()
    view.tick(NOW + 0.1)
    assert seen == [(True, True, True)]
    # And here it is again after `fg`.
    assert board.flags != before
    assert terminal.getvalue().count("\x1b[?1049h") == 2
    view.close()
