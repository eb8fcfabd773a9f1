"""Ctrl+C is answered by a process beside this one, whatever keeps the interpreter busy."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Iterator

import pytest

from peer.console.interrupt_while_loading import AnswerBeside


@pytest.fixture
def quiet_signals() -> Iterator[None]:
    """Handlers of Python that do nothing, so that only the process beside answers."""
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGINT, signal.SIGUSR1)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.usefixtures("quiet_signals")
def test_the_first_ctrl_c_alone_is_answered_once() -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        beside = AnswerBeside(terminal, r"\033[2KLeaving.\n")
        for one in (signal.SIGUSR1, signal.SIGINT, signal.SIGINT):
            os.kill(os.getpid(), one)
        assert os.read(ours, 100) == b"\x1b[2KLeaving.\r\n"
        beside.close()
        beside.close()
    with pytest.raises(OSError, match="Input/output error"):  # nothing more is there
        os.read(ours, 100)
    os.close(ours)
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.usefixtures("quiet_signals")
def test_nobody_answers_in_a_pipe() -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        beside = AnswerBeside(stream, "Leaving.")
        os.kill(os.getpid(), signal.SIGINT)
        beside.close()
    assert os.read(reader, 100) == b""
    os.close(reader)
