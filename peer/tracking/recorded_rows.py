"""What is recorded: rows of numbers, of a peer from its events and of a run from its page. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dht.records.evaluation import Evaluation
from peer.events.peer_events import Event, LeftRun, TrainingProgressed
from peer.view.own_view import OwnView, own_view_after

_FIGURES = ("learning_rate", "tokens", "tokens_per_second", "wait_fraction", "run_tokens")
OWN_COLUMNS = ("loss", "validation_loss", *_FIGURES, "versions", "rounds")
"""Of a peer. `versions` is the sum over its fragments, `rounds` counts this session's."""

RUN_COLUMNS = (
    *("tokens", "rounds", "validation_loss", "train_loss", "num_trainers", "num_peers", "tokens_per_second"),
    "upload_bits_per_second",
)
"""Of a run, as a point of the page's curves has it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One moment of a record.

    Attributes:
        step: inner steps of a peer, which fall when a killed peer begins again at its last checkpoint; committed
            tokens of a run.
        at: unix seconds.
        values: by column; what was not measured is absent.
    """

    step: int
    at: float
    values: Mapping[str, float]


class OwnRows:
    """Rows from one peer's events: one with each report of the trainer that took steps, from its `OwnView`."""

    def __init__(self) -> None:
        self._view = OwnView()
        self._step = -1
        self._evaluation: Evaluation | None = None

    def row(self, event: Event) -> Row | None:
        """The row that `event` completes."""
        view = self._view = own_view_after(self._view, event)
        if not isinstance(event.fact, TrainingProgressed | LeftRun):
            return None
        if view.inner_steps <= self._step and view.evaluation == self._evaluation:
            return None
        self._step, self._evaluation = view.inner_steps, view.evaluation
        values = {
            "loss": view.train_loss,
            "validation_loss": None if view.evaluation is None else view.evaluation.loss,
            "versions": sum(view.versions) if view.versions else None,  # not a member yet
            "rounds": view.rounds_committed,
            **{name: getattr(view, name) for name in _FIGURES},
        }
        return row_of(view.inner_steps, event.at, values)


def row_of(step: int, at: float, values: Mapping[str, float | None]) -> Row:
    """A row without what is None or no finite number."""
    return Row(step, at, {name: float(one) for name, one in values.items() if one is not None and math.isfinite(one)})


class RunRows:
    """Rows of a run from looks at it: one when the swarm has committed more, `MIN_SECONDS` after the last one at the
    soonest."""

    MIN_SECONDS = 10.0
    """Several looks; a month of them is a quarter of a million rows."""

    def __init__(self) -> None:
        self._step = -1
        self._at = -math.inf

    def row(self, at: float, values: Mapping[str, float | None]) -> Row | None:
        """Of a look at `at` (unix seconds); `values` has the columns of `RUN_COLUMNS`."""
        step = int(values["tokens"] or 0)
        if step <= self._step or at < self._at + self.MIN_SECONDS:
            return None
        self._step, self._at = step, at
        return row_of(step, at, values)
