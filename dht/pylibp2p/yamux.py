"""Yamux for the pure-Python host: many streams over one encrypted channel (hashicorp/yamux, ``spec.md``).

py-libp2p's yamux cannot keep the promises of `Host`: a sender fails after five seconds without window, and data beyond
the window is buffered without limit. Here a sender waits as long as needed, and a remote that exceeds its window loses
the connection. So one remote costs at most `WINDOW_BYTES` for each stream that this side has opened, plus the bytes
that callers are waiting for. This side dials; streams that the remote opens are reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from typing import Final, Protocol

from dht.ground.tasks import end_tasks
from dht.streams.framing import RawStream

WINDOW_BYTES: Final = 256 * 1024
"""Bytes that a remote may send before a read; the protocol's initial window."""

MAX_DATA_BYTES: Final = 60 * 1024
"""Data in one frame, so that it fits one Noise message of 64 KiB and other streams get their turn on a slow line."""

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Largest frame for a stream that is closed here; it is read and discarded."""

MAX_QUEUED_REPLIES: Final = 2048
"""Queued pings, acknowledgements and resets. A remote that floods this peer and reads nothing is disconnected at this
limit."""

KEEPALIVE_SECONDS: Final = 20.0
"""A ping is sent after this silence; after twice as long the remote counts as gone. Home routers forget idle
connections after a minute or more."""

_DATA, _WINDOW_UPDATE, _PING, _GO_AWAY = 0, 1, 2, 3
_SYN, _ACK, _FIN, _RST = 1, 2, 4, 8
_HEADER: Final = struct.Struct(">BBHII")


class YamuxViolation(Exception):
    """The remote violates the protocol; the text says how."""


class Channel(RawStream, Protocol):
    """The underlying encrypted connection. Reads raise EOFError or OSError at its end."""

    async def read_some(self, max_bytes: int) -> bytes: ...


class YamuxStream:
    """One stream, with the used methods of `asyncio.StreamReader` and `asyncio.StreamWriter`.

    One task may read at a time, and one may write.
    """

    def __init__(self, muxer: Yamux, stream_id: int) -> None:
        self._muxer = muxer
        self._stream_id = stream_id
        self._received = bytearray()
        self._credit_bytes = WINDOW_BYTES
        self._send_window_bytes = WINDOW_BYTES
        self._unsent = bytearray()
        self._remote_ended = False
        self._is_closing = False
        self._end: str | None = None
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    async def readexactly(self, num_bytes: int) -> bytes:
        """Return the next `num_bytes`; cancelling loses nothing.

        Raises:
            IncompleteReadError: the remote ended the stream before.
            ConnectionResetError: the stream or its connection broke.
        """
        while len(self._received) < num_bytes:
            if self._end is not None:
                raise ConnectionResetError(self._end)
            if self._remote_ended:
                partial = bytes(self._received)
                self._received.clear()
                raise asyncio.IncompleteReadError(partial, num_bytes)
            self._grant(num_bytes)
            self._readable.clear()
            await self._readable.wait()
        data = bytes(memoryview(self._received)[:num_bytes])
        del self._received[:num_bytes]
        if self._end is None and not self._remote_ended:
            self._grant(0)
        return data

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue `data`; `drain` sends it.

        Raises:
            ConnectionResetError: the stream has ended.
        """
        if self._end is not None or self._is_closing:
            raise ConnectionResetError(self._end or "it was closed on this side")
        self._unsent += data

    async def drain(self) -> None:
        """Send queued data, waiting for the remote's window however long.

        Raises:
            ConnectionResetError: the stream or its connection broke.
        """
        while self._unsent:
            if self._end is not None:
                raise ConnectionResetError(self._end)
            num_bytes = min(len(self._unsent), self._send_window_bytes, MAX_DATA_BYTES)
            if not num_bytes:
                self._writable.clear()
                await self._writable.wait()
                continue
            data = bytes(memoryview(self._unsent)[:num_bytes])
            del self._unsent[:num_bytes]
            self._send_window_bytes -= num_bytes
            await self._muxer.send(_HEADER.pack(0, _DATA, 0, self._stream_id, num_bytes) + data)
        if self._end is not None:
            raise ConnectionResetError(self._end)

    def close(self) -> None:
        """Accept no more data; `wait_closed` sends the rest."""
        self._is_closing = True

    async def wait_closed(self) -> None:
        """Send the rest and end this direction. Data that the remote still sends is discarded."""
        await self.drain()
        self._muxer.reply(_WINDOW_UPDATE, _FIN, self._stream_id, 0)
        self.finish("it was closed on this side")

    def abort(self) -> None:
        if self._end is None:
            self._muxer.reply(_WINDOW_UPDATE, _RST, self._stream_id, 0)
            self.finish("it was given up on this side")

    def on_data(self, data: bytes) -> None:
        """Store data of the remote that `take_credit` has checked."""
        self._received += data
        self._readable.set()

    def take_credit(self, num_bytes: int) -> None:
        """Charge a frame to the window before it is read.

        Raises:
            YamuxViolation: the frame exceeds the window.
        """
        if num_bytes > self._credit_bytes:
            raise YamuxViolation(f"{num_bytes} bytes in a window of {self._credit_bytes}")
        self._credit_bytes -= num_bytes

    def on_window(self, num_bytes: int) -> None:
        """Enlarge the remote's window by `num_bytes`."""
        self._send_window_bytes = min(self._send_window_bytes + num_bytes, 2**32 - 1)
        self._writable.set()

    def on_flags(self, flags: int) -> None:
        """Handle flags with which the remote ended its direction or the whole stream."""
        if flags & _RST:
            self.finish("the remote reset the stream")
        elif flags & _FIN:
            self._remote_ended = True
            self._readable.set()

    def finish(self, reason: str) -> None:
        """End the stream; the first reason counts."""
        if self._end is None:
            self._end = reason
            self._muxer.forget(self._stream_id)
            self._readable.set()
            self._writable.set()

    def _grant(self, wanted_bytes: int) -> None:
        # Half a window at a time, so that many small reads cause one update.
        missing = wanted_bytes + WINDOW_BYTES - len(self._received) - self._credit_bytes
        if missing >= WINDOW_BYTES // 2:
            self._credit_bytes += missing
            self._muxer.reply(_WINDOW_UPDATE, 0, self._stream_id, missing)


