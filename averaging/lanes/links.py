"""Outgoing and incoming round messages between peers, on lanes over a Host's streams.

Each remote has two outgoing lanes, `control` and `data`, so that a plan never waits behind bulk data. A lane opens its
stream when the first message is posted, introduces itself with a hello, and stays open. When it breaks, it drops all
queued messages and calls its owner once. A data lane with several waiting messages opens further streams, which send
from its queue in turn. A multiplexed stream may only have a limited amount in flight, and permission for more waits
behind the bulk data of the other direction. Messages are one-way: protocols that need an answer define it. The stream
itself only acknowledges long frames and empty ones, with the time at which they were read. A sender learns its line's
capacity from these acknowledgements.
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
"""A slower remote (128 kbit/s) counts as gone: a fragment of a small model would take minutes."""
SEND_GRACE_SECONDS = 20.0
"""Added to the transfer time at the slowest rate: home routers stall for several seconds under load."""
MAX_QUEUED_BYTES = 256 * 1024 * 1024
"""Limit for each lane. The largest sensible queue is one encoded fragment; beyond this limit the remote has stopped
reading."""
DATA_STREAMS = 3
"""Most streams of one data lane. Rounds of 25 M values over 100 and 400 Mbit/s took 10 to 14 % less time than
with one."""
BYTES_PER_SECOND_OF_STREAM = 1e6
"""Reliable rate of one stream: half of its first window, 128 KiB, in a round trip of an eighth of a second."""
ALL_DATA_STREAMS = 24
"""Most additional streams of all data lanes, beyond the first of each lane. With many remotes each needs little in
flight, and each member of a large roster must accept the streams of all others."""
MAX_INCOMING_STREAMS_PER_PEER = 16
"""Four streams of two lanes, doubled while a reconnect replaces old ones, doubled again for slack."""
ACKNOWLEDGED_BYTES = 4096
"""The receiver acknowledges longer frames, and empty ones."""
SHORT_AT_ONCE, SECONDS_PER_SHORT = 8192, 1e-3
"""Short frames accepted from one remote at once, and seconds until one more is read. A round takes 3 to 6 of them for
each fragment: 20 rounds of 128 fragments at once, then one or two a second. Each costs this process 10 to 80
microseconds, whatever its content."""
STRANGERS = 4
"""All remotes without work here share the allowance of this many remotes, because one host can create any number of
keys."""
BYTES_AS_SHORT = 512
"""This many bytes of a header cost as much as one more short frame. Reading the 52 kB of a commit of 256 members takes
8 ms."""
SLOWED_SECONDS = 0.1
"""Pause before the allowance of a slowed remote is checked again."""
QUIET_SECONDS = 1.0
"""After this time without an acknowledgement and without waiting data, unread frames may never be acknowledged."""
CLOCK_BYTES = 8
"""Length of an acknowledgement: microseconds by the receiver's clock when it had read the frame, big-endian."""

Lane = Literal["control", "data"]
Parts = Sequence[bytes | memoryview]
Buffer = bytes | bytearray | memoryview


@dataclass
class Traffic:
    """Bytes of round messages, including frame headers, and the upload rate (0: unknown)."""

    sent_bytes: int = 0
    sent_abroad_bytes: int = 0
    """Bytes sent to peers at other sites."""
    upload_bits_per_second: float = 0.0


@dataclass(slots=True)
class _Unread:
    """A frame whose acknowledgement has not arrived."""

    num_bytes: int
    started_at: float
    parts: Parts = ()
    written_at: float | None = None
    passed_bytes: int = 0
    """Bytes written to the line by then."""


