"""Checks whether the training loop that entered a session is still running, from the stack frames of this process.

A `with` block does not need this check, because it always ends its session. A session that was entered by hand, or by
a callback of a library, stays open when an exception ends its loop, as in an interrupted notebook cell.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_OURS = ("murmuration", "peer")
_CALLBACKS = "murmuration.integrations."
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class RunningLoop:
    """The loop of a session; created while the session is entered.

    Attributes:
        is_library: whether a library's training loop entered the session through a callback. Such a loop makes all its
            steps in the call that entered the session.
    """

    def __init__(self) -> None:
        callers = [*_outwards(sys._getframe(1))]
        place = next(place for place, frame in enumerate(callers) if not _is_ours(frame))
        self.is_library = any(_module(frame).startswith(_CALLBACKS) for frame in callers[:place])
        is_stacked = any(frame.f_code.co_name == "enter_context" for frame in callers[:place])
        # An `ExitStack` leaves the session as a `with` block does, wherever the stack is closed.
        self._frame = None if is_stacked else _whole_call(callers[place:]) if self.is_library else callers[place]

    def is_over(self, stepped_by: threading.Thread | None) -> bool:
        """Return whether the call that entered the session has ended and no other thread continues the loop.

        Args:
            stepped_by: the thread that made the last step; None if there was no step.
        """
        frame = self._frame
        if frame is None or any(running is frame for running in _running()):
            return False
        if frame.f_code.co_flags & _SUSPENDED:
            return False  # a suspended generator or coroutine may resume, and ends the session when it is deleted
        is_elsewhere = stepped_by not in (None, threading.current_thread()) and stepped_by.is_alive()
        return self.is_library or not is_elsewhere


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _running() -> Iterator[FrameType]:
    for innermost in sys._current_frames().values():
        yield from _outwards(innermost)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_ours(frame: FrameType) -> bool:
    return _module(frame).partition(".")[0] in _OURS or _module(frame) == "contextlib"


def _whole_call(callers: list[FrameType]) -> FrameType:
    """Return the outermost of the leading frames that belong to the same library: its `train` or `fit`."""
    library = _module(callers[0]).partition(".")[0]
    whole = callers[0]
    for frame in callers:
        if _module(frame).partition(".")[0] != library:
            break
        whole = frame
    return whole
