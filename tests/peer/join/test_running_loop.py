"""When the loop of a session is over: what leaves its session open, and what still goes on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from peer.join.running_loop import RunningLoop


def library(name: str, source: str) -> dict[str, Any]:
    """What a module of that name defines."""
    module = ModuleType(name)
    exec(source, vars(module))
    return vars(module)


class Session:
    """Enters as a session does, from a module of ours."""

    loop: RunningLoop
    __enter__ = library(
        "peer.join.some_session",
        "from peer.join.running_loop import RunningLoop\n"
        "def __enter__(self):\n    self.loop = RunningLoop()\n    return self",
    )["__enter__"]

    def __exit__(self, *error: object) -> None: ...

    def is_over(self, stepped_by: threading.Thread | None = None) -> bool:
        return self.loop.is_over(stepped_by)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, None])
def test_a_cell_that_entered_by_hand_is_over_however_it_ends(error: type[BaseException] | None) -> None:
    session = Session()

    def cell() -> None:
        session.__enter__()
        assert not session.is_over()
        if error is not None:
            raise error

    with contextlib.suppress(KeyboardInterrupt, ZeroDivisionError):
        cell()
    assert session.is_over()
    assert session.is_over(threading.current_thread())


def test_blocks_and_stacks_end_their_sessions_themselves() -> None:
    with Session() as outer, Session() as inner:
        assert not outer.is_over()
        assert not inner.is_over()

    def enter_into(stack: contextlib.ExitStack) -> Session:
        return stack.enter_context(Session())

    with contextlib.ExitStack() as stack:
        assert not enter_into(stack).is_over()


def test_a_loop_goes_on_in_another_thread_and_in_a_suspended_generator() -> None:
    began, end = threading.Event(), threading.Event()
    sessions: list[Session] = []

    def loop() -> None:
        with Session() as session:
            sessions.append(session)
            began.set()
            end.wait()

    thread = threading.Thread(target=loop)
    thread.start()
    began.wait()
    try:
        assert not sessions[0].is_over()
        # Entered by hand in a cell that is over, and stepped by a thread that still runs.
        by_hand = Session()
        (lambda: by_hand.__enter__())()
        assert not by_hand.is_over(thread)
    finally:
        end.set()
        thread.join()
    assert sessions[0].is_over()
    assert by_hand.is_over(thread)

    def steps() -> Iterator[Session]:
        with Session() as session:
            yield session

    suspended = steps()
    assert not next(suspended).is_over()


def test_a_callback_enters_for_the_whole_call_of_its_library() -> None:
    callback = library("murmuration.integrations.some", "def on_begin(session):\n    session.__enter__()")["on_begin"]
    fit = library(
        "some.trainer",
        "def begin(callback, session): callback(session)\n"
        "def fit(callback, session, step):\n    begin(callback, session)\n    step()",
    )["fit"]
    session = Session()

    def interrupted() -> None:
        assert not session.is_over()
        raise KeyboardInterrupt

    for _ in range(2):  # the same frame tries again: what it called is over
        with contextlib.suppress(KeyboardInterrupt):
            fit(callback, session, interrupted)
        assert session.is_over()
        assert session.is_over(threading.main_thread())
