"""Simulated lines and streams: who may send how fast, when bytes arrive, and what is lost when a stream ends.

A frame travels in segments. Each segment waits for the sender's upload and takes `8 * bytes / rate` there. It crosses
after the latency of the pair, and takes its time again on the receiver's download. Streams of one peer share its line,
first come first served. A stream holds a bounded number of bytes that the reader has not taken; then the sender waits.

Only asyncio waits here, so all of it runs in virtual time, and nothing depends on the order of a set or on addresses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass

from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import FRAME_HEADER_BYTES, PeerId

SEGMENT_BYTES = 64 * 1024
"""Frames longer than this arrive piece by piece, so a sender is held back by its window in the middle of a frame."""


@dataclass(frozen=True, slots=True)
class LineSettings:
    """What a host says about its line; None takes the network's default.

    Attributes:
        latency_seconds: one way to the middle of the network, so that two hosts are apart by the sum of both; None
            draws one for each pair.
        stream_loss: of the streams that this host opens.
        site: where it is, for `MemoryNetwork.sent_abroad_bytes`.
    """

    upload_bits_per_second: float | None = None
    download_bits_per_second: float | None = None
    latency_seconds: float | None = None
    stream_loss: float | None = None
    site: str = ""


@dataclass(eq=False)
class SimulatedLine:
    """One peer's connection to the network. Rates in bits per second; times in seconds of the running loop."""

    peer_id: PeerId
    number: int
    """Counts the lines of a network from 1."""
    upload_bits_per_second: float
    download_bits_per_second: float
    is_up: bool = True
    is_stalled: bool = False
    group: int = 0
    """Side of the current partition."""
    settings: LineSettings = LineSettings()
    upload_free_at: float = 0.0
    download_free_at: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    sent_abroad_bytes: int = 0
    """Those of the sent bytes that went to another site."""

    def join_side(self, group: int) -> None:
        """Of the partition that begins or ends now."""
        self.group = group

    def go(self, *, is_up: bool) -> None:
        """The peer's process begins or ends."""
        self.is_up = is_up

    def stall(self, *, is_stalled: bool) -> None:
        """Nothing passes from now on, or everything again."""
        self.is_stalled = is_stalled

    def plug_in(self, settings: LineSettings) -> None:
        """A host begins on this line; None leaves the rates as they were."""
        self.upload_bits_per_second = settings.upload_bits_per_second or self.upload_bits_per_second
        self.download_bits_per_second = settings.download_bits_per_second or self.download_bits_per_second
        self.settings, self.is_up = settings, True

    def reaches(self, other: SimulatedLine) -> bool:
        """Whether packets pass between the two at the moment."""
        both_move = self.is_up and other.is_up and not self.is_stalled and not other.is_stalled
        return both_move and self.group == other.group


