"""The loss curves as inline SVG: pure, no script needed, one picture for every width.

The drawing stretches to its box, so lines keep their width (`vector-effect`) and all text is HTML beside it. Ticks
are evenly spaced, which lets the style sheet place their labels without a position in the markup.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from typing import Final

from dashboard.state import LossPoint
from peer.quantities import count_text

WIDTH: Final = 720
HEIGHT: Final = 240
NUM_INTERVALS: Final = 4
MAX_PLAUSIBLE_LOSS: Final = 100.0
"""Above it a peer diverged or lies; drawn, it would press every honest curve flat."""
MAX_TABLE_ROWS: Final = 12


def loss_text(loss: float | None) -> str:
    """Three decimals, as losses are compared; a dash where there is none."""
    if loss is None:
        return "–"
    return f"{loss:.3f}" if abs(loss) < 1000 else f"{loss:.2e}"


def even_ticks(low: float, high: float, num_intervals: int) -> list[float]:
    """Round values at even steps around [low, high], at most `num_intervals` + 1 steps; `low` < `high`."""
    power = 10.0 ** math.floor(math.log10((high - low) / num_intervals))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0, 50.0):
        step = factor * power
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= num_intervals + 1:
            return [step * index for index in range(first, last + 1)]
    raise AssertionError("a factor of 50 always fits")


def loss_chart(points: Sequence[LossPoint]) -> str:
    """HTML of the chart with its axes, and the same figures as a table."""
    held_out = [(point.tokens, point.held_out_loss) for point in points]
    train = [(point.tokens, point.train_loss) for point in points]
    losses = [loss for _, loss in held_out + train if loss is not None and abs(loss) <= MAX_PLAUSIBLE_LOSS]
    if not losses or points[-1].tokens <= points[0].tokens:
        return (
            '<p class="empty">The curve begins when two rounds have been seen and a peer has measured its loss. '
            "Until then the figures above are all there is.</p>"
        )
    low, high = min(losses), max(losses)
    ticks = even_ticks(low, high, NUM_INTERVALS) if high - low > 1e-6 else [low - 0.5, low, low + 0.5]
    first, last = points[0].tokens, points[-1].tokens
    frame = _Frame(first, last, ticks[0], ticks[-1])
    grid = "".join(f'<path class="grid" d="M0 {frame.y(tick):.1f}H{WIDTH}"/>' for tick in ticks)
    data = [[tokens, held, trained] for (tokens, held), (_, trained) in zip(held_out, train, strict=True)]
    y_labels = "".join(f"<span>{_tick_text(tick, ticks[1] - ticks[0])}</span>" for tick in reversed(ticks))
    x_labels = "".join(f"<span>{count_text(float(value))}</span>" for value in (first, (first + last) / 2, last))
    return (
        '<div class="chart">'
        f'<div class="y-labels" aria-hidden="true">{y_labels}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(_sentence(points))}" data-points="{escape(json.dumps(data, separators=(",", ":")))}">'
        f'{grid}<path class="line train" d="{frame.line(train)}"/>'
        f'<path class="line held-out" d="{frame.line(held_out)}"/>'
        f'{frame.end_dot(train, "train")}{frame.end_dot(held_out, "held-out")}<path class="cursor" d=""/></svg>'
        f'<div class="x-labels" aria-hidden="true">{x_labels}</div></div>'
        '<p class="legend"><span class="key held-out">held-out</span> <span class="key train">training</span> '
        '<output class="readout">over tokens committed</output></p>'
        f"{_table(points)}"
    )


class _Frame:
    def __init__(self, left: float, right: float, bottom: float, top: float) -> None:
        self._left, self._right, self._bottom, self._top = left, right, bottom, top

    def x(self, tokens: float) -> float:
        return WIDTH * (tokens - self._left) / (self._right - self._left)

    def y(self, loss: float) -> float:
        return HEIGHT * (self._top - loss) / (self._top - self._bottom)

    def line(self, series: Sequence[tuple[int, float | None]]) -> str:
        parts, pen_down = [], False
        for tokens, loss in series:
            if loss is None or abs(loss) > MAX_PLAUSIBLE_LOSS:
                pen_down = False
                continue
            parts.append(f"{'L' if pen_down else 'M'}{self.x(tokens):.1f} {self.y(loss):.1f}")
            pen_down = True
        return "".join(parts)

    def end_dot(self, series: Sequence[tuple[int, float | None]], name: str) -> str:
        known = [(tokens, loss) for tokens, loss in series if loss is not None and abs(loss) <= MAX_PLAUSIBLE_LOSS]
        if not known:
            return ""
        tokens, loss = known[-1]
        # A stroke without length has round ends: a dot that stays round however the drawing is stretched.
        return f'<path class="dot {name}" d="M{self.x(tokens):.1f} {self.y(loss):.1f}h.01"/>'


def _tick_text(tick: float, step: float) -> str:
    return f"{tick + 0.0:.{max(0, -math.floor(math.log10(step) + 1e-9) + (step * 4 % 1 > 1e-9 and step < 1))}f}"


def _sentence(points: Sequence[LossPoint]) -> str:
    first, last = points[0], points[-1]
    return (
        f"Held-out loss {loss_text(first.held_out_loss)} at {count_text(float(first.tokens))} tokens, "
        f"{loss_text(last.held_out_loss)} at {count_text(float(last.tokens))} tokens; training loss "
        f"{loss_text(first.train_loss)} and {loss_text(last.train_loss)}."
    )


def _table(points: Sequence[LossPoint]) -> str:
    step = max(1, -(-len(points) // MAX_TABLE_ROWS))
    chosen = list(points[::-1][::step])
    rows = "".join(
        f"<tr><td>{count_text(float(point.tokens))}</td><td>{loss_text(point.held_out_loss)}</td>"
        f"<td>{loss_text(point.train_loss)}</td><td>{point.num_trainers}</td></tr>"
        for point in chosen
    )
    return (
        '<details id="loss-table"><summary>The curve as a table</summary><table class="plain"><thead><tr>'
        '<th scope="col">Tokens committed</th><th scope="col">Held-out loss</th><th scope="col">Training loss</th>'
        f'<th scope="col">Trainers</th></tr></thead><tbody>{rows}</tbody></table></details>'
    )
