"""How far a run is on the way to its goal, and when it will be there at today's speed. Pure."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dashboard.history_facts import HistoryPoint, HistoryView
from dashboard.observe.dashboard_state import DashboardState
from peer.dates import arrival_text

SPEED_SECONDS: Final = 86_400.0
"""The speed is that of the last day: a swarm of homes breathes with the hours."""
MIN_SPEED_SECONDS: Final = 120.0
"""Less than this is no speed but the noise of a few rounds."""
NUM_WINDOWS: Final = 8
STANDARD_ERRORS: Final = 2.0
"""On both sides of the mean speed: 19 of 20, if the windows were independent."""
MAX_SECONDS: Final = 100 * 365.25 * 86_400.0
"""Later than this is never."""


@dataclass(frozen=True, slots=True)
class GoalProgress:
    """The goal, and what of it is reached."""

    kind: Literal["tokens", "until", "loss"]
    target: float
    """Tokens, unix seconds, or in the unit of the run's losses."""
    value: float | None
    """In the same unit; None: not measured yet."""
    share: float
    """0 to 1."""
    soonest_at: float | None = None
    """Unix seconds; None: nobody can say."""
    latest_at: float | None = None


def progress_of(state: DashboardState, history: HistoryView, tokens: int) -> GoalProgress | None:
    """Where the run stands; None: its owner has set no goal.

    Args:
        tokens: committed so far.
    """
    if state.run is None:
        return None
    goal = state.run.goal
    if goal.tokens is not None:
        share = min(1.0, tokens / goal.tokens)
        soonest_at, latest_at = None, None
        if state.phase == "live" and tokens < goal.tokens:
            soonest_at, latest_at = arrival(history.points, goal.tokens - tokens, state.now)
        return GoalProgress("tokens", goal.tokens, tokens, share, soonest_at, latest_at)
    if goal.until is not None:
        begin_at = state.run.starts_at if state.run.starts_at is not None else history.started_at
        share = 1.0 if goal.until <= begin_at else (state.now - begin_at) / (goal.until - begin_at)
        return GoalProgress("until", goal.until, state.now, min(1.0, max(0.0, share)), goal.until, goal.until)
    if goal.loss is not None:
        measured = [point.held_out_loss for point in history.points if point.held_out_loss is not None]
        value = state.held_out_loss if state.held_out_loss is not None else next(reversed(measured), None)
        first = measured[0] if measured else value
        if value is None or first is None:
            return GoalProgress("loss", goal.loss, None, 0.0)
        way = first - goal.loss
        share = 1.0 if value <= goal.loss or way <= 0 else min(1.0, max(0.0, (first - value) / way))
        return GoalProgress("loss", goal.loss, value, share)
    return None


def arrival(points: Sequence[HistoryPoint], tokens_left: float, now: float) -> tuple[float | None, float | None]:
    """(soonest, latest) unix seconds at which `tokens_left` more tokens are committed; None where nobody can say.

    The mean speed of the last day and its standard error over `NUM_WINDOWS` parts of it.
    """
    times = [point.at for point in points]
    first = max(0, bisect.bisect_left(times, now - SPEED_SECONDS) - 1)
    kept = points[first:]
    begin = max(now - SPEED_SECONDS, kept[0].at) if kept else now
    span = (kept[-1].at if kept else now) - begin
    if span < MIN_SPEED_SECONDS:
        return None, None
    edges = [begin + span * part / NUM_WINDOWS for part in range(NUM_WINDOWS + 1)]
    reached = [tokens_at(kept, at) for at in edges]
    speeds = [(after - before) * NUM_WINDOWS / span for before, after in itertools.pairwise(reached)]
    mean = statistics.fmean(speeds)
    error = STANDARD_ERRORS * statistics.stdev(speeds) / math.sqrt(NUM_WINDOWS)
    return _at(now, tokens_left, mean + error), _at(now, tokens_left, mean - error)


def tokens_at(points: Sequence[HistoryPoint], at: float) -> float:
    """Tokens committed at `at`, in a straight line between two of `points`.

    Raises:
        IndexError: no points.
    """
    after = min(bisect.bisect_left([point.at for point in points], at), len(points) - 1)
    one, other = points[max(0, after - 1)], points[after]
    if other.at <= one.at or at >= other.at:
        return other.tokens
    return one.tokens + (other.tokens - one.tokens) * max(0.0, at - one.at) / (other.at - one.at)


def _at(now: float, tokens: float, speed: float) -> float | None:
    return now + tokens / speed if speed > 0 and tokens / speed < MAX_SECONDS else None


def when_text(progress: GoalProgress | None, now: float) -> str:
    """As exact as it is known, empty when it is not; see `arrival_text`."""
    if progress is None or progress.soonest_at is None:
        return ""
    return arrival_text(progress.soonest_at, progress.latest_at, now)