class Pipe:
    """One direction of a stream: frames in, in order, whole frames out. Its timers run in `context`."""

    def __init__(
        self, source: SimulatedLine, target: SimulatedLine, latency_seconds: float, window_bytes: int, context: Context
    ) -> None:
        self._source = source
        self._target = target
        self._latency_seconds = latency_seconds
        self._window_bytes = window_bytes
        self._context = context
        self._frames: deque[bytes] = deque()
        # Segments by their size: crossing, kept back by a partition or stall, on the download. None ends the pipe.
        self._crossing: deque[int | None] = deque()
        self._kept_back: deque[int | None] = deque()
        self._downloading: deque[int | None] = deque()
        self._unconsumed_bytes = 0
        self._arrived_bytes = 0
        self._consumed_of_first = 0
        self.taken_bytes = 0
        """Of all frames, those under way too, that the window took."""
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._sending = asyncio.Lock()
        self._read_end: str | None = None
        self._write_end: str | None = None
        self._on_finished: Callable[[], None] = lambda: None
        self._on_given_up: Callable[[], None] = lambda: None

    def watch_end(self, on_finished: Callable[[], None]) -> None:
        """Call this when the sender's orderly end has reached the reader's side."""
        self._on_finished = on_finished

    def watch_sender(self, on_given_up: Callable[[], None]) -> None:
        """Call this when a send was cancelled half-way: the rest of its frame can no longer follow."""
        self._on_given_up = on_given_up

    async def send(self, frame: bytes | bytearray | memoryview) -> int:
        """Put one frame into the window, as it has room; returns the bytes it takes with its header.

        Raises:
            PeerUnreachable: the pipe has ended.
        """
        async with self._sending:
            self._check_writable()
            content = bytes(frame)
            num_bytes = FRAME_HEADER_BYTES + len(content)
            self._frames.append(content)
            rest = num_bytes
            try:
                while rest:
                    segment = min(rest, SEGMENT_BYTES, self._window_bytes)
                    while self._unconsumed_bytes + segment > self._window_bytes:
                        self._writable.clear()
                        await self._writable.wait()
                        self._check_writable()
                    self._unconsumed_bytes += segment
                    self.taken_bytes += segment
                    self._upload(segment)
                    rest -= segment
            except asyncio.CancelledError:
                if rest < num_bytes:
                    self._on_given_up()
                elif self._frames:
                    self._frames.pop()
                raise
            return num_bytes

    async def receive(self, max_bytes: int) -> bytes:
        """The next frame. Cancelling loses nothing.

        Raises:
            ValueError: the frame is longer than `max_bytes`; nothing of it is taken.
            PeerUnreachable: the pipe has ended.
        """
        while True:
            if self._frames and self._consumed_of_first + self._arrived_bytes >= FRAME_HEADER_BYTES:
                length = len(self._frames[0])
                if length > max_bytes:
                    raise ValueError(f"announced a frame of {length} bytes; expected at most {max_bytes}")
                taken = min(self._arrived_bytes, FRAME_HEADER_BYTES + length - self._consumed_of_first)
                self._arrived_bytes -= taken
                self._unconsumed_bytes -= taken
                self._consumed_of_first += taken
                self._writable.set()
                if self._consumed_of_first == FRAME_HEADER_BYTES + length:
                    self._consumed_of_first = 0
                    return self._frames.popleft()
            if self._read_end is not None:
                half = " in the middle of a frame" if self._arrived_bytes or self._consumed_of_first else ""
                raise PeerUnreachable(self._source.peer_id, f"the stream has ended{half}: {self._read_end}")
            self._readable.clear()
            await self._readable.wait()

    def finish(self) -> None:
        """End in order: what was sent before still arrives."""
        if self._write_end is None:
            self.end_writing("it was closed on this side")
            self._upload(None)

    def end_writing(self, reason: str) -> None:
        self._write_end = self._write_end or reason
        self._writable.set()

    def end_reading(self, reason: str, *, drop_unread: bool) -> None:
        self._read_end = self._read_end or reason
        if drop_unread:
            self._frames.clear()
            self._arrived_bytes = 0
        self._readable.set()

    def release(self) -> None:
        """Let what was kept back go on, when the two ends reach each other again."""
        if self._source.reaches(self._target):
            while self._kept_back:
                self._download(self._kept_back.popleft())

    def _check_writable(self) -> None:
        if self._write_end is not None:
            raise PeerUnreachable(self._target.peer_id, f"the stream has ended: {self._write_end}; open a new one")

    # Each stage hands on the first segment of its queue whichever timer fires, because timers due at one instant may
    # fire in any order and a stream must not reorder.

    def _upload(self, segment: int | None) -> None:
        loop, source = asyncio.get_running_loop(), self._source
        num_bytes = segment or 0
        source.upload_free_at = max(loop.time(), source.upload_free_at) + 8 * num_bytes / source.upload_bits_per_second
        source.sent_bytes += num_bytes
        if source.settings.site != self._target.settings.site:
            source.sent_abroad_bytes += num_bytes
        self._crossing.append(segment)
        loop.call_at(source.upload_free_at + self._latency_seconds, self._reach_target, context=self._context)

    def _reach_target(self) -> None:
        segment = self._crossing.popleft()
        if self._kept_back or not self._source.reaches(self._target):
            self._kept_back.append(segment)
        else:
            self._download(segment)

    def _download(self, segment: int | None) -> None:
        loop, target = asyncio.get_running_loop(), self._target
        seconds = 8 * (segment or 0) / target.download_bits_per_second
        target.download_free_at = max(loop.time(), target.download_free_at) + seconds
        self._downloading.append(segment)
        loop.call_at(target.download_free_at, self._arrive, context=self._context)

    def _arrive(self) -> None:
        segment = self._downloading.popleft()
        if segment is None:
            self._on_finished()
        elif self._read_end is None:
            self._target.received_bytes += segment
            self._arrived_bytes += segment
            self._readable.set()


class MemoryStream:
    """The `Stream` port on two pipes. One task may receive at a time; any number may send."""

    def __init__(self, remote: PeerId, outgoing: Pipe, incoming: Pipe, on_abort: Callable[[str], None]) -> None:
        self.remote = remote
        self._outgoing = outgoing
        self._incoming = incoming
        self._on_abort = on_abort
        self.bytes_received = 0
        self._end: str | None = None
        self._is_closed_by_remote = False
        outgoing.watch_sender(lambda: on_abort("a send was given up halfway"))

    @property
    def bytes_sent(self) -> int:
        return self._outgoing.taken_bytes

    @property
    def is_over(self) -> bool:
        """Whether nothing can arrive here any more."""
        return self._end is not None or self._is_closed_by_remote

    async def send(self, frame: bytes | bytearray | memoryview) -> None:
        """See the port. A send that is cancelled half-way ends the stream."""
        self._check_open()
        await self._outgoing.send(memoryview(frame).cast("B"))

    async def receive(self, max_bytes: int) -> bytes:
        self._check_open()
        try:
            frame = await self._incoming.receive(max_bytes)
        except ValueError as error:
            self._on_abort("a frame was too long")
            raise PeerFault(self.remote, f"{error}; the stream is closed") from error
        self.bytes_received += FRAME_HEADER_BYTES + len(frame)
        return frame

    async def close(self) -> None:
        """See the port. What was sent still arrives; what the remote sends is lost."""
        self.finish()

    def finish(self) -> None:
        """`close` for callers that cannot wait."""
        self._end = self._end or "it was closed on this side"
        self._incoming.end_reading(self._end, drop_unread=True)
        self._outgoing.finish()

    def remote_finished(self, *, drop_unread: bool) -> None:
        """The remote has closed: what it sent before can still be read, nothing can be sent."""
        self._is_closed_by_remote = True
        self._incoming.end_reading("the remote closed it", drop_unread=drop_unread)
        self._outgoing.end_writing("the remote closed it")

    def break_off(self, reason: str) -> None:
        """End both directions now and drop what has not been read."""
        self._end = self._end or reason
        self._incoming.end_reading(self._end, drop_unread=True)
        self._outgoing.end_writing(self._end)

    def _check_open(self) -> None:
        if self._end is not None:
            raise PeerUnreachable(self.remote, f"the stream has ended: {self._end}; open a new one")
