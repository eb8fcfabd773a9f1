"""Bytes of one local connection to the daemon, read directly into the buffer of the frame being received.

asyncio's streams copy arriving bytes into a growing buffer and then copy them again, and wake their reader for each
piece (a few hundred times a round for each peer). Here a long read offers the transport the memory of its result, and
its reader wakes once, when that is full.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast

SCRATCH_BYTES = 16 * 1024
"""Bytes read at once while no reader waits for more."""
WRITE_BUFFER_BYTES = 256 * 1024
"""A sender waits while more bytes than this are queued: about as much as one local socket accepts at once."""


class ByteStream(asyncio.BufferedProtocol):
    """Reader and writer of one connection: the `ByteChannel` of `FramedStream`. One task may read.

    Args:
        buffer_bytes: most bytes buffered without a reader; further bytes wait at the sender.
        on_connected: called once with the stream when the connection is established.
    """

    def __init__(self, buffer_bytes: int, on_connected: Callable[[ByteStream], None] | None = None) -> None:
        self._buffer_bytes = buffer_bytes
        self._on_connected = on_connected
        self._transport: asyncio.Transport | None = None
        self._buffered = bytearray()
        self._scratch: bytearray | None = None
        self._target: memoryview | None = None
        self._num_filled = 0
        self._reader: asyncio.Future[None] | None = None
        self._is_reading_paused = False
        self._has_ended = False
        self._is_writing_paused = False
        self._drains: set[asyncio.Future[None]] = set()
        self._error: Exception | None = None
        self._closed = asyncio.get_running_loop().create_future()

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of this connection, once it is established."""
        assert self._transport is not None, "used before the connection was established"
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have these methods but do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if self._on_connected is not None:
            self._on_connected(self)

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        if self._target is not None:
            return self._target[self._num_filled :]
        if self._scratch is None:
            self._scratch = bytearray(SCRATCH_BYTES)
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._target is not None:
            self._num_filled += nbytes
            if self._num_filled == len(self._target):
                self._target = None
                self._wake_reader()
            return
        assert self._scratch is not None
        self._buffered += memoryview(self._scratch)[:nbytes]
        self._wake_reader()
        if len(self._buffered) > self._buffer_bytes and not self._is_reading_paused:
            self._is_reading_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._has_ended = True
        self._wake_reader()
        # Outgoing bytes may still be sent.
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        self._error = exc
        self._wake_reader()
        for drain in self._drains:
            if not drain.done():
                drain.set_exception(exc or ConnectionResetError("the connection is lost"))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        for drain in self._drains:
            if not drain.done():
                drain.set_result(None)

    async def readexactly(self, num_bytes: int) -> bytes:
        """Read like `asyncio.StreamReader.readexactly`. A cancelled read leaves the received bytes for the next one.

        Raises:
            IncompleteReadError: the remote ended the stream before.
            OSError: the connection broke.
        """
        if num_bytes > self._buffer_bytes:
            return await self._read_parts(num_bytes)
        if num_bytes - len(self._buffered) > SCRATCH_BYTES and not self._has_ended:
            return await self._read_long(num_bytes)
        while len(self._buffered) < num_bytes:
            if self._has_ended:
                raise self._error or asyncio.IncompleteReadError(bytes(self._buffered), num_bytes)
            await self._more()
        with memoryview(self._buffered) as arrived:
            taken = bytes(arrived[:num_bytes])
        del self._buffered[:num_bytes]
        if len(self._buffered) <= self._buffer_bytes:
            self._resume_reading()
        return taken

    async def _read_parts(self, num_bytes: int) -> bytes:
        # Memory grows with the received bytes: an announced length alone costs no more than the buffer.
        taken = bytearray()
        try:
            while len(taken) < num_bytes:
                taken += await self.readexactly(min(num_bytes - len(taken), self._buffer_bytes))
        except asyncio.CancelledError:
            self._buffered[:0] = taken
            raise
        return bytes(taken)

    async def _read_long(self, num_bytes: int) -> bytes:
        taken = bytearray(num_bytes)
        self._num_filled = len(self._buffered)
        taken[: self._num_filled] = self._buffered
        self._buffered.clear()
        self._target = memoryview(taken)
        try:
            while self._target is not None:
                if self._has_ended:
                    raise self._error or asyncio.IncompleteReadError(bytes(taken[: self._num_filled]), num_bytes)
                await self._more()
        except asyncio.CancelledError:
            # Put at the front, because later bytes may have arrived since.
            self._buffered[:0] = taken[: self._num_filled]
            raise
        finally:
            self._target = None
        return bytes(taken)

    async def _more(self) -> None:
        assert self._reader is None, "two tasks read one stream"
        self._resume_reading()
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _resume_reading(self) -> None:
        if self._is_reading_paused and not self.transport.is_closing():
            self._is_reading_paused = False
            self.transport.resume_reading()

    def write(self, data: bytes | memoryview) -> None:
        """Queue bytes; `drain` waits while too many are queued.

        Raises:
            OSError: the connection is over.
        """
        if self.transport.is_closing():
            # Some event loops would silently drop the bytes, others raise a RuntimeError.
            raise self._error or ConnectionResetError("the connection is lost")
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait while the transport is full.

        Raises:
            OSError: the connection is over.
        """
        if self._closed.done():
            raise self._error or ConnectionResetError("the connection is lost")
        if self._is_writing_paused:
            waiting = asyncio.get_running_loop().create_future()
            self._drains.add(waiting)
            try:
                await waiting
            finally:
                self._drains.discard(waiting)

    def close(self) -> None:
        """Close after all queued bytes are sent."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once; queued bytes are lost."""
        # A closed and flushed transport is already gone, and asyncio's own abort() fails on it.
        with contextlib.suppress(AttributeError):
            self.transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended; never raises."""
        await asyncio.shield(self._closed)
