"""Detects that this process slept: a suspended machine, a stopped process, a busy loop. Pure: time is given.

What is found on waking came at an unknown time since. Code that judges others by when something came asks `since`.
"""

from __future__ import annotations

GAP_SECONDS = 5.0
"""Between two looks at the clock; a loop that is awake looks several times a second."""
SETTLE_SECONDS = 30.0
"""After waking, for what was missed to come in: streams are opened anew, and commits asked for one by one."""


class Wakefulness:
    """`note` is called often while awake, with a clock that goes on while the machine sleeps.

    Args:
        gap_seconds: between two calls of `note`; after a longer time this process slept.
    """

    def __init__(self, gap_seconds: float = GAP_SECONDS) -> None:
        self._gap_seconds = gap_seconds
        self._last: float | None = None
        self._slept_since = 0.0
        self._settled_at = 0.0

    def note(self, now: float) -> bool:
        """It is `now`, and this process runs; whether it has slept since the last call."""
        last, self._last = self._last, now
        if last is None or now - last <= self._gap_seconds:
            return False
        self._slept_since = self._slept_since if last < self._settled_at else last
        self._settled_at = now + SETTLE_SECONDS
        return True

    def since(self, now: float) -> float:
        """Return the time after which new arrivals count: `now`, but soon after waking the time of falling asleep.

        Also where it is found before the first `note` since then. Where `note` is never called, nobody sleeps.
        """
        if self._last is not None:
            self.note(now)
        return self._slept_since if now < self._settled_at else now
