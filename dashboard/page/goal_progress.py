"""Progress of a run towards the end of its schedule, and its expected arrival at the present speed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dht.ground.quantities import arrival_text
from peer.view.run_clock import arrival


@dataclass(frozen=True, slots=True)
class GoalProgress:
    """The tokens at which a run's schedule ends, and the tokens so far."""

    target: int
    value: int
    share: float
    """0 to 1."""
    soonest_at: float | None = None
    """Unix seconds; None: not known."""
    latest_at: float | None = None


def progress_of(state: DashboardState, history: HistoryView) -> GoalProgress | None:
    """Return the progress of the run; None: its schedule has no end."""
    tokens = state.view.committed_tokens
    goal = None if state.run is None else state.run.goal_tokens
    if goal is None:
        return None
    soonest_at, latest_at = None, None
    if state.phase == "live" and tokens < goal:
        clock = [(point.at, point.tokens) for point in history.points]
        soonest_at, latest_at = arrival(clock, goal - tokens, state.now)
    return GoalProgress(goal, tokens, min(1.0, tokens / goal), soonest_at, latest_at)


def when_text(progress: GoalProgress | None, now: float) -> str:
    """Return the expected arrival, as exact as it is known; empty if unknown. See `arrival_text`."""
    if progress is None or progress.soonest_at is None:
        return ""
    return arrival_text(progress.soonest_at, progress.latest_at, now)
