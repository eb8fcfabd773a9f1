"""Detects that this process slept: a suspended machine, a stopped process, a busy loop. Pure: time is an argument.

Data found on waking arrived at an unknown time during the sleep. Code that judges others by arrival times uses `since`.
"""

from __future__ import annotations

GAP_SECONDS = 5.0
"""Longest time between two calls while awake: an awake loop reads the clock several times a second."""
SETTLE_SECONDS = 30.0
"""Time after waking until missed data has arrived: streams are reopened, and commits requested one by one."""


class Wakefulness:
    """Tracks sleep from frequent calls of `note`, with a clock that continues while the machine sleeps.

    Args:
        gap_seconds: a longer time between two calls of `note` counts as sleep.
    """

    def __init__(self, gap_seconds: float = GAP_SECONDS) -> None:
        self._gap_seconds = gap_seconds
        self._last: float | None = None
        self._slept_since = 0.0
        self._settled_at = 0.0

    def note(self, now: float) -> bool:
        """Note that the process runs at `now`. Return whether it slept since the last call."""
        last, self._last = self._last, now
        if last is None or now - last <= self._gap_seconds:
            return False
        self._slept_since = self._slept_since if last < self._settled_at else last
        self._settled_at = now + SETTLE_SECONDS
        return True

    def since(self, now: float) -> float:
        """Return the time after which new arrivals count: `now`, but soon after waking the time at which the sleep
        began.

        This also works before the first `note` after a sleep. If `note` is never called, no sleep is detected.
        """
        if self._last is not None:
            self.note(now)
        return self._slept_since if now < self._settled_at else now
