"""What is recorded: rows of numbers, of a peer from its events and of a run from its page. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from averaging.rounds.round_facts import RoundCommitted
from peer.events.peer_events import Evaluated, Event, LeftRun, TrainingProgressed
from peer.view.own_view import OwnView, own_view_after

OWN_COLUMNS = (
    *("loss", "validation_loss", "learning_rate", "tokens", "tokens_per_second", "wait_fraction"),
    *("run_tokens", "versions", "rounds", "round_seconds"),
)
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
    """Rows from one peer's events: one with each report of the trainer, with what came since the last one."""

    def __init__(self) -> None:
        self._view = OwnView()
        self._step = -1
        self._is_measured = self._has_trained = False
        self._round_seconds: list[float] = []

    def row(self, event: Event) -> Row | None:
        """The row that `event` completes."""
        self._view = own_view_after(self._view, event)
        match fact := event.fact:
            case Evaluated():
                self._is_measured = True
            case RoundCommitted() if fact.has_own_work:
                self._round_seconds.append(fact.seconds)
            case TrainingProgressed() | LeftRun():
                self._has_trained |= isinstance(fact, TrainingProgressed)
                return self._next(event.at)
        return None

    def _next(self, at: float) -> Row | None:
        view, seconds = self._view, self._round_seconds
        is_new = view.inner_steps > self._step
        if not is_new and not self._is_measured and not seconds:
            return None
        values = {
            "validation_loss": view.evaluation.loss if self._is_measured and view.evaluation else None,
            "round_seconds": sum(seconds) / len(seconds) if seconds else None,
        }
        if is_new:
            values |= {
                "loss": view.train_loss,
                "learning_rate": view.learning_rate,
                "tokens": view.tokens,
                "versions": sum(view.versions) if view.versions else None,  # not a member yet
                "rounds": view.rounds_committed,
            }
        if is_new and self._has_trained:
            values |= {name: getattr(view, name) for name in ("tokens_per_second", "wait_fraction", "run_tokens")}
        self._step, self._is_measured, self._round_seconds = max(view.inner_steps, self._step), False, []
        return row_of(self._step, at, values)


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
