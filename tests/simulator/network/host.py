"""MemoryNetwork and MemoryHost: a whole swarm's network in one process, for tests and the simulator.

Everything that goes wrong on home lines can be asked for: latency, narrow uploads, streams that break, a split network.
So can a peer that crashes and returns, and one that stays connected but lets no byte through. The seed decides every
random number; under `tests.simulator.virtual_time` the same program gives the same events on each run.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from itertools import islice

from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import PeerId, Stream, StreamHandler
from dht.identity.multiaddr import parse_peer_multiaddr
from tests.simulator.network.lines import LineSettings, MemoryStream, Pipe, SimulatedLine

STREAM_LOSS_WITHIN_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Connection:
    number: int
    lines: tuple[SimulatedLine, SimulatedLine]
    streams: tuple[MemoryStream, MemoryStream]
    pipes: tuple[Pipe, Pipe]
    latency_seconds: float

    @property
    def is_over(self) -> bool:
        return self.streams[0].is_over and self.streams[1].is_over


class MemoryNetwork:
    """The network between `MemoryHost`s. Use it within one running loop.

    Args:
        seed: of all random choices.
        latency_seconds: range of the one-way latency; each pair of peers gets its own from it.
        upload_bits_per_second, download_bits_per_second: of hosts that do not choose their own.
        window_bytes: a stream holds at most this much that its reader has not taken.
        stream_loss: probability that a new stream breaks within its first `STREAM_LOSS_WITHIN_SECONDS`.
        lose_unread_on_close: a side that closes takes what the other has not read yet with it, as a daemon may do;
            False delivers it first.
        partition_break_seconds: streams across a partition break after this time; until then they are silent.
        same_site_latency_seconds: one way between two hosts of one named site; None makes no difference.
    """

    def __init__(
        self,
        seed: int,
        *,
        latency_seconds: tuple[float, float] = (0.01, 0.08),
        upload_bits_per_second: float = 20e6,
        download_bits_per_second: float = 100e6,
        window_bytes: int = 1024 * 1024,
        stream_loss: float = 0.0,
        lose_unread_on_close: bool = False,
        partition_break_seconds: float = 15.0,
        same_site_latency_seconds: float | None = None,
    ) -> None:
        self.handler_errors: list[Exception] = []
        """What handlers raised except PeerFault: bugs. Tests assert that it is empty."""
        self._seed = seed
        self._latency_range = latency_seconds
        self._upload_bits_per_second = upload_bits_per_second
        self._download_bits_per_second = download_bits_per_second
        self._window_bytes = window_bytes
        self._stream_loss = stream_loss
        self._lose_unread_on_close = lose_unread_on_close
        self._partition_break_seconds = partition_break_seconds
        self._same_site_latency_seconds = same_site_latency_seconds
        self._lines: dict[PeerId, SimulatedLine] = {}
        self._hosts: dict[PeerId, MemoryHost] = {}
        self._latencies: dict[tuple[PeerId, PeerId], float] = {}
        self._connections: dict[int, _Connection] = {}
        self._numbers_of: dict[PeerId, set[int]] = {}
        """Peer -> keys of `_connections` that it has one end of, some of them over."""
        self._num_opened = 0
        self._prune_above = 64
        self._num_partitions = 0
        self._sides: dict[PeerId, int] = {}
        self._stalled: set[PeerId] = set()
        self._changed = asyncio.Event()
        self.context = copy_context()
        """What the network does by itself runs in it, whatever caused it."""

    def sent_bytes(self, peer_id: PeerId) -> int:
        """Bytes that left the peer, frame headers included."""
        return self._line(peer_id).sent_bytes

    def received_bytes(self, peer_id: PeerId) -> int:
        """Bytes that arrived at the peer, frame headers included."""
        return self._line(peer_id).received_bytes

    def sent_abroad_bytes(self, peer_id: PeerId) -> int:
        """Those of `sent_bytes` that went to a host of another site."""
        return self._line(peer_id).sent_abroad_bytes

    @property
    def num_streams(self) -> int:
        """Streams that are open on at least one side."""
        return len(self._live_connections())

    def latency_between(self, one: PeerId, other: PeerId) -> float:
        """One-way seconds between two peers; the same in both directions."""
        pair = (one, other) if one < other else (other, one)
        latency_seconds = self._latencies.get(pair)
        if latency_seconds is None:
            latency_seconds = self._drawn_latency(*pair)
            if one in self._lines and other in self._lines:
                self._latencies[pair] = latency_seconds
        return latency_seconds

    def _drawn_latency(self, one: PeerId, other: PeerId) -> float:
        first, second = self._lines.get(one), self._lines.get(other)
        if first is not None and second is not None:
            here, there = first.settings, second.settings
            if self._same_site_latency_seconds is not None and here.site and here.site == there.site:
                return self._same_site_latency_seconds
            if here.latency_seconds is not None and there.latency_seconds is not None:
                return here.latency_seconds + there.latency_seconds
        return random.Random(f"{self._seed} latency {one} {other}").uniform(*self._latency_range)

    def can_reach(self, one: PeerId, other: PeerId) -> bool:
        """Whether both peers are up and nothing stands between them at the moment."""
        first, second = self._lines.get(one), self._lines.get(other)
        return first is not None and second is not None and first.reaches(second)

    def num_reachable(self, peer_id: PeerId, at_most: int | None = None) -> int:
        """How many live hosts a peer can reach, counted as far as `at_most`."""
        return sum(1 for _ in islice(self.reachable(peer_id), at_most))

    def reachable(self, peer_id: PeerId) -> Iterator[PeerId]:
        """The live hosts that a peer can reach."""
        live = (other for other, host in self._hosts.items() if host.is_live and other != peer_id)
        return (other for other in live if self.can_reach(peer_id, other))

    @property
    def is_whole(self) -> bool:
        """Whether all peers are on the same side."""
        return not self._sides and not self._stalled

    def on_same_side(self, one: PeerId, other: PeerId) -> bool:
        """Whether no partition or stall stands between two peers, alive or not."""
        return not self._is_cut(self._line(one), self._line(other))

    def crash(self, peer_id: PeerId) -> None:
        """The peer's process dies: its handlers stop, its streams break on both sides, nobody can open new ones."""
        self._line(peer_id).go(is_up=False)
        host = self._hosts[peer_id]
        host.cancel_handlers()
        for connection in self._connections_of(peer_id):
            self._abort(connection, connection.lines.index(self._line(peer_id)), "the process was killed")

    def restore(self, peer_id: PeerId) -> None:
        """The crashed peer answers again, with the handlers it had; or make a new MemoryHost with its PeerId."""
        self._line(peer_id).go(is_up=True)
        self._notify()

    def stall(self, peer_id: PeerId) -> None:
        """Nothing passes to or from the peer, yet its streams stay open: a slow-loris, or a line gone silent."""
        self._line(peer_id).stall(is_stalled=True)
        self._stalled.add(peer_id)

    def resume(self, peer_id: PeerId) -> None:
        """End `stall`; what was under way arrives now."""
        self._line(peer_id).stall(is_stalled=False)
        self._stalled.discard(peer_id)
        self._notify()

    def partition(self, *groups: Iterable[PeerId]) -> None:
        """Split the network: peers of different groups cannot talk. Those in no group form one of their own.

        Peers whose host is made later are on the side that is named here.
        """
        self._sides = {peer_id: number for number, group in enumerate(groups, start=1) for peer_id in group}
        for peer_id, line in self._lines.items():
            line.join_side(self._sides.get(peer_id, 0))
        self._num_partitions += 1
        loop = asyncio.get_running_loop()
        seconds = self._partition_break_seconds
        loop.call_later(seconds, self._break_cut_streams, self._num_partitions, context=self.context)
        self._notify()

    def heal(self) -> None:
        """End the partition. Streams that have not broken yet go on where they were."""
        self._sides = {}
        for line in self._lines.values():
            line.join_side(0)
        self._num_partitions += 1
        self._notify()

    # What hosts and stores need; not for tests.

    def register(self, host: MemoryHost, settings: LineSettings) -> SimulatedLine:
        old = self._hosts.get(host.peer_id)
        if old is not None and old.is_live:
            raise ValueError(
                f"{host.peer_id} has a live host already; expected one per PeerId: close or crash it first"
            )
        if old is not None:
            old.retire()
        known = line = self._lines.get(host.peer_id)
        if line is None:
            number = len(self._lines) + 1
            line = SimulatedLine(host.peer_id, number, self._upload_bits_per_second, self._download_bits_per_second)
            self._lines[host.peer_id] = line
            line.join_side(self._sides.get(host.peer_id, 0))
        line.plug_in(settings)
        self._hosts[host.peer_id] = host
        if known is not None:
            # Nothing can wait for a peer that was never there, and thousands may begin together.
            self._notify()
        return line

    async def dial(self, caller: MemoryHost, peer_id: PeerId) -> MemoryHost:
        """One round trip to a live host; waits without end while a partition or a stall is in between.

        Raises:
            PeerUnreachable: there is no such host.
        """
        await asyncio.sleep(2 * self.latency_between(caller.peer_id, peer_id))
        line = self._lines.get(peer_id)
        while line is not None and self._is_cut(self._line(caller.peer_id), line):
            await self._changed.wait()
        caller.check_live()
        host = self._hosts.get(peer_id)
        if host is None or not host.is_live:
            raise PeerUnreachable(peer_id, "nobody answers; it has left or crashed; it is tried again later")
        return host

    def connect_streams(self, caller: MemoryHost, called: MemoryHost) -> tuple[MemoryStream, MemoryStream]:
        """(the caller's side, the called one's side) of a new stream."""
        self._num_opened += 1
        number = self._num_opened
        lines = (self._line(caller.peer_id), self._line(called.peer_id))
        latency_seconds = self.latency_between(caller.peer_id, called.peer_id)
        there = Pipe(lines[0], lines[1], latency_seconds, self._window_bytes, self.context)
        back = Pipe(lines[1], lines[0], latency_seconds, self._window_bytes, self.context)
        streams = (
            MemoryStream(called.peer_id, there, back, lambda reason: self._abort(connection, 0, reason)),
            MemoryStream(caller.peer_id, back, there, lambda reason: self._abort(connection, 1, reason)),
        )
        connection = _Connection(number, lines, streams, (there, back), latency_seconds)
        drop_unread = self._lose_unread_on_close
        there.watch_end(lambda: streams[1].remote_finished(drop_unread=drop_unread))
        back.watch_end(lambda: streams[0].remote_finished(drop_unread=drop_unread))
        self._connections[number] = connection
        for line in lines:
            self._numbers_of.setdefault(line.peer_id, set()).add(number)
        if len(self._connections) > self._prune_above:
            self._prune_above = 2 * len(self._live_connections()) + 64
        own_loss = lines[0].settings.stream_loss
        stream_loss = self._stream_loss if own_loss is None else own_loss
        if stream_loss and (randomness := random.Random(f"{self._seed} loss {number}")).random() < stream_loss:
            delay = randomness.uniform(0.0, STREAM_LOSS_WITHIN_SECONDS)
            loop = asyncio.get_running_loop()
            loop.call_later(delay, self._break_both, connection, "the line dropped it", context=self.context)
        return streams

    def end_streams_of(self, peer_id: PeerId) -> None:
        for connection in self._connections_of(peer_id):
            connection.streams[connection.lines.index(self._line(peer_id))].finish()

    def _line(self, peer_id: PeerId) -> SimulatedLine:
        if peer_id not in self._lines:
            raise ValueError(f"no MemoryHost was ever made for {peer_id}; expected one of {len(self._lines)} peers")
        return self._lines[peer_id]

    def _is_cut(self, one: SimulatedLine, other: SimulatedLine) -> bool:
        return one.group != other.group or one.is_stalled or other.is_stalled

    def _live_connections(self) -> list[_Connection]:
        for connection in [connection for connection in self._connections.values() if connection.is_over]:
            self._forget(connection)
        return list(self._connections.values())

    def _forget(self, connection: _Connection) -> None:
        del self._connections[connection.number]
        for line in connection.lines:
            self._numbers_of[line.peer_id].discard(connection.number)

    def _connections_of(self, peer_id: PeerId) -> list[_Connection]:
        found = [self._connections[number] for number in sorted(self._numbers_of.get(peer_id, ()))]
        for connection in found:
            if connection.is_over:
                self._forget(connection)
        return [connection for connection in found if not connection.is_over]

    def _abort(self, connection: _Connection, mine: int, reason: str) -> None:
        """One side breaks the stream; the other notices when that has crossed the network."""
        connection.streams[mine].break_off(reason)
        other = connection.streams[1 - mine]
        loop = asyncio.get_running_loop()
        seconds = connection.latency_seconds
        loop.call_later(seconds, other.break_off, "the remote broke it off", context=self.context)

    def _break_both(self, connection: _Connection, reason: str) -> None:
        for stream in connection.streams:
            stream.break_off(reason)

    def _break_cut_streams(self, partition_number: int) -> None:
        if partition_number == self._num_partitions:
            for connection in self._live_connections():
                if connection.lines[0].group != connection.lines[1].group:
                    self._break_both(connection, "the network between the peers is gone")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for connection in self._live_connections():
            for pipe in connection.pipes:
                pipe.release()


