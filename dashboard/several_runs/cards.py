"""The index of several runs: a card for each, also for those that could not be opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.observe.run_phase import Phase
from dashboard.page.goal_progress import progress_of
from dashboard.page.page import Frame, document
from dashboard.page.run_result import result_of

PHASE_WORDS = {"no run": "run not found", "looking": "looking for the swarm", "empty": "waiting for people"}


@dataclass(frozen=True, slots=True)
class RunCard:
    """One run as the index shows it."""

    run_id: str
    path: str
    """Of its page; empty: it has none."""
    name: str
    phase: Phase = "starting"
    what: str = ""
    description: str = ""
    """By its owner."""
    tokens: int = 0
    num_people: int = 0
    validation_loss: float | None = None
    loss_unit: str = ""
    share: float | None = None
    """Of the way to its goal; None: it has none."""
    problem: str = ""
    """Why it is not watched, as a sentence."""


def run_path(run_id: str) -> str:
    """Where a server of several runs has the page of one of them; without a slash at the end."""
    return f"/r/{run_id}"


def card_of(state: DashboardState, history: HistoryView) -> RunCard:
    """The card of a run that is watched."""
    result = result_of(state, history)
    progress = progress_of(state, history, result.tokens)
    return RunCard(
        state.run_id,
        f"{run_path(state.run_id)}/",
        state.run_id.partition(".")[0],
        state.phase,
        state.run.what if state.run is not None else "",
        state.run.description if state.run is not None else "",
        result.tokens,
        result.num_people,
        result.validation_loss,
        state.run.loss_unit if state.run is not None else "",
        None if progress is None else progress.share,
        state.problem,
    )


def render_index(runs: Sequence[RunCard], frame: Frame) -> str:
    """The whole page."""
    return document("index.html", {"runs": runs, "phase_words": PHASE_WORDS, "stream_path": ""}, frame)
