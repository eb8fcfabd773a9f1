"""Recorded values: rows of numbers, of a peer from its events and of a run from its page. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dht.records.evaluation import Evaluation
from peer.events.peer_events import Event, LeftRun, TrainingProgressed
from peer.view.own_view import OwnView, own_view_after

_FIGURES = ("learning_rate", "tokens", "tokens_per_second", "wait_fraction", "run_tokens")
OWN_COLUMNS = ("loss", "validation_loss", *_FIGURES, "versions", "rounds")
"""Columns of a peer. `versions` is the sum over its fragments, `rounds` counts the rounds of this session."""

RUN_COLUMNS = (
    *("tokens", "rounds", "validation_loss", "train_loss", "num_trainers", "num_peers", "tokens_per_second"),
    "upload_bits_per_second",
)
"""Columns of a run, as in a point of the page's curves."""


@dataclass(frozen=True, slots=True)
class Row:
    """One moment of a record.

    Attributes:
        step: inner steps of a peer, which decrease when a killed peer restarts from its last checkpoint, or committed
            tokens of a run.
        at: unix seconds.
        values: values by column; unmeasured ones are absent.
    """

    step: int
    at: float
    values: Mapping[str, float]


class OwnRows:
    """Rows from one peer's events: one for each report of a trainer that took steps, from its `OwnView`."""

    def __init__(self) -> None:
        self._view = OwnView()
        self._step = -1
        self._evaluation: Evaluation | None = None

    def row(self, event: Event) -> Row | None:
        """Return the row that `event` completes, if any."""
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
    """Make a row, without values that are None or not finite."""
    return Row(step, at, {name: float(one) for name, one in values.items() if one is not None and math.isfinite(one)})


class RunRows:
    """Rows of a run: one when the swarm has committed more, at least `MIN_SECONDS` after the last one."""

    MIN_SECONDS = 10.0
    """Several looks; a month of them is a quarter of a million rows."""

    def __init__(self) -> None:
        self._step = -1
        self._at = -math.inf

    def row(self, at: float, values: Mapping[str, float | None]) -> Row | None:
        """Return the row at `at` (unix seconds), if one is due; `values` has the columns of `RUN_COLUMNS`."""
        step = int(values["tokens"] or 0)
        if step <= self._step or at < self._at + self.MIN_SECONDS:
            return None
        self._step, self._at = step, at
        return row_of(step, at, values)
