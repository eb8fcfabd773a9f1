"""Byte streams over sockets, as those to the daemon."""

from __future__ import annotations

import asyncio
import socket

from dht.streams.byte_stream import ByteStream
from dht.streams.remote_memory import READ_BUFFER_BYTES


async def byte_stream(end: socket.socket, buffer_bytes: int = READ_BUFFER_BYTES) -> ByteStream:
    """The stream at one end of a pair of sockets."""
    end.setblocking(False)
    _, stream = await asyncio.get_running_loop().create_connection(lambda: ByteStream(buffer_bytes), sock=end)
    return stream
