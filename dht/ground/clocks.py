"""The clock for durations, which goes on while the machine sleeps, and unix seconds that nobody sets meanwhile."""

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
    """Seconds since some moment.

    `time.monotonic` stands still while a laptop is suspended. On Linux CLOCK_BOOTTIME goes on, on macOS the clock that
    the system calls CLOCK_MONOTONIC (Python's is another there). Elsewhere there is none.
    """
    if _BOOTTIME is not None:
        return time.clock_gettime(_BOOTTIME)
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.monotonic()


class SwarmClock:
    """Unix seconds for what others check: records, proofs and answers. Call it for the time.

    It reads the wall clock once and counts on by a clock that nobody sets. So a wall clock that is set meanwhile, by
    its owner or a time service, changes nothing that others see of this peer, nor what it sees of them.

    Args:
        wall: returns unix seconds; may be set at any time.
        steady: returns seconds that go on while the machine sleeps.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall, self._steady = wall, steady
        self._ahead = wall() - steady()
        """Seconds by which this clock is ahead of the steady one."""

    def __call__(self) -> float:
        return self._ahead + self._steady()

    def seconds_off(self, members: Sequence[float]) -> float:
        """Return by how much this clock is ahead of what most members' clocks show now; 0 when it is right.

        A clock is wrong when more than half of `members` (unix seconds that they show now) differ from it by more than
        `CLOCK_SKEW_SECONDS`, all to the same side. So fewer liars than that change nothing. If the wall clock was set
        right meanwhile, this clock goes by it from now on; it never goes by what members say.
        """
        off = _off(self(), members)
        if off and not _off(self._wall(), members):
            self._ahead, off = self._wall() - self._steady(), 0.0
        return off

    def agrees_with(self, member: float) -> bool:
        """Whether a member's clock shows this time, as far as the records of two peers need it."""
        return abs(self() - member) <= CLOCK_SKEW_SECONDS


def _off(now: float, members: Sequence[float]) -> float:
    ahead = [now - shown for shown in members]
    for side in (1, -1):
        wrong = [seconds for seconds in ahead if side * seconds > CLOCK_SKEW_SECONDS]
        if 2 * len(wrong) > len(ahead):
            return median_low(wrong)
    return 0.0
