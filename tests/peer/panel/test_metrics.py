"""One peer's figures for Prometheus: folded from its events, served on loopback, in nobody's way."""

from __future__ import annotations

import json
import queue
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from averaging.rounds.round_facts import RoundCommitted
from dht.ground.errors import UsageFault
from dht.ground.host import PeerId
from peer.config.peer_config import PeerConfig
from peer.events.event_log import EVENT_TYPES
from peer.events.peer_events import Evaluated, Event, JoinedRun, MemberChanged, TrainingProgressed
from peer.panel.metrics import PeerMetrics, serving_metrics
from peer.panel.scene.updates import Remark, ViewUpdate

ME, OTHER = PeerId("12D3KooWMe"), PeerId("12D3KooWOther")


def some_events() -> list[Event]:
    return [
        Event(10.0, ME, JoinedRun(run_id="tiny.x", device="cpu", num_parameters=1000, versions=(1, 2))),
        Event(11.0, ME, MemberChanged(remote=OTHER)),
        Event(
            12.0,
            ME,
            TrainingProgressed(inner_steps=7, tokens=700, tokens_per_second=70.0, train_loss=2.5, wait_fraction=0.25),
        ),
        Event(13.0, ME, Evaluated(validation_loss=2.75, version_sum=3)),
        Event(
            14.0,
            ME,
            RoundCommitted(
                fragment=0,
                version=1,
                contributors=(ME, OTHER),
                outer_lr=0.5,
                tokens=900,
                num_void_shards=0,
                seconds=1.5,
                bytes_up=600,
                bytes_down=1200,
                contribution_values_sent=5,
                result_values_received=5,
            ),
        ),
    ]


def samples_of(text: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text)
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_the_figures_are_those_of_the_events() -> None:
    metrics = PeerMetrics(clock=lambda: 20.0)
    for event in some_events():
        metrics.note(event)
    text = metrics.text().decode()
    samples = samples_of(text)
    assert samples[("murmuration_peer_phase", "training")] == 1
    assert samples[("murmuration_peer_inner_steps_total",)] == 7
    assert samples[("murmuration_peer_rounds_contributed_total",)] == 1
    assert samples[("murmuration_peer_upload_bytes_total",)] == 600
    assert samples[("murmuration_peer_upload_bits_per_second",)] == 600 * 8 / 60
    assert samples[("murmuration_peer_members_in_view",)] == 2
    assert samples[("murmuration_peer_validation_loss",)] == 2.75
    assert samples[("murmuration_peer_wait_fraction",)] == 0.25
    assert samples[("murmuration_peer_events_total", "RoundCommitted")] == 1
    assert ME not in text
    assert OTHER not in text
    assert len(samples) < 40 + len(EVENT_TYPES)


def test_before_anything_happened_there_are_figures_too() -> None:
    samples = samples_of(PeerMetrics().text().decode())
    assert samples[("murmuration_peer_phase", "starting")] == 1
    assert ("murmuration_peer_train_loss",) not in samples


def test_it_is_served_on_loopback_and_ends() -> None:
    metrics = PeerMetrics()
    with serving_metrics(metrics, "127.0.0.1", 0) as port:
        url = f"http://127.0.0.1:{port}"
        for event in some_events():
            metrics.note(event)
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert samples_of(response.read().decode())[("murmuration_peer_tokens_total",)] == 700
        with urllib.request.urlopen(f"{url}/healthz", timeout=30) as response:
            assert json.load(response) == {"status": "ok", "phase": "training", "last_event_at": 14.0}
        for path, data, status in (("/", None, 404), ("/../etc/passwd", None, 404), ("/metrics", b"x", 405)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(url + path, data, timeout=30)
            assert caught.value.code == status
            caught.value.close()
        with socket.create_connection(("127.0.0.1", port), 30) as rude:
            rude.sendall(b"\x00\xff NONSENSE\r\n\r\n")
            answer = b""
            while part := rude.recv(4096):
                answer += part
        assert b"Traceback" not in answer
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 30)


def test_a_taken_port_is_one_sentence() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UsageFault, match=r"is taken by another program; .* --metrics-port"),
        serving_metrics(PeerMetrics(), "127.0.0.1", taken.getsockname()[1]),
    ):
        raise AssertionError("served")
    with (
        pytest.raises(UsageFault, match="cannot be used"),
        serving_metrics(PeerMetrics(), "203.0.113.7", 0),
    ):
        raise AssertionError("served")


def test_a_peer_serves_the_figures_of_its_own_events(tmp_path: Path) -> None:
    from peer.panel.terminal import Terminal

    class Noted:
        def __init__(self) -> None:
            self.notes: queue.SimpleQueue[str] = queue.SimpleQueue()

        def show(self, event: Event) -> None: ...
        def tick(self, now: float) -> None: ...
        def close(self) -> None: ...
        def note(self, sentence: str) -> None: ...
        def suspend_soon(self) -> None: ...
        def restore(self) -> None: ...

        def tell(self, update: ViewUpdate) -> None:
            if isinstance(update, Remark):
                self.notes.put(update.text)

    view = Noted()
    config = PeerConfig(run_id="tiny.abcdefghij234567abcd", data_dir=tmp_path, metrics_port=0)
    terminal = Terminal(config, view)
    with terminal.interruptible():
        for event in some_events():
            terminal.show(event)
        url = view.notes.get(timeout=30).removeprefix("figures for Prometheus at ")
        with urllib.request.urlopen(url, timeout=30) as response:
            assert samples_of(response.read().decode())[("murmuration_peer_tokens_total",)] == 700
