"""Clocks: durations that continue while the machine sleeps, and unix seconds that do not follow changes of the wall
clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import Final

CLOCK_SKEW_SECONDS: Final = 60.0
"""Tolerated difference of two peers' wall clocks; machines without time service drift by seconds a day."""
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def steady_seconds() -> float:
    """Return seconds since an arbitrary moment.

    `time.monotonic` stops while a laptop is suspended. On Linux CLOCK_BOOTTIME continues; on macOS the system's
    CLOCK_MONOTONIC (unlike Python's) does. Other systems have no continuous clock.
    """
    if _BOOTTIME is not None:
        return time.clock_gettime(_BOOTTIME)
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.monotonic()


class SwarmClock:
    """Unix seconds for data that others check: records, proofs and answers. Call it to get the time.

    It reads the wall clock once and then counts by a clock that cannot be set. So if the owner or a time service sets
    the wall clock meanwhile, nothing changes between this peer and others.

    Args:
        wall: returns unix seconds; may be set at any time.
        steady: returns seconds that continue while the machine sleeps.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall, self._steady = wall, steady
        self._ahead = wall() - steady()
        """Seconds by which this clock is ahead of the steady one."""

    def __call__(self) -> float:
        return self._ahead + self._steady()

    def seconds_off(self, members: Sequence[float]) -> float:
        """Return by how much this clock is ahead of most members' clocks; 0 if it is right.

        The clock is wrong if more than half of `members` (their present unix seconds) differ from it by more than
        `CLOCK_SKEW_SECONDS` in the same direction, so fewer liars change nothing. If the wall clock is right by then,
        this clock follows it from now on; it never follows the members' times.
        """
        off = _off(self(), members)
        if off and not _off(self._wall(), members):
            self._ahead, off = self._wall() - self._steady(), 0.0
        return off

    def agrees_with(self, member: float) -> bool:
        """Return whether a member's clock agrees with this one closely enough for the records of two peers."""
        return abs(self() - member) <= CLOCK_SKEW_SECONDS


def _off(now: float, members: Sequence[float]) -> float:
    ahead = [now - shown for shown in members]
    for side in (1, -1):
        wrong = [seconds for seconds in ahead if side * seconds > CLOCK_SKEW_SECONDS]
        if 2 * len(wrong) > len(ahead):
            return median_low(wrong)
    return 0.0
