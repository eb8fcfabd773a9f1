"""A run's progress: its clock from members' announced anchors, its expected arrival, and whether it has
stalled. Pure.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Final

STALLED_SECONDS: Final = 120.0
"""A time without commits that indicates a fault: rounds take seconds, and a slow one a minute."""
STALLED_TIMES: Final = 5
"""For runs with longer rounds, the multiple of the typical length; a single late round is normal."""
SPEED_SECONDS: Final = 86_400.0
"""A run's speed is measured over the last day, because a swarm of home machines varies with the hours."""
MIN_SPEED_SECONDS: Final = 120.0
"""Shortest span for a speed; shorter spans only show the noise of a few rounds."""
NUM_WINDOWS: Final = 8
STANDARD_ERRORS: Final = 2.0
"""Width on both sides of the mean speed: a 95% interval if the windows were independent."""
MAX_SECONDS: Final = 100 * 365.25 * 86_400.0
"""Arrivals later than this count as never."""

Clock = Sequence[tuple[float, float]]
"""(unix seconds, tokens committed by then), oldest first."""


def committed_tokens(lineage_tokens: Iterable[int]) -> int:
    """Return the run's clock: tokens in the signed commits that led to the anchor of the fragment with the most tokens.

    Each fragment receives all work of all peers in turn, so the last committed fragment contains most of it.

    Args:
        lineage_tokens: tokens of each fragment.
    """
    return max(lineage_tokens, default=0)


def has_stalled(silent_seconds: float, usual_seconds: float) -> bool:
    """Return whether a recurring event is overdue.

    Args:
        silent_seconds: time since the last event.
        usual_seconds: typical time between two events; 0: unknown.
    """
    return silent_seconds > max(STALLED_SECONDS, STALLED_TIMES * usual_seconds)


def arrival(clock: Clock, tokens_left: float, now: float) -> tuple[float | None, float | None]:
    """Return (soonest, latest) unix seconds at which `tokens_left` more tokens are committed; None if unknown.

    Uses the mean speed of the last day and its standard error over `NUM_WINDOWS` parts of it.
    """
    first = max(0, bisect.bisect_left(clock, now - SPEED_SECONDS, key=_at) - 1)
    kept = clock[first:]
    begin = max(now - SPEED_SECONDS, kept[0][0]) if kept else now
    span = (kept[-1][0] if kept else now) - begin
    if span < MIN_SPEED_SECONDS:
        return None, None
    edges = [begin + span * part / NUM_WINDOWS for part in range(NUM_WINDOWS + 1)]
    reached = [clock_at(kept, at) for at in edges]
    speeds = [(after - before) * NUM_WINDOWS / span for before, after in itertools.pairwise(reached)]
    mean = fmean(speeds)
    error = STANDARD_ERRORS * stdev(speeds) / math.sqrt(NUM_WINDOWS)
    return _when(now, tokens_left, mean + error), _when(now, tokens_left, mean - error)


def clock_at(clock: Clock, at: float) -> float:
    """Return the tokens committed at `at`, interpolated linearly between two readings.

    Raises:
        IndexError: there are no readings.
    """
    after = min(bisect.bisect_left(clock, at, key=_at), len(clock) - 1)
    (one_at, one), (other_at, other) = clock[max(0, after - 1)], clock[after]
    if other_at <= one_at or at >= other_at:
        return other
    return one + (other - one) * max(0.0, at - one_at) / (other_at - one_at)


def _at(reading: tuple[float, float]) -> float:
    return reading[0]


def _when(now: float, tokens: float, speed: float) -> float | None:
    return now + tokens / speed if speed > 0 and tokens / speed < MAX_SECONDS else None
