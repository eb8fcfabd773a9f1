"""Curves of the model's task scores, drawn by the server: a point for each evaluation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dashboard.history_facts import TaskScore

WIDTH: Final = 320
HEIGHT: Final = 110
MARGIN: Final = 8
MAX_CURVES: Final = 8
_METRICS: Final = {"acc": "accuracy", "acc_norm": "accuracy, by length"}
MAX_POINTS: Final = 60
"""The newest points of one curve."""


class ScorePoint(NamedTuple):
    """One metric of one task at one moment, with its place in a box of `WIDTH` by `HEIGHT`."""

    x: float
    y: float
    score: TaskScore


def score_curves(scores: Sequence[TaskScore]) -> list[list[ScorePoint]]:
    """Return the points for each metric of each task over tokens, oldest first; curves in the order of their first
    scores.
    """
    kinds: dict[tuple[str, str], list[TaskScore]] = {}
    for score in scores:
        kinds.setdefault((score.task, score.metric), []).append(score)
    return [_curve(found[-MAX_POINTS:]) for found in list(kinds.values())[:MAX_CURVES]]


def metric_words(metric: str) -> str:
    """Return the word for lm-eval's `metric`; unknown ones stay unchanged."""
    return _METRICS.get(metric, metric)


def _curve(scores: Sequence[TaskScore]) -> list[ScorePoint]:
    first, newest = scores[0], scores[-1]
    lowest, highest = min(one.value for one in scores), max(one.value for one in scores)
    span, room = newest.committed_tokens - first.committed_tokens, highest - lowest
    points = []
    for one in scores:
        x = (one.committed_tokens - first.committed_tokens) / span if span else 0.5
        y = (one.value - lowest) / room if room else 0.5
        points.append(ScorePoint(MARGIN + x * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - y * (HEIGHT - 2 * MARGIN), one))
    return points