class MemoryHost:
    """The `Host` port on a `MemoryNetwork`.

    Raises:
        ValueError: the PeerId has a live host already.
    """

    def __init__(self, network: MemoryNetwork, peer_id: PeerId, line: LineSettings | None = None) -> None:
        self._network = network
        self.peer_id = peer_id
        self._handlers: dict[str, StreamHandler] = {}
        # A dictionary, because a set of tasks has no fixed order.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False
        self._context = copy_context()
        self._line = network.register(self, line or LineSettings())

    @property
    def is_live(self) -> bool:
        """Neither closed nor crashed."""
        return self._line.is_up and not self._is_closed

    def addresses(self) -> list[str]:
        number = self._line.number
        return [f"/ip4/10.{number >> 16}.{number >> 8 & 255}.{number & 255}/tcp/4001/p2p/{self.peer_id}"]

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """See the port; a second call replaces the handler."""
        self._handlers[protocol] = handler

    async def connect(self, multiaddr: str, timeout_seconds: float) -> PeerId:
        peer_id, place = parse_peer_multiaddr(multiaddr)
        host = await self._dial(peer_id, timeout_seconds)
        if host.addresses() != [str(place.with_peer_id(peer_id))]:
            raise PeerUnreachable(peer_id, f"is not at {place}; expected its own address; check it")
        return peer_id

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        called = await self._dial(peer_id, timeout_seconds)
        handler = called._handlers.get(protocol)
        if handler is None:
            raise PeerUnreachable(peer_id, f"does not speak {protocol}; it has another version or another role")
        mine, theirs = self._network.connect_streams(self, called)
        called._serve(handler, theirs, protocol)
        return mine

    async def close(self) -> None:
        """See the port. Handlers are cancelled and awaited; streams end on both sides."""
        self._is_closed = True
        self.cancel_handlers()
        await asyncio.gather(
            *(task for task in self._tasks if task is not asyncio.current_task()), return_exceptions=True
        )
        self._network.end_streams_of(self.peer_id)

    def cancel_handlers(self) -> None:
        """Stop all running handlers, without waiting for them."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def retire(self) -> None:
        """Another host has taken over the PeerId."""
        self._is_closed = True

    def check_live(self) -> None:
        """Raises PeerUnreachable when this host is closed or crashed."""
        if not self.is_live:
            raise PeerUnreachable(self.peer_id, "this host is closed; make a new one")

    async def _dial(self, peer_id: PeerId, timeout_seconds: float) -> MemoryHost:
        self.check_live()
        if peer_id == self.peer_id:
            raise PeerUnreachable(peer_id, "is this peer itself; expected another one")
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._network.dial(self, peer_id)
        except TimeoutError as error:
            raise PeerUnreachable(
                peer_id, f"did not answer within {timeout_seconds:g} s; it is tried again later"
            ) from error

    def _serve(self, handler: StreamHandler, stream: MemoryStream, protocol: str) -> None:
        # In the context of this host's process, not of the caller's.
        running = self._run_handler(handler, stream, protocol)
        task = asyncio.get_running_loop().create_task(running, context=self._context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _run_handler(self, handler: StreamHandler, stream: MemoryStream, protocol: str) -> None:
        try:
            await handler(stream)
        except PeerFault as fault:
            log.debug("the stream %s ended: %s", protocol, fault)
        except Exception as error:
            # The port promises that a handler's bug does not stop the host.
            self._network.handler_errors.append(error)
            log.exception("the handler of %s failed; this is a bug", protocol)
        finally:
            await stream.close()