@dataclass
class _OutgoingLane:
    remote: PeerId
    name: Lane
    queue: deque[Parts] = field(default_factory=deque)
    sending: list[Parts] = field(default_factory=list)
    """Frames that left the queue but are not completely written."""
    queued_bytes: int = 0
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    unread_bytes: int = 0
    """Bytes that are written, or about to be, and not acknowledged."""
    num_sending: int = 0
    """Streams that are sending a frame."""
    num_waiting: int = 0
    """Streams without a frame to send."""
    greeted_at: float = -math.inf
    """End of the pause after which the last empty frame was sent."""
    clock_ahead: float = math.inf
    """Smallest difference between the remote's clock at reading and this peer's clock at sending: clock offset plus the
    one-way time."""
    is_over: bool = False

    def wants_stream(self, num_lanes: int) -> bool:
        """Return whether another stream is needed for the waiting data. `num_lanes`: data lanes in use."""
        if self.name == "control" or not self.tasks:
            return not self.tasks
        most = min(DATA_STREAMS, ALL_DATA_STREAMS // num_lanes)
        return len(self.tasks) < most and len(self.queue) > 1 and not self.num_waiting


@dataclass(frozen=True, slots=True)
class _OutgoingStream:
    """One stream of a lane, its unacknowledged frames, and the task that reads acknowledgements."""

    lane: _OutgoingLane
    stream: Stream
    watcher: asyncio.Future[None]
    unread: deque[_Unread]

    async def send(self, frame: bytes | memoryview) -> None:
        """Send a frame. Raises PeerFault if the remote accepts no data, or if `watcher` has ended."""
        deadline = SEND_GRACE_SECONDS + len(frame) / SLOWEST_BYTES_PER_SECOND
        sending = asyncio.ensure_future(self.stream.send(frame))
        try:
            # Most frames fit the transport's buffer and are written at once.
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
            raise PeerUnreachable(self.lane.remote, f"read no data for {deadline:.0f} s")
        sending.result()


@dataclass(frozen=True, slots=True)
class LinkPorts:
    """Callbacks from lanes to their owner.

    Attributes:
        on_message: (sender, message, payload, frame bytes); must not block.
        on_lost: called once with (remote, reason) when a remote is gone.
        on_refused: called with (remote, what) when a remote broke the protocol.
        is_abroad: whether a remote is at another site.
        on_met: called when a remote has opened a stream as a member, or answered one.
        has_worked: whether commits of the run have contained a remote's work.
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
        line: the line that carries all data; `Links` sets its pace. None: something else paces the data.
        max_queued_bytes: limit for each lane; above it the remote has stopped reading.
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
        """When data were last posted while none was in flight."""
        self._moved_at = -math.inf
        """When data were last acknowledged."""
        self._line = line
        self.most_bits_per_second = math.inf
        """The owner's limit: other peers should not expect more, whatever was measured."""
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
        """Set the owner's limits. Reducing takes as much upload as download, so the lower limit counts.

        Until a round has measured the line, this limit is the known rate.
        """
        limits = [one for one in (upload_bits_per_second, download_bits_per_second) if one is not None]
        self.most_bits_per_second = min(limits, default=math.inf)
        self.traffic.upload_bits_per_second = min(limits, default=0.0)

    def watch(self, on_read: Callable[[PeerId, Parts], None], is_stale: Callable[[Parts], bool]) -> None:
        """Call `on_read` with data that a remote has read, and drop waiting data for which `is_stale` returns True.

        This keeps the line free for useful data.
        """
        self._on_read, self._is_stale = on_read, is_stale

    @property
    def pace_bytes_per_second(self) -> float | None:
        """The pace of data; None: as fast as possible."""
        return self._pace.bytes_per_second

    def send(self, to: PeerId, message: Message, payload: Sequence[Buffer] = ()) -> int:
        """Queue one message; a message with a payload is data. Return the bytes that it will take on the stream."""
        parts: list[bytes | memoryview] = [frames.encode(message), *(memoryview(part) for part in payload)]
        return self.post(to, parts, "data" if payload else "control")

    def post(self, to: PeerId, parts: Parts, lane: Lane = "control") -> int:
        """Queue one frame made of `parts` without blocking. Return the bytes that it will take on the stream.

        Data that already waits for a remote is not queued again: repeated requests would only lengthen the queue.
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
        """Wait until all frames are sent and long ones acknowledged, at most `seconds`."""
        end = self._clock() + seconds
        while any(lane.queued_bytes or lane.unread_bytes for lane in self._lanes.values()):
            if self._clock() >= end:
                return
            await asyncio.sleep(0.02)

    async def _run_stream(self, lane: _OutgoingLane, *, is_first: bool) -> None:
        try:
            stream = await open_greeted_stream(self._host, self._handshake_policy, lane.remote, ROUND_PROTOCOL)
        except PeerFault as fault:
            # A remote that refuses further streams keeps the first one.
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
        """Return how many streams of a lane may send at once. Consecutive frames arrive earlier than parallel ones."""
        pace = self.pace_bytes_per_second
        if lane.name == "control" or pace is None:
            return DATA_STREAMS
        num_lanes = sum(name == "data" and bool(other.queue) for (_, name), other in self._lanes.items())
        return min(DATA_STREAMS, math.ceil(pace / max(1, num_lanes) / BYTES_PER_SECOND_OF_STREAM))

    async def _take_acknowledgements(self, lane: _OutgoingLane, stream: Stream, unread: deque[_Unread]) -> None:
        """Read the acknowledgements of the frames in `unread`, in order, until the stream ends.

        Raises:
            PeerFault: the remote sent anything else, or the stream ended.
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
        """Close all streams of a lane and drop its queue."""
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
            raise PeerFault(remote, "is an observer and opened a stream for rounds, where observers have no part")
        while not self._closed:
            frame = await stream.receive(self._limits.max_frame_bytes)
            await self._slow_down(remote, frame)
            read_at = int(self._clock() * 1e6).to_bytes(CLOCK_BYTES, "big")
            if not frame:
                await stream.send(read_at)
                continue
            if self._handshake_policy.is_excluded(remote):
                raise PeerFault(remote, "is no longer a member")
            message, payload = frames.decode(frame, remote, self._limits)
            self._ports.on_message(remote, message, payload, len(frame) + 4)
            # Sent last: a remote that has just left gets nothing more, but the frame that it sent counts.
            if len(frame) > ACKNOWLEDGED_BYTES:
                await stream.send(read_at)

    async def _slow_down(self, remote: PeerId, frame: bytes) -> None:
        """Delay reading the frame while the sender's allowance is spent. Unread frames wait at the sender."""
        long = min(frames.header_bytes_of(frame), len(frame)) // BYTES_AS_SHORT
        cost = min((len(frame) <= ACKNOWLEDGED_BYTES) + long, SHORT_AT_ONCE)
        while cost and not self._short.spend(remote, self._clock(), cost):  # noqa: ASYNC110 (time gives more)
            await asyncio.sleep(SLOWED_SECONDS)
        is_stranger = cost > 0 and not self._ports.has_worked(remote)
        while is_stranger and not self._short_of_strangers.spend(None, self._clock(), cost):  # noqa: ASYNC110
            await asyncio.sleep(SLOWED_SECONDS)


def _are_equal(parts: Parts, others: Parts) -> bool:
    """Compare two frames part by part: the headers are short and usually differ."""
    return len(parts) == len(others) and all(one == other for one, other in zip(parts, others, strict=True))
