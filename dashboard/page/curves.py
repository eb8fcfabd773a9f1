"""The curves of a run as tables, for readers without scripts; scripts draw them from the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dashboard.history_facts import HistoryPoint, HistoryView, WorkPoint
from dht.ground.quantities import bit_rate_text, count_text, loss_text, moment_text

MAX_ROWS: Final = 12
MAX_PLAUSIBLE_LOSS: Final = 100.0
"""Highest plausible loss: a peer above it diverged or lies."""

_Columns = Mapping[str, tuple[str, Callable[[Any], str]]]
"""By label: (field of a point, formatter of its value)."""
_LOSSES: Final[_Columns] = {
    "validation loss": ("validation_loss", loss_text),
    "training loss": ("train_loss", loss_text),
}
_SWARM: Final[_Columns] = {"training": ("num_trainers", count_text), "all machines": ("num_peers", count_text)}
_LINES: Final[_Columns] = {"over all lines, average of a minute": ("upload_bits_per_second", bit_rate_text)}
_WORK: Final[_Columns] = {
    "confirmed by others": ("tokens_witnessed", count_text),
    "self-reported": ("tokens_reported", count_text),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """Values along `axis` as text, newest first; empty rows mean no values yet."""

    axis: str
    labels: Sequence[str]
    """Labels of the values in a row."""
    rows: Sequence[tuple[str, Sequence[str]]]


NO_CURVE: Final = Curve("", (), ())
"""Curve of a part of the page that is not open."""


def curves(history: HistoryView) -> dict[str, Curve]:
    """Return `losses`, `swarm` and `lines` of this history."""
    points = history.points
    has_losses = any(_is_plausible(loss) for point in points for loss in (point.validation_loss, point.train_loss))
    has_tokens = bool(points) and points[-1].tokens > points[0].tokens
    has_peers = any(point.num_peers for point in points)
    has_lines = any(point.upload_bits_per_second > 0 for point in points)
    return {
        "losses": Curve(
            "tokens committed",
            tuple(_LOSSES),
            _rows(points, lambda point: count_text(float(point.tokens)), _LOSSES) if has_losses and has_tokens else (),
        ),
        "swarm": _over_time(points if has_peers else (), _SWARM),
        "lines": _over_time(points if has_lines else (), _LINES),
    }


def work_curve(points: Sequence[WorkPoint]) -> Curve:
    """Return a contributor's tokens over time."""
    return _over_time(points, _WORK)


def _over_time(points: Sequence[HistoryPoint] | Sequence[WorkPoint], columns: _Columns) -> Curve:
    span = points[-1].at - points[0].at if points else 0.0
    return Curve(
        "time (UTC)",
        tuple(columns),
        _rows(points, lambda point: moment_text(point.at, span), columns) if span > 0 else (),
    )


def _rows(points: Sequence[Any], place: Callable[[Any], str], columns: _Columns) -> list[tuple[str, list[str]]]:
    newest_first = points[::-1]
    step = max(1, -(-len(points) // MAX_ROWS))
    groups = [newest_first[first : first + step] for first in range(0, len(points), step)]
    return [(place(group[0]), [text(_newest(group, field)) for field, text in columns.values()]) for group in groups]


def _newest(group: Sequence[Any], field: str) -> float | None:
    """Return the newest value of a group. Losses are not in all points, so the newest plausible one counts."""
    values = (getattr(point, field) for point in group)
    return next((value for value in values if "loss" not in field or _is_plausible(value)), None)


def _is_plausible(loss: float | None) -> bool:
    return loss is not None and abs(loss) <= MAX_PLAUSIBLE_LOSS
