"""How far a run is on the way to its goal, and when it will be there at today's speed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dht.ground.quantities import arrival_text
from peer.run_clock import arrival


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
            clock = [(point.at, point.tokens) for point in history.points]
            soonest_at, latest_at = arrival(clock, goal.tokens - tokens, state.now)
        return GoalProgress("tokens", goal.tokens, tokens, share, soonest_at, latest_at)
    if goal.until is not None:
        begin_at = state.run.starts_at if state.run.starts_at is not None else history.started_at
        share = 1.0 if goal.until <= begin_at else (state.now - begin_at) / (goal.until - begin_at)
        return GoalProgress("until", goal.until, state.now, min(1.0, max(0.0, share)), goal.until, goal.until)
    if goal.loss is not None:
        measured = [point.validation_loss for point in history.points if point.validation_loss is not None]
        value = state.view.validation_loss if state.view.validation_loss is not None else next(reversed(measured), None)
        first = measured[0] if measured else value
        if value is None or first is None:
            return GoalProgress("loss", goal.loss, None, 0.0)
        way = first - goal.loss
        share = 1.0 if value <= goal.loss or way <= 0 else min(1.0, max(0.0, (first - value) / way))
        return GoalProgress("loss", goal.loss, value, share)
    return None


def when_text(progress: GoalProgress | None, now: float) -> str:
    """As exact as it is known, empty when it is not; see `arrival_text`."""
    if progress is None or progress.soonest_at is None:
        return ""
    return arrival_text(progress.soonest_at, progress.latest_at, now)
