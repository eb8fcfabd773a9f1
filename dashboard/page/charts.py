"""The curves of a run: losses, the swarm's size, the lines' rates, and one contributor's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dashboard.facts import CurvePoint, HistoryPoint, HistoryView
from dashboard.page.chart import LineChart, Series, decimal_text, line_chart, moment_text
from peer.quantities import bit_rate_text, count_text

MAX_PLAUSIBLE_LOSS: Final = 100.0
"""Above it a peer diverged or lies; drawn, it would press every honest curve flat."""


def render_charts(history: HistoryView) -> dict[str, str]:
    """HTML of `losses`, `swarm` and `lines`, as of this history; scripts draw them live from the API."""
    return {
        "losses": _losses(history),
        "swarm": _swarm(history.points),
        "lines": _lines(history.points),
    }


def loss_text(loss: float | None) -> str:
    """Three decimals, as losses are compared; a dash where there is none."""
    if loss is None:
        return "–"
    return f"{loss:.3f}" if abs(loss) < 1000 else f"{loss:.2e}"


def _plausible(loss: float | None) -> float | None:
    return loss if loss is not None and abs(loss) <= MAX_PLAUSIBLE_LOSS else None


def _empty(text: str, key: str) -> str:
    return f'<div class="plot" data-chart="{key}"><p class="empty">{text}</p></div>'


def _losses(history: HistoryView) -> str:
    points = history.points
    held_out = [_plausible(point.held_out_loss) for point in points]
    train = [_plausible(point.train_loss) for point in points]
    if all(loss is None for loss in held_out + train) or points[-1].tokens <= points[0].tokens:
        return _empty(
            "The curve begins when two rounds have been seen and a peer has measured its loss. Until then the figures "
            "above are all there is.",
            "losses",
        )
    first, last = points[0], points[-1]
    return line_chart(
        LineChart(
            key="losses",
            xs=[float(point.tokens) for point in points],
            series=(Series("first", "held-out loss", held_out), Series("second", "training loss", train)),
            x_label="tokens committed",
            x_text=count_text,
            y_text=decimal_text,
            cell_text=loss_text,
            sentence=(
                f"Held-out loss {loss_text(first.held_out_loss)} at {count_text(float(first.tokens))} tokens, "
                f"{loss_text(last.held_out_loss)} at {count_text(float(last.tokens))} tokens; training loss "
                f"{loss_text(first.train_loss)} and {loss_text(last.train_loss)}."
            ),
            marks=[(float(mark.tokens), mark.kind) for mark in history.marks],
        )
    )


def _span(points: Sequence[HistoryPoint] | Sequence[CurvePoint]) -> float:
    return points[-1].at - points[0].at if points else 0.0


def _swarm(points: Sequence[HistoryPoint]) -> str:
    span = _span(points)
    if span <= 0:
        return _empty("The curve begins with the second look at the swarm, in a few seconds.", "swarm")
    peers = [float(point.num_peers) for point in points]
    trainers = [float(point.num_trainers) for point in points]
    return line_chart(
        LineChart(
            key="swarm",
            xs=[point.at for point in points],
            series=(Series("first", "training", trainers), Series("second", "all peers", peers)),
            x_label="time (UTC)",
            x_text=lambda at: moment_text(at, span),
            y_text=lambda tick, step: decimal_text(tick, step) if step < 1 else count_text(float(tick)),
            cell_text=lambda value: "–" if value is None else count_text(int(value)),
            sentence=(
                f"{count_text(int(peers[-1]))} peers now, {count_text(int(trainers[-1]))} of them training; "
                f"at most {count_text(int(max(peers)))} at one time."
            ),
            from_zero=True,
            is_stepped=True,
        )
    )


def _lines(points: Sequence[HistoryPoint]) -> str:
    span = _span(points)
    up = [point.upload_bits_per_second for point in points]
    if span <= 0 or max(up) <= 0:
        return _empty("The curve begins when the second signed round is known.", "lines")
    return line_chart(
        LineChart(
            key="lines",
            xs=[point.at for point in points],
            series=(Series("first", "over all lines, average of a minute", up),),
            x_label="time (UTC)",
            x_text=lambda at: moment_text(at, span),
            y_text=lambda tick, step: bit_rate_text(tick) if tick else "0",
            cell_text=lambda value: "–" if value is None else bit_rate_text(value),
            sentence=f"All peers together send {bit_rate_text(up[-1])} now, at most {bit_rate_text(max(up))}.",
            from_zero=True,
        )
    )


def work_chart(curve: Sequence[CurvePoint]) -> str:
    """A contributor's tokens over time."""
    span = _span(curve)
    if span <= 0:
        return _empty("The curve has one point per hour; it begins with the second hour of work.", "work")
    witnessed = [point.tokens_witnessed for point in curve]
    reported = [point.tokens_reported for point in curve]
    return line_chart(
        LineChart(
            key="work",
            xs=[point.at for point in curve],
            series=(Series("first", "witnessed", witnessed), Series("second", "reported", reported)),
            x_label="time (UTC)",
            x_text=lambda at: moment_text(at, span),
            y_text=lambda tick, step: count_text(float(tick)),
            cell_text=lambda value: "–" if value is None else count_text(value),
            sentence=f"{count_text(witnessed[-1])} tokens witnessed, {count_text(reported[-1])} reported.",
            from_zero=True,
        )
    )
