"""The trainer's side of the network process: starts it, passes the mailbox, forwards events, restarts it when it dies.

Training continues meanwhile. The mailbox keeps anchors and unsent work, so a new network process continues where the
killed one stopped, with the same identity.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dht.ground.clocks import steady_seconds
from dht.ground.errors import DeviceFault, Incompatible, LocalFault, NobodyReachable, UsageFault
from dht.ground.host import PeerId
from dht.p2pd.socket_directory import remove_stale
from dht.records.signed_manifest import RunRecord, decode_run_record
from dht.streams.upload_and_download_limits import RateLimits
from peer.child_process import how_it_ended
from peer.config.peer_config import PeerConfig
from peer.events import peer_events as events
from peer.events.event_log import from_json
from peer.events.peer_events import Event, RunChanged
from peer.mailbox.mailbox import Mailbox
from peer.network.process.child_start import NetworkChild, send_line, start_network_child
from peer.view.swarm_seen import OwnAddresses, SwarmSeen

STOP_SECONDS = 40.0
"""Time for an orderly leave: the last round (5 s), the hand-over (15 s), goodbyes, and closing the daemon."""

SLOW_DISK_BYTES_PER_SECOND = 50e6
"""Assumed speed of a hard disk under load, for the checkpoint on leaving."""
CHECKPOINT_SHARE = 2.5
"""Size of a checkpoint as a multiple of the mailbox, which has three to four copies of the model; AdamW adds four."""
IDLE_SECONDS = 0.05
"""Pause between two checks of a child that is leaving."""

ABORT_SECONDS = 3.0
"""Time to end the daemon and delete its sockets; a third Ctrl+C of the owner skips this wait."""

WINDOW_SECONDS = 3600.0
MAX_RESTARTS = 20
"""Most restarts in one `WINDOW_SECONDS`; a process that dies more often will not recover, and its owner is informed."""
MAX_RESTARTS_AT_START = 4
"""Most restarts before the run is found: its owner is present, and faults at the start seldom go away."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
CALM_SECONDS = 300.0
"""Time after which a death no longer lengthens the next pause."""

_FAULTS: dict[int, type[LocalFault]] = {
    fault.exit_code: fault for fault in (LocalFault, UsageFault, NobodyReachable, Incompatible, DeviceFault)
}