class Yamux:
    """The streams of a dialled connection. All methods need a running `run`, which reads until the connection ends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._next_id = 1
        """The dialling side uses odd stream numbers."""
        self._streams: dict[int, YamuxStream] = {}
        self._replies: deque[bytes] = deque()
        self._has_replies = asyncio.Event()
        self._write_lock = asyncio.Lock()
        self._heard_at = asyncio.get_running_loop().time()
        self._end: str | None = None
        self._ended = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._end is None

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    async def run(self) -> str:
        """Serve the connection, and return why it ended. Cancelling ends all streams."""
        works = (self._read_frames(), self._write_replies(), self._ping(), self._ended.wait())
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.end("; ".join(_reason(task.exception()) for task in done))
        finally:
            self.end("this side closed the connection")
            await end_tasks(tasks)
        return self._end or ""

    def end(self, reason: str) -> None:
        """End all streams immediately, and make `run` return soon after. Only the first reason is kept."""
        if self._end is None:
            self._end = reason
            self._ended.set()
            for stream in list(self._streams.values()):
                stream.finish(f"the connection ended: {reason}")

    async def open(self) -> YamuxStream:
        """Open a new stream, which the remote may still refuse.

        Raises:
            ConnectionResetError: the connection has ended.
        """
        if self._end is not None:
            raise ConnectionResetError(self._end)
        stream = YamuxStream(self, self._next_id)
        self._streams[self._next_id] = stream
        self._next_id += 2
        try:
            await self.send(_HEADER.pack(0, _WINDOW_UPDATE, _SYN, self._next_id - 2, 0))
        except BaseException:
            stream.abort()
            raise
        return stream

    async def say_goodbye(self) -> None:
        """Announce the regular end of the connection to the remote; errors are ignored."""
        with contextlib.suppress(OSError, EOFError):
            await self.send(_HEADER.pack(0, _GO_AWAY, 0, 0, 0))

    async def send(self, frame: bytes) -> None:
        """Write one whole frame. Return when the connection has accepted it."""
        async with self._write_lock:
            if self._end is not None:
                raise ConnectionResetError(self._end)
            self._channel.write(frame)
            await self._channel.drain()

    def reply(self, kind: int, flags: int, stream_id: int, value: int) -> None:
        """Queue a frame without data, to be written as soon as possible."""
        self._replies.append(_HEADER.pack(0, kind, flags, stream_id, value))
        self._has_replies.set()

    def forget(self, stream_id: int) -> None:
        """Remove a stream that ended on this side."""
        self._streams.pop(stream_id, None)

    async def _read_frames(self) -> None:
        while True:
            version, kind, flags, stream_id, length = _HEADER.unpack(await self._channel.readexactly(_HEADER.size))
            self._heard_at = asyncio.get_running_loop().time()
            if version != 0 or kind > _GO_AWAY:
                raise YamuxViolation(f"a frame of version {version} and type {kind}")
            if kind == _GO_AWAY:
                raise EOFError("the remote closed the connection")
            if kind == _PING:
                if flags & _SYN:
                    self.reply(_PING, _ACK, 0, length)
            else:
                if flags & _SYN:
                    self.reply(_WINDOW_UPDATE, _RST, stream_id, 0)
                await self._read_stream_frame(self._streams.get(stream_id), kind, flags, stream_id, length)
            if len(self._replies) > MAX_QUEUED_REPLIES:
                raise YamuxViolation("a flood of frames that need an answer, and the remote reads no answer")

    async def _read_stream_frame(
        self, stream: YamuxStream | None, kind: int, flags: int, stream_id: int, length: int
    ) -> None:
        if kind == _WINDOW_UPDATE:
            if stream is not None:
                stream.on_window(length)
        else:
            await self._read_data(stream, stream_id, length)
        if stream is not None:
            stream.on_flags(flags)

    async def _read_data(self, stream: YamuxStream | None, stream_id: int, length: int) -> None:
        if stream is not None:
            stream.take_credit(length)
        elif length > MAX_FRAME_BYTES:
            raise YamuxViolation(f"a frame of {length} bytes")
        elif length:
            # A remote that sends to a closed stream should stop.
            self.reply(_WINDOW_UPDATE, _RST, stream_id, 0)
        while length:
            data = await self._channel.read_some(length)
            length -= len(data)
            if stream is not None:
                stream.on_data(data)

    async def _write_replies(self) -> None:
        while True:
            await self._has_replies.wait()
            self._has_replies.clear()
            frames = b"".join(self._replies)
            self._replies.clear()
            await self.send(frames)

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        number = 0
        while loop.time() - self._heard_at < 2 * KEEPALIVE_SECONDS:
            await asyncio.sleep(KEEPALIVE_SECONDS / 2)
            if loop.time() - self._heard_at >= KEEPALIVE_SECONDS:
                number += 1
                self.reply(_PING, _SYN, 0, number)
        raise TimeoutError(f"the remote has been silent for {2 * KEEPALIVE_SECONDS:.0f} s")


def _reason(error: BaseException | None) -> str:
    if error is None or isinstance(error, YamuxViolation | TimeoutError):
        return str(error or "it ended")
    if isinstance(error, EOFError):
        return "the remote closed the connection"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    # Other errors are bugs in this software and must be visible.
    raise error
