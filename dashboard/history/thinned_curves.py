"""Points of curves: thinned, in columns, with fewer digits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Final

from dashboard.history_facts import HistoryPoint

_POINT_COLUMNS: Final[dict[str, Callable[[HistoryPoint], float | None]]] = {
    "time" if field.name == "at" else field.name: attrgetter(field.name) for field in fields(HistoryPoint)
}


def columns_of(points: Sequence[HistoryPoint], axis: str) -> tuple[list[str], list[list[float | None]]]:
    """Return (names, columns), the axis first."""
    along: Callable[[HistoryPoint], float] = attrgetter("at" if axis == "time" else axis)
    kept: list[HistoryPoint] = []
    for point in points:
        if kept and along(point) == along(kept[-1]):
            kept.pop()
        if not kept or along(point) > along(kept[-1]):
            kept.append(point)
    names = [axis, *(name for name in _POINT_COLUMNS if name != axis)]
    return names, [[_POINT_COLUMNS[name](point) for point in kept] for name in names]


def rounded(columns: Sequence[Sequence[float | None]], digits: int) -> list[list[float | None]]:
    """Return the columns with `digits` significant digits; large values keep a tenth, as times need it."""

    def short(value: float | None) -> float | None:
        if not isinstance(value, float):
            return value
        return round(value, 1) if abs(value) >= 10_000 and digits < 17 else float(f"{value:.{digits}g}")

    return [[short(value) for value in column] for column in columns]


def thinned(points: Sequence[HistoryPoint], max_points: int) -> tuple[HistoryPoint, ...]:
    """Return at most `max_points` points, at least two, evenly chosen, with the first and the last."""
    if len(points) <= max_points:
        return tuple(points)
    step = (len(points) - 1) / (max_points - 1)
    return tuple(points[round(index * step)] for index in range(max_points))
