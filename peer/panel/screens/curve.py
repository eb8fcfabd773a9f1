"""Curves of characters: braille dots with their values beside and times below, bars where there is no braille."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dht.ground.quantities import clock_text, count_text, loss_text

DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille cell: left and right column, from top to bottom (Unicode block 2800)."""
LABEL_WIDTH = 8


def curve(
    values: Sequence[float], span: tuple[float, float], width: int, height: int, *, ascii_only: bool = False
) -> list[str]:
    """`height` lines of at most `width` columns: the curve, the axis of its values, and that of its times below.

    Args:
        values: of the same distance in time, the oldest first.
        span: unix seconds of the first and of the last one.
    """
    num_rows, num_columns = height - 1, width - LABEL_WIDTH - 1
    if num_rows < 1 or num_columns < 8 or not values:
        return []
    means = _stretched(_binned(values, 2 * num_columns), 2 * num_columns)
    low, high = min(means), max(means)
    rows = _bars(means, num_rows, low, high) if ascii_only else _braille(means, num_rows, low, high)
    labels = [""] * num_rows
    labels[-1], labels[0] = (_label(value) for value in (low, high))
    edge = "|" if ascii_only else "│"
    lines = [f"{label:>{LABEL_WIDTH - 1}} {edge}{row}".rstrip() for label, row in zip(labels, rows, strict=True)]
    begun, ended = (clock_text(at)[:5] for at in span)
    times = f"{begun}{ended:>{num_columns - len(begun)}}" if num_columns >= 2 * len(begun) + 1 else begun
    return [*lines, " " * (LABEL_WIDTH + 1) + times]


def _label(value: float) -> str:
    """At most `LABEL_WIDTH` - 1 letters."""
    return loss_text(value)[: LABEL_WIDTH - 1] if abs(value) < 1000 else count_text(value)


def _binned(values: Sequence[float], num_bins: int) -> list[float]:
    """Means of neighbours, so that there are at most so many."""
    num_bins = min(num_bins, len(values))
    cuts = [len(values) * index // num_bins for index in range(num_bins + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]


def _stretched(means: Sequence[float], num_bins: int) -> list[float]:
    """The same curve in so many points, with straight lines between those that there are."""
    if not 1 < len(means) < num_bins:
        return list(means)
    stretched = []
    for index in range(num_bins):
        place = index * (len(means) - 1) / (num_bins - 1)
        before = min(int(place), len(means) - 2)
        stretched.append(means[before] + (place - before) * (means[before + 1] - means[before]))
    return stretched


def _braille(means: Sequence[float], num_rows: int, low: float, high: float) -> list[str]:
    num_dots = 4 * num_rows
    scale = (num_dots - 1) / (high - low) if high > low else 0.0
    places = [round((high - mean) * scale) for mean in means]
    cells = [[0] * -(-len(means) // 2) for _ in range(num_rows)]
    for index, place in enumerate(places):
        # Down to, and not including, where the one before was: a line and no cloud.
        before = places[index - 1] if index else place
        first, last = min(place, before), max(place, before)
        first, last = (first, last - 1) if place < before else (first + 1, last) if place > before else (first, last)
        for dot in range(first, last + 1):
            cells[dot // 4][index // 2] |= DOTS[index % 2][dot % 4]
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in cells]


def _bars(means: Sequence[float], num_rows: int, low: float, high: float) -> list[str]:
    scale = (num_rows - 1) / (high - low) if high > low else 0.0
    pairs = [means[index : index + 2] for index in range(0, len(means), 2)]
    places = [round((high - sum(pair) / len(pair)) * scale) for pair in pairs]
    return ["".join("*" if place == row else " " for place in places) for row in range(num_rows)]
