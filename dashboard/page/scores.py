"""Curves of the model's scores in tasks, drawn by the server: a point for each evaluation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dashboard.history_facts import TaskScore
from dht.quantities import count_text, words_text

WIDTH: Final = 320
HEIGHT: Final = 110
MARGIN: Final = 8
MAX_CURVES: Final = 8
MAX_POINTS: Final = 60
"""Of one curve; the newest."""


@dataclass(frozen=True, slots=True)
class ScoreCurve:
    """One metric of one task over tokens. Places are in a box of `WIDTH` by `HEIGHT`."""

    task: str
    metric: str
    points: tuple[tuple[float, float, str], ...]
    """(x, y, value in words), oldest first."""
    lowest: float
    highest: float
    first: TaskScore
    newest: TaskScore

    @property
    def path(self) -> str:
        """The line through the points, as SVG has it."""
        return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y, _ in self.points)


def score_curves(scores: Sequence[TaskScore]) -> list[ScoreCurve]:
    """A curve for each metric of each task, in the order in which they first came."""
    kinds: dict[tuple[str, str], list[TaskScore]] = {}
    for score in scores:
        kinds.setdefault((score.task, score.metric), []).append(score)
    return [_curve(found[-MAX_POINTS:]) for found in list(kinds.values())[:MAX_CURVES]]


def value_text(value: float) -> str:
    """Three decimals, as scores are compared."""
    return f"{value:.3f}" if abs(value) < 1000 else count_text(value)


def _curve(scores: Sequence[TaskScore]) -> ScoreCurve:
    first, newest = scores[0], scores[-1]
    lowest, highest = min(one.value for one in scores), max(one.value for one in scores)
    span, room = newest.tokens - first.tokens, highest - lowest
    points = []
    for one in scores:
        x = (one.tokens - first.tokens) / span if span else 0.5
        y = (one.value - lowest) / room if room else 0.5
        error = f" ± {value_text(one.error)}" if one.error is not None else ""
        words = f"{value_text(one.value)}{error} after {words_text(one.tokens)} tokens, version {one.version}"
        points.append((MARGIN + x * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - y * (HEIGHT - 2 * MARGIN), words))
    return ScoreCurve(first.task, first.metric, tuple(points), lowest, highest, first, newest)
