"""Outgoing and incoming round messages between peers: lanes over a Host's streams.

Each remote has two outgoing lanes, so that a plan never waits behind bulk data: `control` and `data`. A lane opens its
stream when the first message is posted, introduces itself with a hello, and stays open. When it breaks, everything
queued on it is dropped and the owner is told once. A data lane with more waiting opens further streams, which take
turns at its queue. A multiplexed stream may only have so much under way, and permission for more comes back behind the
bulk data of the other direction. Messages are one-way: what needs an answer says so in its own protocol. The stream
itself says only that a long frame, or an empty one, was read, and when. That is how a sender learns what its line
takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from averaging.lanes.congestion_control import LinePace
from averaging.lanes.handshake import HandshakePolicy, greet_incoming, open_greeted_stream
from averaging.lanes.line_capacity import UploadRate
from averaging.wire import frames
from averaging.wire.field_checks import Limits
from averaging.wire.messages import Message
from dht.ground.bounds import Allowances
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import Host, PeerId, Stream
from dht.ground.tasks import end_tasks
from dht.streams.streams_per_remote import StreamCounts
from dht.streams.upload_and_download_limits import Pace

ROUND_PROTOCOL = "/murmuration/round/4"
SLOWEST_BYTES_PER_SECOND = 16_000
"""A remote that takes less (128 kbit/s) is treated as gone: a fragment of a small model would take minutes."""
SEND_GRACE_SECONDS = 20.0
"""On top of the slowest transfer time of a frame; home routers stall for several seconds under load."""
MAX_QUEUED_BYTES = 256 * 1024 * 1024
"""Per lane. A peer's largest sensible queue is one encoded fragment; above this the remote has stopped reading."""
DATA_STREAMS = 3
"""Of one data lane at most. Rounds of 25 M values over 100 and 400 Mbit/s took 10 to 14 % less than with one."""
BYTES_PER_SECOND_OF_STREAM = 1e6
"""What one stream can be relied on for: half of its first window, 128 KiB, in a round trip of an eighth of a second."""
ALL_DATA_STREAMS = 24
"""Of all data lanes, beyond the first of each. With many remotes, none of them needs much under way, and all of a large
roster's streams must find room at each of its members."""
MAX_INCOMING_STREAMS_PER_PEER = 16
"""Four streams of two lanes, doubled while old ones are being replaced after a reconnect, doubled again for slack."""
ACKNOWLEDGED_BYTES = 4096
"""Longer frames are acknowledged, and empty ones."""
SHORT_AT_ONCE, SECONDS_PER_SHORT = 8192, 1e-3
"""Short frames of one remote, and until one more is read. A round takes 3 to 6 of them for each fragment: 20 rounds of
128 fragments at once, then one or two a second. Each costs this process 10 to 80 microseconds, whatever it says."""
STRANGERS = 4
"""All remotes that have not worked here share what so many may write, because one host has as many keys as it likes."""
BYTES_AS_SHORT = 512
"""Of a header: so many cost as much as one short frame more. The 52 kB of a commit of 256 members take 8 ms to read."""
SLOWED_SECONDS = 0.1
"""Before it is looked again whether one beyond that may be read."""
QUIET_SECONDS = 1.0
"""Without an acknowledgement, when nothing waits either: what is still unread may never be acknowledged."""
CLOCK_BYTES = 8
"""Of an acknowledgement: microseconds by the receiver's clock when it had read the frame, big-endian."""

Lane = Literal["control", "data"]
Parts = Sequence[bytes | memoryview]
Buffer = bytes | bytearray | memoryview


@dataclass
class Traffic:
    """Bytes of round messages, frame headers included, and what the lines take up (0: not known)."""

    sent_bytes: int = 0
    sent_abroad_bytes: int = 0
    """Those to peers of other sites."""
    received_bytes: int = 0
    upload_bits_per_second: float = 0.0


@dataclass(slots=True)
class _Unread:
    """A frame whose acknowledgement is to come."""

    num_bytes: int
    started_at: float
    parts: Parts = ()
    written_at: float | None = None
    passed_bytes: int = 0
    """What had been written to the line by then."""


