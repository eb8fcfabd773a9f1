"""`/metrics` for Prometheus. No label holds a PeerId, a name or a country, since these are unbounded and personal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final, get_args

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dashboard.history_facts import Condition, HistoryView
from dashboard.observe.dashboard_state import DashboardState, Phase
from dashboard.server.handler_context import Site

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
GROWING: Final = ("committed_tokens", "num_rounds")
"""Figures of the run that only grow, unless a lighter side of a fork is abandoned."""


def metrics_text(site: Site) -> bytes:
    """Return the present figures in Prometheus's text format."""
    registry: Any = SimpleNamespace(collect=lambda: _figures(site))  # all that the library asks of one
    return generate_latest(registry)


def _figures(site: Site) -> Iterator[Metric]:
    yield from _swarm(site.live.state)
    yield from _history(site.live.history)
    yield _gauge("dashboard_viewers", "Open event streams of all displayed runs.", site.bound.num_streams)
    yield _gauge(
        "dashboard_look_age_seconds", "Seconds since the last observation of the swarm.", site.look_age_seconds
    )
    yield _counter("dashboard_answers", "HTTP answers.", dict(sorted(site.num_requests.items())), "status")


def _swarm(state: DashboardState) -> Iterator[Metric]:
    phases = {phase: float(state.phase == phase) for phase in get_args(Phase)}
    yield _gauge("phase", "1 for the present phase of the run.", phases, "phase")
    conditions = {one: sum(row.condition == one for row in state.peers) for one in get_args(Condition)}
    yield _gauge("peers", "Recently seen peers, by their reports.", conditions, "condition")
    yield _gauge("unlisted_peers", "Peers without a row on the page.", state.num_unlisted)
    yield _gauge("invalid_records", "Records refused in the newest observation.", state.num_invalid_records)
    upload = sum(record.upload_bits_per_second for record in state.view.electors)
    yield _gauge("line_upload_bits_per_second", "Sum of the upload rates that peers report.", upload)
    figures = state.view.to_json()
    evaluation = figures["evaluation"] or {}
    figures |= {f"evaluation_{name}": figure for name, figure in evaluation.items()}
    for name, figure in figures.items():
        if isinstance(figure, int | float):
            make = _counter if name in GROWING else _gauge
            yield make(name, "Value of the whole run, as in /api/v1/run.", float(figure))
    rows = state.fragments
    yield _gauge(
        "largest_lag_versions",
        "Largest lag of any fragment, in versions.",
        max((row.largest_lag for row in rows), default=0),
    )
    yield _gauge("forked_peers", "Peers whose anchor differs.", max((row.num_forked for row in rows), default=0))


def _history(history: HistoryView) -> Iterator[Metric]:
    num_here = sum(row.is_here for row in history.contributors)
    here = {"true": num_here, "false": len(history.contributors) - num_here}
    yield _gauge("contributors", "Contributors with a row.", here, "here")
    yield _gauge("unverified_peers", "Peers that no commit lists, without a row.", history.num_unverified)
    yield _counter("witnessed_rounds", "Rounds whose signed commits are kept here.", history.num_rounds)
    yield _counter(
        "witnessed_tokens",
        "Tokens or examples that others in the round signed.",
        history.tokens_witnessed,
    )
    yield _counter("moved_bytes", "Bytes of encoded values sent between members.", history.bandwidth.upload_bytes)
    yield _gauge("history_failing", "1 while the history cannot be written.", float(bool(history.problem)))
    missing = sum(row.last_version - row.first_version + 1 for row in history.missing)
    yield _gauge("missing_rounds", "Rounds whose commits no member has.", missing)


def _gauge(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    return _filled(GaugeMetricFamily(f"murmuration_{name}", text, labels=[label] if label else []), value)


def _counter(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    return _filled(CounterMetricFamily(f"murmuration_{name}", text, labels=[label] if label else []), value)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, value: float | Mapping[str, float]) -> Metric:
    if isinstance(value, Mapping):
        for key, one in value.items():
            family.add_metric([key], one)
    else:
        family.add_metric([], value)
    return family
