"""When a child process that died is started again: soon, later each time, at last no more. Pure: time is given."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 3600.0
MAX_RESTARTS = 20
"""In one window; a process that dies more often will not get better, and its owner should hear of it."""
MAX_RESTARTS_AT_START = 4
"""Before it has found its run: its owner sits before it, and what is wrong from the beginning mostly stays wrong."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
CALM_SECONDS = 300.0
"""Deaths longer ago than that do not make the next pause longer."""


class Restarts:
    """The deaths of one child."""

    def __init__(self) -> None:
        self._died_at: deque[float] = deque()

    def pause_seconds(self, now: float, *, has_begun: bool) -> float | None:
        """It died at `now`: how long to wait until it is started again; None: it is not.

        Args:
            now: by a clock that nobody sets.
            has_begun: it had found its run.
        """
        while self._died_at and now - self._died_at[0] >= WINDOW_SECONDS:
            self._died_at.popleft()
        num_lately = sum(now - at < CALM_SECONDS for at in self._died_at)
        if len(self._died_at) >= (MAX_RESTARTS if has_begun else MAX_RESTARTS_AT_START):
            return None
        self._died_at.append(now)
        return min(FIRST_PAUSE_SECONDS * 2.0**num_lately, LONGEST_PAUSE_SECONDS)