@dataclass(eq=False)
class NetworkProcess:
    """One supervised child process; all methods may be called from the trainer's thread.

    Attributes:
        config: the volunteer's choices, for the child.
        show: receives every event (called from a reader thread).
        note: receives plain sentences for the owner.
        first: a child that was started before; None: start one.
        hear: receives the view of the swarm every few seconds, and this peer's addresses; by default `note` gets these.
    """

    config: PeerConfig
    show: Callable[[Event], None]
    note: Callable[[str], None]
    first: NetworkChild | None = None
    hear: Callable[[SwarmSeen | OwnAddresses], object] | None = None

    def __post_init__(self) -> None:
        self._limits: RateLimits | None = None
        self.addresses: tuple[str, ...] = ()
        self.run_has_ended = False
        self._mailbox: tuple[Mailbox, str] | None = None
        self._record: RunRecord | None = None
        self._fault: LocalFault | None = None
        self._found = threading.Event()
        self._ended = threading.Event()
        self._leaving = threading.Event()
        self._restarts = Restarts()
        self._passing: LocalFault | None = None
        """The last fault of the child that died last, if it may be temporary."""
        self._child: NetworkChild | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name="network-supervisor", daemon=True)

    @property
    def process_id(self) -> int | None:
        """The child's process id while it lives."""
        return self._child.process.pid if self._child is not None and self._child.process.poll() is None else None

    def start(self) -> None:
        """Start the child."""
        self._spawn()
        self._thread.start()

    def wait_for_run(self, stop: Callable[[], bool]) -> RunRecord | None:
        """Wait until the child has the run's signed manifest; None if `stop` returns true.

        Raises:
            LocalFault: the child could not find the run or could not start.
        """
        while not self._found.wait(0.1):
            self.check()
            if stop():
                return None
        self.check()
        return self._record

    def give_mailbox(self, mailbox: Mailbox, device: str) -> None:
        """Pass the mailbox to the child, and to every later child."""
        with self._lock:
            self._mailbox = (mailbox, device)
            self._send_mailbox()

    def limit(self, limits: RateLimits) -> None:
        """Set the bandwidth limits of the child, and of every later child."""
        with self._lock:
            self._limits = limits
            self._send_limits()

    def check(self) -> None:
        """Raise the fault that ended the child for good, if there is one.

        Raises:
            LocalFault: the child ended; the message is the child's own.
        """
        if self._fault is not None:
            raise self._fault

    def leave(self, reason: str) -> None:
        """Ask the child to leave in an orderly way."""
        self._leaving.set()
        self._send("leave", reason=reason)

    def close(self, idle: Callable[[], None] = lambda: None) -> None:
        """Wait until the child has left and written its last checkpoint; kill it after a time limit.

        Args:
            idle: called repeatedly meanwhile; writes the trainer's part of the last checkpoint.
        """
        self._leaving.set()
        num_bytes = self._mailbox[0].num_bytes if self._mailbox is not None else 0
        end = time.monotonic() + STOP_SECONDS + CHECKPOINT_SHARE * num_bytes / SLOW_DISK_BYTES_PER_SECOND
        while not self._ended.wait(IDLE_SECONDS):
            idle()
            if time.monotonic() >= end and self._child is not None:
                self._child.process.kill()
                self._ended.wait(5.0)
                return

    def abort(self) -> None:
        """End the child at once without goodbyes; the child still ends its daemon and deletes its sockets."""
        self._leaving.set()
        if self._child is None:
            return
        with contextlib.suppress(OSError):
            self._child.connection.shutdown(socket.SHUT_RDWR)
        try:
            self._child.process.wait(ABORT_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._child.process.kill()
            self._child.process.wait()
            remove_stale()

    # ------------------------------------------------------------------------------------------------- the child

    def _spawn(self) -> None:
        self._child = self.first.take() if self.first is not None else start_network_child()
        self.first = None
        self._send("config", config=self.config.model_dump_json(exclude_defaults=True))
        self._send_limits()

    def _send(self, kind: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
        if self._child is not None:
            send_line(self._child.connection, kind, descriptors, **fields)

    def _send_limits(self) -> None:
        if self._limits is not None:
            self._send("limits", limits=asdict(self._limits))

    def _send_mailbox(self) -> None:
        if self._mailbox is not None:
            mailbox, device = self._mailbox
            self._send("mailbox", [mailbox.fd], sizes=mailbox.sizes, sent_bytes=mailbox.sent_bytes, device=device)

    def _supervise(self) -> None:
        while True:
            assert self._child is not None
            self._read_until_closed(self._child.connection)
            self._child.connection.close()
            code = self._child.process.wait()
            if code < 0:
                # A killed child could not delete its sockets.
                remove_stale()
            if self._leaving.is_set() or self._fault is not None:
                break
            passing, self._passing = self._passing, None
            reason = f"it {how_it_ended(code)}"
            reason = reason if passing is None else str(passing)
            pause_seconds = self._restarts.pause_seconds(steady_seconds(), has_begun=self._found.is_set())
            if pause_seconds is None:
                often = f"{MAX_RESTARTS} times within an hour" if self._found.is_set() else "repeatedly"
                self._fault = passing or LocalFault(
                    f"the network process ended {often}, now with code {code}; expected it to keep running; see the "
                    "lines above for the reason, fix it, and start again"
                )
                break
            is_training = self._mailbox is not None and bool(self._mailbox[0].network.ready)
            restarted = events.PartRestarted("network", reason, is_training=is_training)
            self.show(Event(time.time(), PeerId(""), restarted))
            if self._leaving.wait(pause_seconds):
                break
            self._spawn()
        self._ended.set()
        self._found.set()

    def _read_until_closed(self, connection: socket.socket) -> None:
        # A child that dies with lines unread resets the connection, which is treated as a normal end.
        with connection.makefile("rb") as lines, contextlib.suppress(ConnectionError):
            for line in lines:
                try:
                    self._take(json.loads(line))
                except ValueError as error:
                    self.note(f"the network process sent an unreadable line ({error}); it was ignored")

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "event":
            event = from_json(message["event"])
            self.run_has_ended |= isinstance(event.fact, RunChanged) and event.fact.has_ended
            self.show(event)
        elif kind == "addresses":
            self.addresses = tuple(message["addresses"])
            own = OwnAddresses(self.addresses)
            if self.hear is None:
                for sentence in own.sentences():
                    self.note(sentence)
            else:
                self.hear(own)
        elif kind == "seen":
            if self.hear is not None:
                self.hear(SwarmSeen.from_fields(message["seen"]))
        elif kind == "run":
            self._record = decode_run_record(bytes.fromhex(message["record"]), run_id=self.config.run_id)
            self._found.set()
            with self._lock:
                self._send_mailbox()
        elif kind == "fault":
            fault = _FAULTS.get(message["exit_code"], LocalFault)(message["message"])
            if message.get("may_pass"):
                self._passing = fault
                return
            self._fault = fault
            self._found.set()


class Restarts:
    """Decides when a dead child restarts: after growing pauses, and finally no more."""

    def __init__(self) -> None:
        self._died_at: deque[float] = deque()

    def pause_seconds(self, now: float, *, has_begun: bool) -> float | None:
        """Return the pause before a restart after a death at `now`; None: no restart.

        Args:
            now: seconds of a monotonic clock.
            has_begun: whether the child had found its run.
        """
        while self._died_at and now - self._died_at[0] >= WINDOW_SECONDS:
            self._died_at.popleft()
        num_lately = sum(now - at < CALM_SECONDS for at in self._died_at)
        if len(self._died_at) >= (MAX_RESTARTS if has_begun else MAX_RESTARTS_AT_START):
            return None
        self._died_at.append(now)
        return min(FIRST_PAUSE_SECONDS * 2.0**num_lately, LONGEST_PAUSE_SECONDS)
