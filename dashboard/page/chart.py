"""Line charts as inline SVG: pure, no script needed, one picture for every width.

The drawing stretches to its box, so lines keep their width (`vector-effect`) and all text is HTML beside it. Ticks
are evenly spaced, which lets the style sheet place their labels without a position in the markup. Where scripts run,
`web/src/charts.js` puts a chart that can be asked about its values in the place of this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 240
NUM_INTERVALS: Final = 4
MAX_DRAWN_POINTS: Final = 360
"""About one per two pixels."""
MAX_TABLE_ROWS: Final = 12
MAX_MARKS: Final = 100
_DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Series:
    """One line; `values` are as many as the chart's `xs`, None where nothing is known."""

    key: str
    """Names its colour in the style sheet."""
    label: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class LineChart:
    """What a chart shows. `xs` never fall and have at least two different values."""

    key: str
    """Tells the script which chart to put here."""
    xs: Sequence[float]
    series: Sequence[Series]
    x_label: str
    x_text: Callable[[float], str]
    y_text: Callable[[float, float], str]
    """(tick, distance between two ticks) as text."""
    cell_text: Callable[[float | None], str]
    """One value in the table."""
    sentence: str
    """The chart for those who do not see it."""
    marks: Sequence[tuple[float, str]] = ()
    """(x, kind); drawn as small ticks on the base line."""
    from_zero: bool = False
    is_stepped: bool = False


def even_ticks(low: float, high: float, num_intervals: int) -> list[float]:
    """Round values at even steps around [low, high], at most `num_intervals` + 1 steps; `low` < `high`."""
    power = 10.0 ** math.floor(math.log10((high - low) / num_intervals))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0, 50.0):
        step = factor * power
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= num_intervals + 1:
            return [step * index for index in range(first, last + 1)]
    raise AssertionError("a factor of 50 always fits")


def decimal_text(tick: float, step: float) -> str:
    """A tick with as many decimals as its step needs."""
    return f"{tick + 0.0:.{max(0, -math.floor(math.log10(step) + 1e-9) + (step * 4 % 1 > 1e-9 and step < 1))}f}"


def moment_text(at: float, span_seconds: float) -> str:
    """A point of a time axis that is `span_seconds` long: the time of day, or the date."""
    moment = datetime.fromtimestamp(at, UTC)
    if span_seconds < 300:
        return f"{moment:%H:%M:%S}"
    if span_seconds < 1.5 * _DAY_SECONDS:
        return f"{moment:%H:%M}"
    return f"{moment.day} {moment:%b}"


def line_chart(chart: LineChart) -> str:
    """HTML of the chart with axes and legend, and the same figures as a table."""
    stride = max(1, -(-len(chart.xs) // MAX_DRAWN_POINTS))
    # Counted from the end: the newest point is always drawn.
    kept = range((len(chart.xs) - 1) % stride, len(chart.xs), stride)
    known = [value for series in chart.series for value in series.values if value is not None]
    low, high = min(known), max(known)
    if chart.from_zero:
        low = 0.0
    ticks = even_ticks(low, high, NUM_INTERVALS) if high - low > 1e-6 else _ticks_around(low, chart.from_zero)
    step = ticks[1] - ticks[0]
    frame = _Frame(chart.xs[0], chart.xs[-1], ticks[0], ticks[-1])
    grid = "".join(f'<path class="grid" d="M0 {frame.y(tick):.1f}H{WIDTH}"/>' for tick in ticks)
    lines = "".join(
        f'<path class="line {series.key}" d="{frame.line(chart.xs, series.values, kept, chart.is_stepped)}"/>'
        for series in reversed(chart.series)
    )
    dots = "".join(frame.end_dot(chart.xs, series) for series in reversed(chart.series))
    shown_marks = [mark for mark in chart.marks if chart.xs[0] <= mark[0] <= chart.xs[-1]][-MAX_MARKS:]
    marks = "".join(f'<path class="mark {kind}" d="M{frame.x(x):.1f} {HEIGHT}v-14"/>' for x, kind in shown_marks)
    first, last = chart.xs[0], chart.xs[-1]
    y_labels = "".join(f"<span>{escape(chart.y_text(tick, step))}</span>" for tick in reversed(ticks))
    x_labels = "".join(f"<span>{escape(chart.x_text(value))}</span>" for value in (first, (first + last) / 2, last))
    keys = "".join(f'<span class="key {series.key}">{escape(series.label)}</span>' for series in chart.series)
    kinds = {kind for _, kind in shown_marks}
    mark_keys = "".join(f'<span class="key mark {kind}">{text}</span>' for kind, text in MARKS if kind in kinds)
    return (
        f'<div class="plot" data-chart="{chart.key}"><div class="chart">'
        f'<div class="y-labels" aria-hidden="true">{y_labels}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(chart.sentence)}">{grid}{marks}{lines}{dots}</svg>'
        f'<div class="x-labels" aria-hidden="true">{x_labels}</div></div>'
        f'<p class="legend">{keys}{mark_keys}<span class="quiet axis">{escape(chart.x_label)}</span></p>'
        f"{_table(chart)}</div>"
    )


MARKS: Final = (("join", "a peer joined"), ("leave", "a peer left"), ("revision", "new revision"))


def _ticks_around(value: float, from_zero: bool) -> list[float]:
    return [0.0, 1.0] if from_zero else [value - 0.5, value, value + 0.5]


class _Frame:
    def __init__(self, left: float, right: float, bottom: float, top: float) -> None:
        self._left, self._right, self._bottom, self._top = left, right, bottom, top

    def x(self, value: float) -> float:
        return WIDTH * (value - self._left) / (self._right - self._left)

    def y(self, value: float) -> float:
        return HEIGHT * (self._top - value) / (self._top - self._bottom)

    def line(self, xs: Sequence[float], values: Sequence[float | None], kept: range, is_stepped: bool) -> str:
        parts: list[str] = []
        for index in kept:
            value = values[index]
            # Losses are measured now and then: the line goes on to the next one that is known.
            if value is not None:
                x, y = f"{self.x(xs[index]):.1f}", f"{self.y(value):.1f}"
                parts.append(f"M{x} {y}" if not parts else f"H{x}V{y}" if is_stepped else f"L{x} {y}")
        return "".join(parts)

    def end_dot(self, xs: Sequence[float], series: Series) -> str:
        known = [(x, value) for x, value in zip(xs, series.values, strict=True) if value is not None]
        if not known:
            return ""
        x, value = known[-1]
        # A stroke without length has round ends: a dot that stays round however the drawing is stretched.
        return f'<path class="dot {series.key}" d="M{self.x(x):.1f} {self.y(value):.1f}h.01"/>'


def _table(chart: LineChart) -> str:
    step = max(1, -(-len(chart.xs) // MAX_TABLE_ROWS))
    heads = "".join(f'<th scope="col" class="number">{escape(series.label)}</th>' for series in chart.series)
    rows = "".join(
        f'<tr><th scope="row">{escape(chart.x_text(chart.xs[index]))}</th>'
        + "".join(f'<td class="number">{escape(chart.cell_text(series.values[index]))}</td>' for series in chart.series)
        + "</tr>"
        for index in range(len(chart.xs) - 1, -1, -step)
    )
    return (
        f'<details id="{chart.key}-table"><summary>Show as table</summary><table class="plain"><thead><tr>'
        f'<th scope="col">{escape(chart.x_label)}</th>{heads}</tr></thead><tbody>{rows}</tbody></table></details>'
    )
