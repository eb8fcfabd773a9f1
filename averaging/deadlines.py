"""Deadlines that are learned from what was seen, never fixed. Pure."""

from __future__ import annotations

import statistics
from collections import deque

_DEVIATION = 1.4826
"""Scales the median absolute deviation to a standard deviation for normal data."""


class LearnedDeadline:
    """median + 4 deviations of the last 32 durations, between hard bounds; `initial_seconds` until three were seen."""

    def __init__(self, initial_seconds: float, lowest_seconds: float, highest_seconds: float) -> None:
        self._initial_seconds = initial_seconds
        self._lowest_seconds = lowest_seconds
        self._highest_seconds = highest_seconds
        self._seen: deque[float] = deque(maxlen=32)

    def observe(self, seconds: float) -> None:
        """Add one duration that was seen; durations beyond the hard bound count as the bound."""
        self._seen.append(min(max(seconds, 0.0), self._highest_seconds))

    @property
    def seconds(self) -> float:
        """How long to wait now."""
        if len(self._seen) < 3:
            value = self._initial_seconds
        else:
            middle = statistics.median(self._seen)
            spread = statistics.median(abs(seconds - middle) for seconds in self._seen)
            value = middle + 4 * _DEVIATION * spread + 0.1 * middle
        return min(max(value, self._lowest_seconds), self._highest_seconds)


class LearnedPace:
    """The median time between the last few happenings of one kind."""

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._intervals: deque[float] = deque(maxlen=8)

    def observe(self, now: float) -> None:
        """It happened at `now`."""
        if self._last_at is not None:
            self._intervals.append(now - self._last_at)
        self._last_at = now

    @property
    def seconds(self) -> float | None:
        """Median interval; None before two happenings."""
        return statistics.median(self._intervals) if self._intervals else None
