"""`/metrics` for Prometheus. No label holds a PeerId, a name or a country: their number grows and they are people's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dashboard.facts import Condition, HistoryView
from dashboard.observe.state import DashboardState, Phase

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Serving:
    """What the server itself counts."""

    num_viewers: int
    num_requests: dict[str, int]
    """Answers by class of status: ``2xx`` and so on."""
    look_age_seconds: float


class RunMetrics(Collector):
    """Reads the present figures whenever somebody asks."""

    def __init__(self, read: Callable[[], tuple[DashboardState, HistoryView, Serving]]) -> None:
        self._read = read
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        state, history, serving = self._read()
        yield from _swarm(state)
        yield from _history(history)
        yield _gauge("dashboard_viewers", "Open event streams.", serving.num_viewers)
        yield _gauge("dashboard_look_age_seconds", "Since the last look at the swarm.", serving.look_age_seconds)
        requests = CounterMetricFamily(_name("dashboard_answers"), "HTTP answers.", labels=["status"])
        for status, count in sorted(serving.num_requests.items()):
            requests.add_metric([status], count)
        yield requests


def _swarm(state: DashboardState) -> Iterator[Metric]:
    phases = GaugeMetricFamily(_name("phase"), "1 for the phase the run is in.", labels=["phase"])
    for phase in get_args(Phase):
        phases.add_metric([phase], float(state.phase == phase))
    yield phases
    peers = GaugeMetricFamily(_name("peers"), "Peers seen lately, as they report.", labels=["condition"])
    for condition in get_args(Condition):
        peers.add_metric([condition], sum(row.condition == condition for row in state.peers))
    yield peers
    here = [row.record for row in state.here]
    yield _gauge("trainers", "Peers that train now.", len(state.trainers))
    yield _gauge("unlisted_peers", "Peers without a row.", state.num_unlisted)
    yield _gauge("invalid_records", "Records refused in the newest look.", state.num_invalid_records)
    yield _gauge("tokens_per_second", "Sum of what trainers report.", state.tokens_per_second)
    yield _gauge(
        "line_upload_bits_per_second",
        "Speed of the lines, as reported.",
        sum(record.upload_bits_per_second for record in here),
    )
    yield _gauge("line_download_bits_per_second", "Likewise.", sum(record.download_bits_per_second for record in here))
    for name, loss in (("held_out_loss", state.held_out_loss), ("train_loss", state.train_loss)):
        if loss is not None:
            yield _gauge(name, "Median of what peers report.", loss)
    yield _gauge(
        "largest_lag_versions", "Of any fragment.", max((row.largest_lag for row in state.fragments), default=0)
    )
    yield _gauge(
        "forked_peers", "Peers whose anchor differs.", max((row.num_forked for row in state.fragments), default=0)
    )
    yield _counter("committed_tokens", "Tokens in the anchors, as peers report.", state.committed_tokens)
    yield _counter("rounds", "Rounds of all fragments, as peers report.", state.num_rounds)


def _history(history: HistoryView) -> Iterator[Metric]:
    contributors = GaugeMetricFamily(_name("contributors"), "Contributors with a row.", labels=["here"])
    for is_here in (True, False):
        contributors.add_metric([str(is_here).lower()], sum(row.is_here == is_here for row in history.contributors))
    yield contributors
    yield _gauge("unverified_peers", "Peers that no commit lists, without a row.", history.num_unverified)
    yield _counter("witnessed_rounds", "Rounds whose signed commits are kept here.", history.num_rounds)
    yield _counter("witnessed_tokens", "Tokens that others in the round signed.", history.tokens_witnessed)
    yield _counter("moved_bytes", "Encoded values that went from member to member.", history.bandwidth.upload_bytes)
    yield _gauge("history_failing", "1 while the history cannot be written.", float(bool(history.problem)))
    missing = sum(row.last_version - row.first_version + 1 for row in history.missing)
    yield _gauge("missing_rounds", "Rounds whose commits no member remembers.", missing)


def _name(name: str) -> str:
    return f"murmuration_{name}"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_name(name), text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_name(name), text, value=value)