@dataclass
class _OutgoingLane:
    remote: PeerId
    name: Lane
    queue: deque[Parts] = field(default_factory=deque)
    sending: list[Parts] = field(default_factory=list)
    """What left the queue and was not written as a whole."""
    queued_bytes: int = 0
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    unread_bytes: int = 0
    """Written, or about to be, and not acknowledged."""
    num_sending: int = 0
    """Streams that are in the middle of a frame."""
    num_waiting: int = 0
    """Streams that have nothing to send."""
    greeted_at: float = -math.inf
    """The pause before which an empty frame was sent last."""
    clock_ahead: float = math.inf
    """Least seconds by which the remote's clock was ahead of when a frame left here: its clock's and the way's."""
    is_over: bool = False

    def wants_stream(self, num_lanes: int) -> bool:
        """Whether more waits than its streams can take up at once; `num_lanes` with data are in use."""
        if self.name == "control" or not self.tasks:
            return not self.tasks
        most = min(DATA_STREAMS, ALL_DATA_STREAMS // num_lanes)
        return len(self.tasks) < most and len(self.queue) > 1 and not self.num_waiting


@dataclass(frozen=True, slots=True)
class _OutgoingStream:
    """One stream of a lane, what its remote has not acknowledged, and the task that hears what it has."""

    lane: _OutgoingLane
    stream: Stream
    watcher: asyncio.Future[None]
    unread: deque[_Unread]

    async def send(self, frame: bytes | memoryview) -> None:
        """Raises PeerFault when the remote takes nothing, or when `watcher` has ended."""
        deadline = SEND_GRACE_SECONDS + len(frame) / SLOWEST_BYTES_PER_SECOND
        sending = asyncio.ensure_future(self.stream.send(frame))
        try:
            # Most frames fit the transport's buffer and are gone at once.
            await asyncio.sleep(0)
            if not sending.done():
                both: set[asyncio.Future[Any]] = {sending, self.watcher}
                await asyncio.wait(both, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            sending.cancel()
            raise
        if not sending.done():
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, PeerFault):
                await sending
            if self.watcher.done():
                self.watcher.result()
            raise PeerUnreachable(self.lane.remote, f"took no data for {deadline:.0f} s")
        sending.result()


@dataclass(frozen=True, slots=True)
class LinkPorts:
    """What lanes tell their owner, and what they ask.

    Attributes:
        on_message: (sender, message, payload, frame bytes); must not block.
        on_lost: told once when a remote is gone: (remote, reason).
        on_refused: a remote broke the protocol: (remote, what).
        is_abroad: whether a remote is at another site.
        on_met: a remote has opened a stream as a member, or answered one.
        has_worked: whether a remote's work stood in the run's commits.
    """

    on_message: Callable[[PeerId, Message, memoryview, int], None]
    on_lost: Callable[[PeerId, str], None]
    on_refused: Callable[[PeerId, str], None]
    is_abroad: Callable[[PeerId], bool] = lambda remote: False
    on_met: Callable[[PeerId], None] = lambda remote: None
    has_worked: Callable[[PeerId], bool] = lambda remote: True


class Links:
    """All lanes of one peer; see the module docstring.

    Args:
        line: through which all data pass, told the pace that the line takes; None: something else paces them.
        max_queued_bytes: per lane; above this the remote has stopped reading.
    """

    def __init__(
        self,
        host: Host,
        handshake_policy: HandshakePolicy,
        limits: Limits,
        ports: LinkPorts,
        clock: Callable[[], float] = time.monotonic,
        line: Pace | None = None,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self.traffic = Traffic()
        self._rate = UploadRate()
        self._measured = 0.0
        self._pace = LinePace()
        self._resumed_at = -math.inf
        """When data were posted while none was under way."""
        self._moved_at = -math.inf
        """When data were last acknowledged."""
        self._line = line
        self.most_bits_per_second = math.inf
        """What the owner of this peer allows: nobody should count on more, whatever was measured."""
        self._max_queued_bytes = max_queued_bytes
        self._on_read: Callable[[PeerId, Parts], None] = lambda remote, parts: None
        self._is_stale: Callable[[Parts], bool] = lambda parts: False
        self._host = host
        self._handshake_policy = handshake_policy
        self._limits = limits
        self._ports = ports
        self._clock = clock
        self._lanes: dict[tuple[PeerId, Lane], _OutgoingLane] = {}
        self._incoming = StreamCounts(MAX_INCOMING_STREAMS_PER_PEER)
        self._short = Allowances[PeerId](SHORT_AT_ONCE, SECONDS_PER_SHORT)
        self._short_of_strangers = Allowances[None](STRANGERS * SHORT_AT_ONCE, SECONDS_PER_SHORT / STRANGERS)
        self._closed = False
        host.handle(ROUND_PROTOCOL, self._serve)

    def limit(self, upload_bits_per_second: float | None, download_bits_per_second: float | None) -> None:
        """What the owner allows. Reducing takes as much of the one as of the other, so the lower counts.

        It is all that is known of the line until a round has measured it.
        """
        limits = [one for one in (upload_bits_per_second, download_bits_per_second) if one is not None]
        self.most_bits_per_second = min(limits, default=math.inf)
        self.traffic.upload_bits_per_second = min(limits, default=0.0)

    def watch(self, on_read: Callable[[PeerId, Parts], None], is_stale: Callable[[Parts], bool]) -> None:
        """Tell `on_read` what of the data a remote has read, and drop data that wait and `is_stale` says are useless.

        The link is for what somebody has a use for.
        """
        self._on_read, self._is_stale = on_read, is_stale

    @property
    def pace_bytes_per_second(self) -> float | None:
        """What data keep to; None: as fast as they can."""
        return self._pace.bytes_per_second

    def send(self, to: PeerId, message: Message, payload: Sequence[Buffer] = ()) -> int:
        """Queue one message; what has a payload is data. Returns the bytes it will take on the stream."""
        parts: list[bytes | memoryview] = [frames.encode(message), *(memoryview(part) for part in payload)]
        return self.post(to, parts, "data" if payload else "control")

    def post(self, to: PeerId, parts: Parts, lane: Lane = "control") -> int:
        """Queue one frame made of `parts`; never blocks. Returns the bytes it will take on the stream.

        Data that wait for a remote already are not queued again: asking twice would make its wait twice as long.
        """
        num_bytes = sum(len(part) for part in parts) + 4
        if self._closed or self._handshake_policy.is_excluded(to):
            return num_bytes
        key = (to, lane)
        outgoing = self._lanes.get(key)
        if outgoing is None or outgoing.is_over:
            outgoing = self._lanes[key] = _OutgoingLane(to, lane)
        if lane == "data":
            if any(_are_equal(parts, waiting) for waiting in (*outgoing.sending, *outgoing.queue)):
                return num_bytes
            now = self._clock()
            if not self._is_under_way(now):
                self._resumed_at = now
                self._pace.resumed(now, 0 if self._line is None else self._line.passed_bytes)
                self._steer()
            self._rate.began(to, now)
        outgoing.queue.append(tuple(parts))
        outgoing.queued_bytes += num_bytes
        outgoing.filled.set()
        if outgoing.wants_stream(sum(name == "data" for _, name in self._lanes)):
            running = self._run_stream(outgoing, is_first=not outgoing.tasks)
            outgoing.tasks.append(asyncio.get_running_loop().create_task(running))
        if outgoing.queued_bytes > self._max_queued_bytes:
            reason = f"it stopped reading with {outgoing.queued_bytes >> 20} MiB queued"
            self._end(outgoing)
            self._ports.on_lost(to, reason)
        return num_bytes

    @property
    def has_bulk_waiting(self) -> bool:
        """Whether shards of a round wait for this peer's line."""
        return any(lane.queued_bytes for (_, name), lane in self._lanes.items() if name == "data")

    def _is_under_way(self, now: float) -> bool:
        lanes = [lane for (_, name), lane in self._lanes.items() if name == "data"]
        is_unread = now - self._moved_at <= QUIET_SECONDS and any(lane.unread_bytes for lane in lanes)
        return is_unread or any(lane.queued_bytes for lane in lanes)

    async def close(self) -> None:
        self._closed = True
        tasks = [task for lane in self._lanes.values() for task in lane.tasks]
        for lane in list(self._lanes.values()):
            self._end(lane)
        await end_tasks(tasks)

    async def flush(self, seconds: float) -> None:
        """Wait until everything was sent, and what is long was read, at most `seconds`."""
        end = self._clock() + seconds
        while any(lane.queued_bytes or lane.unread_bytes for lane in self._lanes.values()):
            if self._clock() >= end:
                return
            await asyncio.sleep(0.02)

    async def _run_stream(self, lane: _OutgoingLane, *, is_first: bool) -> None:
        try:
            stream = await open_greeted_stream(self._host, self._handshake_policy, lane.remote, ROUND_PROTOCOL)
        except PeerFault as fault:
            # A remote that takes no further streams has the first one nevertheless.
            if is_first:
                self._lost(lane, fault)
            return
        self._ports.on_met(lane.remote)
        unread = deque[_Unread]()
        watcher = asyncio.ensure_future(self._take_acknowledgements(lane, stream, unread))
        watcher.add_done_callback(lambda _: lane.filled.set())
        outgoing = _OutgoingStream(lane, stream, watcher, unread)
        try:
            while True:
                while lane.queue and lane.num_sending < self._streams_worth(lane):
                    lane.num_sending += 1
                    try:
                        await self._send_next(outgoing)
                    finally:
                        lane.num_sending -= 1
                lane.filled.clear()
                if not watcher.done():
                    lane.num_waiting += 1
                    try:
                        await lane.filled.wait()
                    finally:
                        lane.num_waiting -= 1
                if watcher.done():
                    watcher.result()
        except PeerFault as fault:
            self._lost(lane, fault)
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError, PeerFault):
                await watcher
            await stream.close()

    def _streams_worth(self, lane: _OutgoingLane) -> int:
        """How many streams of a lane may send at once: frames one after the other arrive earlier than side by side."""
        pace = self.pace_bytes_per_second
        if lane.name == "control" or pace is None:
            return DATA_STREAMS
        num_lanes = sum(name == "data" and bool(other.queue) for (_, name), other in self._lanes.items())
        return min(DATA_STREAMS, math.ceil(pace / max(1, num_lanes) / BYTES_PER_SECOND_OF_STREAM))

    async def _take_acknowledgements(self, lane: _OutgoingLane, stream: Stream, unread: deque[_Unread]) -> None:
        """Of the frames in `unread`, in their order; ends with the stream.

        Raises:
            PeerFault: the remote said something else, or the stream is over.
        """
        while True:
            clock, now = await stream.receive(CLOCK_BYTES), self._clock()
            if len(clock) != CLOCK_BYTES:
                raise PeerFault(lane.remote, f"acknowledged with {len(clock)} bytes; expected {CLOCK_BYTES}")
            if not unread:
                raise PeerFault(lane.remote, "acknowledged more than it was sent")
            frame, read_at = unread.popleft(), int.from_bytes(clock, "big") * 1e-6
            lane.unread_bytes -= frame.num_bytes
            lane.clock_ahead = min(lane.clock_ahead, read_at - frame.started_at)
            if not frame.num_bytes:
                self._pace.greeted(lane.remote, frame.started_at, read_at, now)
            elif lane.name == "data":
                self._rate.acknowledged(
                    lane.remote, frame.num_bytes, frame.started_at, now, read_at - frame.started_at - lane.clock_ahead
                )
                self._note_rate()
                self._on_read(lane.remote, frame.parts)
                self._moved_at = now
                if self._line is not None:
                    is_noticed = frame.written_at is not None
                    written = (frame.written_at or now), (frame.passed_bytes if is_noticed else self._line.passed_bytes)
                    self._pace.acknowledged(lane.remote, *written, read_at, now)
                    self._steer()

    async def _send_next(self, outgoing: _OutgoingStream) -> None:
        lane = outgoing.lane
        parts = lane.queue.popleft()
        if lane.name == "data" and self._is_stale(parts):
            lane.queued_bytes -= sum(len(part) for part in parts) + 4
            self._note_end(lane)
            return
        lane.sending.append(parts)
        try:
            await self._send_parts(outgoing, parts)
        finally:
            lane.sending.remove(parts)

    async def _send_parts(self, outgoing: _OutgoingStream, parts: Parts) -> None:
        lane = outgoing.lane
        if lane.name == "data" and lane.greeted_at != self._resumed_at:
            lane.greeted_at = self._resumed_at
            outgoing.unread.append(_Unread(0, self._clock()))
            await outgoing.send(b"")
        frame = parts[0] if len(parts) == 1 else b"".join(parts)
        sent = _Unread(len(frame), self._clock(), parts)
        if len(frame) > ACKNOWLEDGED_BYTES:
            outgoing.unread.append(sent)
            lane.unread_bytes += len(frame)
            if lane.name == "data":
                self._rate.sent(lane.remote, len(frame), sent.started_at)
        await outgoing.send(frame)
        lane.queued_bytes -= len(frame) + 4
        self.traffic.sent_bytes += len(frame) + 4
        self.traffic.sent_abroad_bytes += len(frame) + 4 if self._ports.is_abroad(lane.remote) else 0
        if lane.name == "data":
            sent.written_at = self._clock()
            sent.passed_bytes = 0 if self._line is None else self._line.passed_bytes
            self._note_end(lane)

    def _note_end(self, lane: _OutgoingLane) -> None:
        if lane.name == "data" and not lane.queued_bytes:
            self._rate.ended(lane.remote)
            self._note_rate()

    def _note_rate(self) -> None:
        before, self._measured = self._measured, self._rate.bits_per_second
        if self._measured or before:
            unmeasured = self.most_bits_per_second if math.isfinite(self.most_bits_per_second) else 0.0
            self.traffic.upload_bits_per_second = min(self._measured or unmeasured, self.most_bits_per_second)

    def _steer(self) -> None:
        if self._line is not None and self._pace.bytes_per_second is not None:
            self._line.follow(self._pace.bytes_per_second)

    def _end(self, lane: _OutgoingLane) -> None:
        """Close all streams of a lane and forget what waits in it."""
        lane.is_over = True
        lane.queue.clear()
        lane.queued_bytes = lane.unread_bytes = 0
        if lane.name == "data":
            self._pace.forget(lane.remote)
            self._rate.lost(lane.remote)
        if self._lanes.get((lane.remote, lane.name)) is lane:
            del self._lanes[(lane.remote, lane.name)]
        for task in lane.tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def _lost(self, lane: _OutgoingLane, fault: PeerFault) -> None:
        if lane.is_over:
            return
        self._end(lane)
        if not self._closed:
            self._ports.on_lost(lane.remote, fault.what)

    async def _serve(self, stream: Stream) -> None:
        with self._incoming.one_more(stream.remote):
            try:
                await self._hear(stream)
            except PeerUnreachable:
                return
            except PeerFault as fault:
                self._ports.on_refused(stream.remote, fault.what)
                raise

    async def _hear(self, stream: Stream) -> None:
        remote = stream.remote
        role = await greet_incoming(stream, self._handshake_policy)
        if role == "observer":
            raise PeerFault(remote, "is an observer and opened a stream for rounds; observers take no part")
        while not self._closed:
            frame = await stream.receive(self._limits.max_frame_bytes)
            await self._slow_down(remote, frame)
            read_at = int(self._clock() * 1e6).to_bytes(CLOCK_BYTES, "big")
            if not frame:
                await stream.send(read_at)
                continue
            if self._handshake_policy.is_excluded(remote):
                raise PeerFault(remote, "is no member any more")
            self.traffic.received_bytes += len(frame) + 4
            message, payload = frames.decode(frame, remote, self._limits)
            self._ports.on_message(remote, message, payload, len(frame) + 4)
            # Last: a remote that has just left gets nothing more, but what it sent counts.
            if len(frame) > ACKNOWLEDGED_BYTES:
                await stream.send(read_at)

    async def _slow_down(self, remote: PeerId, frame: bytes) -> None:
        """What is not read yet waits at its sender's."""
        long = min(frames.header_bytes_of(frame), len(frame)) // BYTES_AS_SHORT
        cost = min((len(frame) <= ACKNOWLEDGED_BYTES) + long, SHORT_AT_ONCE)
        while cost and not self._short.spend(remote, self._clock(), cost):  # noqa: ASYNC110 (time gives more)
            await asyncio.sleep(SLOWED_SECONDS)
        is_stranger = cost > 0 and not self._ports.has_worked(remote)
        while is_stranger and not self._short_of_strangers.spend(None, self._clock(), cost):  # noqa: ASYNC110
            await asyncio.sleep(SLOWED_SECONDS)


def _are_equal(parts: Parts, others: Parts) -> bool:
    """Headers first: they are short, and differ."""
    return len(parts) == len(others) and all(one == other for one, other in zip(parts, others, strict=True))
