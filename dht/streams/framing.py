"""Frames on a byte stream: a 4-byte big-endian length, then that many bytes.

`FramedStream` is the `Stream` port on a byte stream. Reading never trusts the announced length: it is first compared
with the caller's limit, and the buffer then grows only with received bytes.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import FRAME_HEADER_BYTES, PeerId
from dht.streams.remote_memory import RemoteMemory
from dht.streams.upload_and_download_limits import URGENT_BYTES, Pace, Paces

MAX_FRAME_BYTES = 2**32 - 1

WRITE_CHUNK_BYTES = 256 * 1024
"""Frames are written in pieces of this size, so a slow reader costs the memory of one piece, not of a whole frame."""

CLOSE_SECONDS = 2.0
"""Time for which `close` lets queued bytes leave. A remote that reads nothing for this long will not read them."""


class RawStream(Protocol):
    """Common interface of sockets, encrypted channels and multiplexed streams."""

    async def readexactly(self, num_bytes: int, /) -> bytes: ...

    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None: ...


class ByteChannel(RawStream, Protocol):
    """Byte stream that `FramedStream` divides into frames."""

    def write(self, data: bytes | memoryview, /) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...

    def abort(self) -> None: ...


def frame_header(num_bytes: int) -> bytes:
    """Return the header of a frame of `num_bytes`.

    Raises:
        ValueError: the length does not fit 32 bits.
    """
    if not 0 <= num_bytes <= MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {num_bytes} bytes; expected 0 to {MAX_FRAME_BYTES}; send it in parts")
    return num_bytes.to_bytes(FRAME_HEADER_BYTES, "big")


class FramedStream:
    """The `Stream` port over a byte stream. One task may receive at a time; any number may send.

    `paces` and `memory` are limits that all streams of the host share. Without `memory`, frames are read whenever the
    caller's limit allows their length.
    """

    def __init__(
        self,
        channel: ByteChannel,
        remote: PeerId,
        paces: Paces | None = None,
        memory: RemoteMemory | None = None,
    ) -> None:
        self._channel = channel
        self.remote = remote
        self._paces = paces or Paces()
        self._memory = memory
        self._reserved_bytes = 0
        self._received = bytearray()
        self.bytes_sent = 0
        self.bytes_received = 0
        self._announced_bytes: int | None = None
        self._send_lock = asyncio.Lock()
        self._end: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the stream is open: neither closed by this side nor ended by a failed call."""
        return self._end is None

    async def send(self, frame: bytes | bytearray | memoryview) -> None:
        """Write one frame, waiting while the transport is full.

        A send that is cancelled halfway ends the stream, because the rest of the frame cannot follow.

        Raises:
            PeerUnreachable: the stream is closed or the remote is gone.
            ValueError: the length of the frame exceeds 32 bits.
        """
        payload = memoryview(frame).cast("B")
        header = frame_header(len(payload))
        async with self._send_lock:
            self._check_open()
            try:
                self._channel.write(header)
                self.bytes_sent += FRAME_HEADER_BYTES
                pace = self._paces.upload
                is_urgent = len(payload) <= URGENT_BYTES
                step = WRITE_CHUNK_BYTES if pace is None else pace.piece_bytes
                if pace is not None and is_urgent:
                    pace.count(len(payload))
                for start in range(0, len(payload), step):
                    piece = payload[start : start + step]
                    if pace is not None and not is_urgent:
                        await pace.let_pass(len(piece))
                    # Another task may have closed the stream meanwhile.
                    self._check_open()
                    self._channel.write(piece)
                    await self._channel.drain()
                    self.bytes_sent += len(piece)
                await self._channel.drain()
            except OSError as error:
                raise self._fail(f"the stream broke while sending ({_reason(error)}); open a new one") from error
            except asyncio.CancelledError:
                self.cut("a send was given up halfway")
                raise
            self._check_open()

    async def receive(self, max_bytes: int) -> bytes:
        """Read one frame of at most `max_bytes`. Cancelling loses nothing: the next call continues with the same frame.

        Raises:
            PeerFault: the remote announced a longer frame; the stream is closed.
            PeerUnreachable: the stream ended, possibly in the middle of a frame.
        """
        self._check_open()
        try:
            if self._announced_bytes is None:
                self._announced_bytes = int.from_bytes(await self._channel.readexactly(FRAME_HEADER_BYTES), "big")
            if self._announced_bytes > max_bytes:
                announced_bytes = self._announced_bytes
                self.cut("the remote announced a frame that is too long")
                raise PeerFault(
                    self.remote,
                    f"announced a frame of {announced_bytes} bytes; expected at most {max_bytes}; the stream is closed",
                )
            await self._reserve(self._announced_bytes)
            pace = self._paces.download
            if pace is None or (pace.is_free and not self._received):
                frame = await self._channel.readexactly(self._announced_bytes)
            else:
                frame = await self._receive_paced(pace, self._announced_bytes)
        except asyncio.IncompleteReadError as error:
            half = self._announced_bytes is not None or error.partial
            what = "closed the stream in the middle of a frame" if half else "closed the stream"
            raise self._fail(f"{what}; expected a complete frame; this peer retries or goes on without it") from error
        except OSError as error:
            raise self._fail(f"the stream broke while receiving ({_reason(error)}); open a new one") from error
        self._announced_bytes = None
        self._release()
        self.bytes_received += FRAME_HEADER_BYTES + len(frame)
        return frame

    async def _reserve(self, num_bytes: int) -> None:
        if self._memory is None or self._reserved_bytes:
            return
        try:
            await self._memory.reserve(self.remote, num_bytes)
        except PeerFault:
            self.cut("the remote announced a frame that is too long")
            raise
        self._reserved_bytes = num_bytes
        if self._end is not None:
            self._release()

    def _release(self) -> None:
        if self._memory is not None and self._reserved_bytes:
            self._memory.release(self.remote, self._reserved_bytes)
        self._reserved_bytes = 0

    async def _receive_paced(self, pace: Pace, num_bytes: int) -> bytes:
        if num_bytes <= URGENT_BYTES and not self._received:
            frame = await self._channel.readexactly(num_bytes)
            pace.count(num_bytes)
            return frame
        # Received bytes stay with the stream, so that a cancelled call loses nothing here either.
        while (num_missing := num_bytes - len(self._received)) > 0:
            await pace.let_pass(0)
            piece = await self._channel.readexactly(min(num_missing, pace.piece_bytes))
            self._received += piece
            pace.count(len(piece))
        frame, self._received = bytes(self._received), bytearray()
        return frame

    def cut(self, why: str) -> None:
        """End both directions at once. A waiting reader gets a fault."""
        self._mark_ended(why)
        self._channel.abort()

    async def close(self) -> None:
        """Close both directions; bytes that the remote has not read may be lost. Never raises."""
        if self._end is None:
            self._mark_ended("it was closed on this side")
        self._channel.close()
        # A separate task: asyncio keeps one future for each stream, and a timeout around it would cancel that future
        # for good.
        flushing = asyncio.ensure_future(self._channel.wait_closed())
        flushing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait({flushing}, timeout=CLOSE_SECONDS)
        self._channel.abort()
        await asyncio.wait({flushing}, timeout=CLOSE_SECONDS)

    def _check_open(self) -> None:
        if self._end is not None:
            raise PeerUnreachable(self.remote, f"the stream has ended: {self._end}; open a new one")

    def _fail(self, what: str) -> PeerUnreachable:
        self.cut(what)
        return PeerUnreachable(self.remote, what)

    def _mark_ended(self, why: str) -> None:
        self._end = self._end or why
        self._release()


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
