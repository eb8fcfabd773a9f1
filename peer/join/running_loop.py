"""Whether the training loop that entered a session still runs, told from the frames on the stacks of this process.

A `with` block needs none of this: it ends its session whatever happens. A session that was entered by hand, or by a
callback of another library, stays open when an exception ends its loop, as in an interrupted cell of a notebook.
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
    """The loop of a session; made while the session is entered.

    Attributes:
        is_library: a training loop of another library entered it, through a callback, and steps nowhere else.
    """

    def __init__(self) -> None:
        callers = [*_outwards(sys._getframe(1))]
        place = next(place for place, frame in enumerate(callers) if not _is_ours(frame))
        self.is_library = any(_module(frame).startswith(_CALLBACKS) for frame in callers[:place])
        is_stacked = any(frame.f_code.co_name == "enter_context" for frame in callers[:place])
        # An `ExitStack` leaves as a `with` block does, from wherever it is closed.
        self._frame = None if is_stacked else _whole_call(callers[place:]) if self.is_library else callers[place]

    def is_over(self, stepped_by: threading.Thread | None) -> bool:
        """Whether the call that entered the session has returned or failed, and no other thread goes on with it.

        Args:
            stepped_by: the thread that took the last step; None: there was none.
        """
        frame = self._frame
        if frame is None or any(running is frame for running in _running()):
            return False
        if frame.f_code.co_flags & _SUSPENDED:
            return False  # it may go on, and ends the session when it is thrown away
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
    """The outermost of the frames at the beginning that belong to one library: its `train` or `fit`."""
    library = _module(callers[0]).partition(".")[0]
    whole = callers[0]
    for frame in callers:
        if _module(frame).partition(".")[0] != library:
            break
        whole = frame
    return whole
