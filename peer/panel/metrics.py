"""Figures of one peer for Prometheus (`peer join --metrics-port`): the panel's state over HTTP, on loopback by default.

One request at a time and nothing to write: a stranger at the port can slow down nothing but the next request.
No PeerId, name or address is in any label.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dht.ground.errors import UsageFault
from peer.events.peer_events import Event
from peer.panel.scene.panel_state import PanelState, fold

REQUEST_SECONDS: Final = 5.0
"""A client that says nothing for this long is cut off: the next one waits for it."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class PeerMetrics(Collector):
    """Folds a peer's events into figures; `note` may be called from any thread.

    Args:
        clock: unix seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = PanelState()
        self._num_events: Counter[str] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def note(self, event: Event) -> None:
        """Take in an event."""
        with self._lock:
            self._state = fold(self._state, event)
            self._num_events[type(event.fact).__name__] += 1

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            state, num_events = self._state, dict(self._num_events)
        now = self._clock()
        up, down = state.bits_per_second(now)
        phase = GaugeMetricFamily("murmuration_peer_phase", "1 for what this peer does now.", labels=["phase"])
        phase.add_metric([state.phase], 1.0)
        yield phase
        for name, text, count in (
            ("inner_steps", "Inner steps of this session.", state.inner_steps),
            ("tokens", "Tokens, or examples, trained on in this session.", state.tokens),
            ("rounds_committed", "Rounds that closed here.", state.rounds_committed),
            ("rounds_contributed", "Those with own work in them.", state.rounds_contributed),
            ("upload_bytes", "Sent in rounds.", state.bytes_up),
            ("download_bytes", "Received in rounds.", state.bytes_down),
        ):
            yield CounterMetricFamily(f"murmuration_peer_{name}", text, value=count)
        for name, text, value in (
            ("tokens_per_second", "Speed of training, in tokens or examples.", state.tokens_per_second),
            ("run_tokens", "Tokens, or examples, that the whole swarm has committed.", state.run_tokens),
            ("run_budget_tokens", "Those at which the run's schedule ends.", state.budget_tokens),
            ("learning_rate", "Of the last inner step.", state.learning_rate),
            ("wait_fraction", "Part of the time in which training waited.", state.wait_fraction),
            ("train_loss", "Newest training loss.", state.train_loss),
            ("validation_loss", "Newest validation loss.", state.validation_loss),
            ("upload_bits_per_second", "Over the last minute.", up),
            ("download_bits_per_second", "Over the last minute.", down),
            ("members_in_view", "This peer and those it sees.", state.num_peers),
            ("parameters", "Of the model.", state.num_parameters),
            ("started_at_seconds", "When the session began (unix).", state.started_at),
            ("last_round_at_seconds", "When the last round closed (unix).", state.last_round_at),
            ("last_event_at_seconds", "When anything last happened (unix).", state.last_event_at),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"murmuration_peer_{name}", text, value=value)
        events = CounterMetricFamily("murmuration_peer_events", "What happened, by kind.", labels=["event"])
        for kind, count in sorted(num_events.items()):
            events.add_metric([kind], count)
        yield events

    def answer(self, environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        """The WSGI application: /metrics and /healthz."""
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "")
        status, kind, body = "404 Not Found", "text/plain", b"expected /metrics or /healthz\n"
        if method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b"expected GET\n"
        elif path == "/metrics":
            status, kind, body = "200 OK", CONTENT_TYPE, self.text()
        elif path == "/healthz":
            health = {"status": "ok", "phase": self._state.phase, "last_event_at": self._state.last_event_at}
            status, kind, body = "200 OK", "application/json", json.dumps(health).encode()
        start(status, [("Content-Type", kind), ("Cache-Control", "no-store"), ("Content-Length", str(len(body)))])
        return [] if method == "HEAD" else [body]


@contextlib.contextmanager
def serving_metrics(metrics: PeerMetrics, host: str, port: int) -> Iterator[int]:
    """Serve `metrics` in a thread; gives the port, which matters when 0 was asked for.

    Raises:
        UsageFault: the port is taken, or the address is not of this machine.
    """
    try:
        server = _Server((host, port), _Handler)
    except OSError as error:
        why = "is taken by another program" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise UsageFault(
            f"port {port} of {host} for the metrics {why}; expected a free port of this machine; give others with "
            "--metrics-port and --metrics-host"
        ) from error
    server.set_app(metrics.answer)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(WSGIServer):
    def server_bind(self) -> None:
        # Without the look-up of the host's name that WSGIServer makes, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that broke off is no news."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes come every few seconds; the terminal is for people."""
