"""Control protocol of the libp2p daemon, over its unix socket.

The daemon (go-libp2p-daemon, ``pb/p2pd.proto``) accepts length-prefixed protobuf requests, one connection for each
request. A connection that opened a stream then carries that stream's bytes. hivemind's client leaks the connection of a
failed or cancelled open, reads with 64 KiB buffers, and drops bursts beyond a backlog of 100. So only its messages are
used here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from dht.ground.delimited import MessageError, delimited, read_delimited
from dht.ground.host import PeerId
from dht.identity.keys import peer_id_bytes, peer_id_of_bytes
from dht.identity.multiaddr import Multiaddr, known_multiaddrs
from dht.p2pd.lazy_hivemind import allow_parts_of_hivemind
from dht.streams.byte_stream import ByteStream
from dht.streams.framing import RawStream
from dht.streams.remote_memory import READ_BUFFER_BYTES

allow_parts_of_hivemind()
from hivemind.proto.p2pd_pb2 import (  # noqa: E402
    ConnectRequest,
    DHTRequest,
    DisconnectRequest,
    Request,
    Response,
    StreamHandlerRequest,
    StreamInfo,
    StreamOpenRequest,
)

MAX_CONTROL_BYTES: Final = 4 * 1024 * 1024
"""The daemon's own limit for one control message; a list of 10 000 connections is far below."""

LISTEN_BACKLOG: Final = 1024
"""Incoming streams waiting to be accepted: the daemon drops streams when the queue is full, and 100 was too few."""


class ControlError(Exception):
    """The daemon answered with an error, garbled, or not at all; the text says why."""


AcceptConnection = Callable[[ByteStream], None]
"""Called for each incoming stream before its header is read; the callee owns the stream."""


class P2pdControl:
    """Requests to one daemon. Calls raise ControlError or OSError if the daemon is gone; callers set deadlines."""

    def __init__(self, socket_path: Path, read_buffer_bytes: int = READ_BUFFER_BYTES) -> None:
        self._socket_path = socket_path
        self._read_buffer_bytes = read_buffer_bytes

    async def identify(self) -> tuple[PeerId, list[Multiaddr]]:
        """Return the daemon's PeerId and the addresses that it announces."""
        identity = _field_of(await self._request(Request(type=Request.IDENTIFY)), "identify")
        return peer_id_of_bytes(identity.id), known_multiaddrs(identity.addrs)

    async def connect(self, peer_id: PeerId, address: Multiaddr, timeout_seconds: float) -> None:
        """Dial `address`, and check that `peer_id` answers there."""
        addresses, seconds = [address.to_bytes()], _whole_seconds(timeout_seconds)
        connect = ConnectRequest(peer=peer_id_bytes(peer_id), addrs=addresses, timeout=seconds)
        await self._request(Request(type=Request.CONNECT, connect=connect))

    async def list_connections(self) -> list[tuple[PeerId, Multiaddr]]:
        """Return the remote and its address for each live connection with an address of a known kind."""
        response = await self._request(Request(type=Request.LIST_PEERS))
        connections = []
        for peer in response.peers:
            with contextlib.suppress(ValueError):
                peer_id = peer_id_of_bytes(peer.id)
                connections += [(peer_id, address) for address in known_multiaddrs(peer.addrs)]
        return connections

    async def disconnect(self, peer_id: PeerId) -> None:
        disconnect = DisconnectRequest(peer=peer_id_bytes(peer_id))
        await self._request(Request(type=Request.DISCONNECT, disconnect=disconnect))

    async def find_peer(self, peer_id: PeerId) -> list[Multiaddr]:
        """Return the addresses that a peer announces; for a connected peer they are already known."""
        asked = DHTRequest(type=DHTRequest.FIND_PEER, peer=peer_id_bytes(peer_id), timeout=1)
        response = await self._request(Request(type=Request.DHT, dht=asked))
        return known_multiaddrs(_field_of(_field_of(response, "dht"), "peer").addrs)

    async def add_stream_handler(self, protocol: str, socket_path: Path) -> None:
        """Make the daemon pass incoming streams of `protocol` to the unix socket at `socket_path`."""
        address = Multiaddr((("unix", str(socket_path)),))
        handler = StreamHandlerRequest(addr=address.to_bytes(), proto=[protocol], balanced=False)
        await self._request(Request(type=Request.STREAM_HANDLER, streamHandler=handler))

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> ByteStream:
        """Open a stream; the connection to the daemon becomes the stream."""
        seconds = _whole_seconds(timeout_seconds)
        wanted = StreamOpenRequest(peer=peer_id_bytes(peer_id), proto=[protocol], timeout=seconds)
        return await self._open_for(Request(type=Request.STREAM_OPEN, streamOpen=wanted))

    async def open_lifeline(self) -> ByteStream:
        """Open a connection that keeps the daemon alive: the daemon exits when its last lifeline closes.

        The operating system closes it with this process, however that ends, so no daemon is left behind.
        """
        return await self._open_for(Request(type=Request.PERSISTENT_CONN_UPGRADE))

    async def _open_for(self, request: Request) -> ByteStream:
        """Return the connection on which `request` was granted."""
        stream = await self._open()
        try:
            await _exchange(stream, request)
        except BaseException:  # also when cancelled: a half-read answer makes the socket useless
            stream.abort()
            raise
        return stream

    async def _request(self, request: Request) -> Response:
        stream = await self._open()
        try:
            return await _exchange(stream, request)
        finally:
            stream.abort()

    async def _open(self) -> ByteStream:
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_unix_connection(
            lambda: ByteStream(self._read_buffer_bytes), str(self._socket_path)
        )
        return stream


async def listen_for_streams(
    socket_path: Path, accept: AcceptConnection, read_buffer_bytes: int = READ_BUFFER_BYTES
) -> asyncio.Server:
    """Accept the streams that the daemon passes to `socket_path`."""
    return await asyncio.get_running_loop().create_unix_server(
        lambda: ByteStream(read_buffer_bytes, accept), str(socket_path), backlog=LISTEN_BACKLOG
    )


async def read_stream_header(reader: RawStream) -> tuple[PeerId, str]:
    """Return (authenticated remote, protocol) of an incoming stream. Raises ControlError, EOFError, OSError or
    ValueError.
    """
    header = StreamInfo()
    await _read(header, reader)
    return peer_id_of_bytes(header.peer), header.proto


async def _exchange(stream: ByteStream, request: Request) -> Response:
    stream.write(delimited(request.SerializeToString()))
    await stream.drain()
    response = Response()
    try:
        await _read(response, stream)
    except EOFError as error:
        raise ControlError("the network daemon ended before it answered") from error
    if response.type != Response.OK:
        raise ControlError(" ".join(response.error.msg.split()))
    return response


async def _read(message: Response | StreamInfo, reader: RawStream) -> None:
    try:
        message.ParseFromString(await read_delimited(reader.readexactly, MAX_CONTROL_BYTES))
    except (DecodeError, MessageError) as error:
        raise ControlError(f"a garbled message from the network daemon ({error})") from error


def _field_of(answer: Any, name: str) -> Any:
    if not answer.HasField(name):
        raise ControlError(f"an answer from the network daemon without its field {name}")
    return getattr(answer, name)


def _whole_seconds(timeout_seconds: float) -> int:
    return max(1, math.ceil(timeout_seconds))
