"""What a run has come to: the present figures, or the last ones that are known when nobody is there any more."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState

EARLY_SHARE: Final = 0.05
"""Of the tokens so far: a loss that this page first heard of later is not where the run began."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Figures that stay when the peers go; None: nobody has ever said."""

    tokens: int
    num_rounds: int
    validation_loss: float | None
    validation_at: float | None
    """Time at which it was first seen, unix seconds."""
    first_validation_loss: float | None
    """As this page saw it first, early in the run, if it was higher; the run may have begun higher still."""
    num_people: int
    """Number of people with a signed round."""
    ended_at: float | None
    """When the newest round closed, or else when somebody was last heard."""


def result_of(state: DashboardState, history: HistoryView) -> RunResult:
    """The state's figures where it has them, else those that the history kept from before."""
    points = history.points
    losses = [(point.validation_loss, point.at) for point in points if point.validation_loss is not None]
    loss = losses[-1][0] if losses else None
    # It stays in the points that follow: the first of the last that are equal says when it was measured.
    measured_at = min((at for _, at in takewhile(lambda told: told[0] == loss, reversed(losses))), default=None)
    if state.view.evaluation is not None:
        loss, measured_at = state.view.evaluation.loss, state.view.evaluated_at
    tokens = max(state.view.committed_tokens, points[-1].tokens if points else 0)
    seen = ((point.validation_loss, point.tokens) for point in points if point.validation_loss is not None)
    first, first_tokens = history.first_validation or next(seen, (None, 0))
    first = first if first_tokens <= EARLY_SHARE * tokens else None
    has_fallen = first is not None and loss is not None and loss < first
    newest_rounds = (row.seen_at for row in (*history.rounds[:1], *state.rounds[:1]))
    return RunResult(
        tokens=tokens,
        num_rounds=max(state.view.num_rounds, history.num_rounds, points[-1].rounds if points else 0),
        validation_loss=loss,
        validation_at=measured_at,
        first_validation_loss=first if has_fallen else None,
        num_people=sum(row.rank > 0 for row in history.contributors),
        ended_at=max(newest_rounds, default=state.heard_at),
    )
