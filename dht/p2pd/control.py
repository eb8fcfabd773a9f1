"""Control protocol of the libp2p daemon, spoken directly over its unix socket.

The daemon (go-libp2p-daemon, ``pb/p2pd.proto``) takes length-prefixed protobuf requests, one connection per request;
a connection that opened a stream then carries that stream's bytes. hivemind's own client leaks the connection of a
failed or cancelled open, reads with 64 KiB buffers and drops bursts beyond a backlog of 100, so the few messages
needed here are written out by hand. This also keeps hivemind out of processes that have a host and no DHT.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import base58

from dht.host import PeerId
from dht.identity.keys import public_key_of
from dht.identity.multiaddr import Multiaddr, decode_varint, encode_varint, multiaddr_from_bytes
from dht.streams.byte_stream import ByteStream
from dht.streams.framing import READ_BUFFER_BYTES, ByteReader

MAX_CONTROL_BYTES: Final = 4 * 1024 * 1024
"""The daemon's own limit for one control message; a list of 10 000 connections is far below."""

LISTEN_BACKLOG: Final = 1024
"""Incoming streams waiting to be accepted: the daemon drops a stream when the queue is full, and 100 was too few."""

_IDENTIFY, _CONNECT, _STREAM_OPEN, _STREAM_HANDLER, _DHT, _LIST_PEERS = 0, 1, 2, 3, 4, 5
_DISCONNECT, _PERSISTENT_CONN_UPGRADE = 7, 9


class ControlError(Exception):
    """The daemon answered with an error, garbled, or not at all; the text says why."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One live connection of the daemon and the remote's end of it."""

    peer_id: PeerId
    address: Multiaddr


AcceptConnection = Callable[[ByteStream], None]
"""Called for each incoming stream before its header is read; owns it."""


class P2pdControl:
    """Requests to one daemon. Calls raise ControlError or OSError when the daemon is gone; callers set deadlines."""

    def __init__(self, socket_path: Path, read_buffer_bytes: int = READ_BUFFER_BYTES) -> None:
        self._socket_path = socket_path
        self._read_buffer_bytes = read_buffer_bytes

    async def identify(self) -> tuple[PeerId, list[Multiaddr]]:
        """The daemon's PeerId and the addresses it tells others."""
        fields = await self._request(_IDENTIFY)
        identity = _Fields(fields.bytes_of(4))
        return _peer_id(identity.bytes_of(1)), _known_addresses(identity.all_bytes_of(2))

    async def connect(self, peer_id: PeerId, address: Multiaddr, timeout_seconds: float) -> None:
        """Dial `address` and make sure that `peer_id` answers there."""
        body = _bytes_field(1, _peer_bytes(peer_id)) + _bytes_field(2, address.to_bytes())
        await self._request(_CONNECT, _bytes_field(2, body + _seconds_field(timeout_seconds)))

    async def list_connections(self) -> list[Connection]:
        """All live connections whose address is of a known kind."""
        fields = await self._request(_LIST_PEERS)
        connections = []
        for content in fields.all_bytes_of(6):
            peer = _Fields(content)
            with contextlib.suppress(ValueError):
                peer_id = _peer_id(peer.bytes_of(1))
                connections += [Connection(peer_id, address) for address in _known_addresses(peer.all_bytes_of(2))]
        return connections

    async def disconnect(self, peer_id: PeerId) -> None:
        """Close all connections to a peer, with the streams on them."""
        await self._request(_DISCONNECT, _bytes_field(7, _bytes_field(1, _peer_bytes(peer_id))))

    async def find_peer(self, peer_id: PeerId) -> list[Multiaddr]:
        """Addresses under which a peer says it can be dialled; for a connected one they are known already."""
        body = _varint_field(1, 0) + _bytes_field(2, _peer_bytes(peer_id)) + _varint_field(7, 1)
        fields = await self._request(_DHT, _bytes_field(5, body))
        peer = _Fields(_Fields(fields.bytes_of(5)).bytes_of(2))
        return _known_addresses(peer.all_bytes_of(2))

    async def add_stream_handler(self, protocol: str, socket_path: Path) -> None:
        """Have the daemon hand incoming streams of `protocol` to the unix socket at `socket_path`."""
        address = Multiaddr((("unix", str(socket_path)),))
        body = _bytes_field(1, address.to_bytes()) + _bytes_field(2, protocol.encode()) + _varint_field(3, 0)
        await self._request(_STREAM_HANDLER, _bytes_field(4, body))

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> ByteStream:
        """Open a stream; the connection to the daemon becomes the stream."""
        body = _bytes_field(1, _peer_bytes(peer_id)) + _bytes_field(2, protocol.encode())
        request = _request_bytes(_STREAM_OPEN, _bytes_field(3, body + _seconds_field(timeout_seconds)))
        stream = await self._open()
        try:
            await _exchange(stream, request)
        except BaseException:
            stream.transport.abort()
            raise
        return stream

    async def open_lifeline(self) -> ByteStream:
        """A connection that keeps the daemon alive: it exits by itself when the last one of these is gone.

        The operating system closes it with our process, however that ends, so no daemon is ever left behind.
        """
        stream = await self._open()
        try:
            await _exchange(stream, _request_bytes(_PERSISTENT_CONN_UPGRADE))
        except BaseException:
            stream.transport.abort()
            raise
        return stream

    async def _request(self, kind: int, body: bytes = b"") -> _Fields:
        stream = await self._open()
        try:
            return await _exchange(stream, _request_bytes(kind, body))
        finally:
            stream.transport.abort()

    async def _open(self) -> ByteStream:
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_unix_connection(
            lambda: ByteStream(self._read_buffer_bytes), str(self._socket_path)
        )
        return stream


async def listen_for_streams(
    socket_path: Path, accept: AcceptConnection, read_buffer_bytes: int = READ_BUFFER_BYTES
) -> asyncio.Server:
    """Accept the streams that the daemon hands over at `socket_path`."""
    return await asyncio.get_running_loop().create_unix_server(
        lambda: ByteStream(read_buffer_bytes, accept), str(socket_path), backlog=LISTEN_BACKLOG
    )


async def read_stream_header(reader: ByteReader) -> tuple[PeerId, str]:
    """(authenticated remote, protocol) of an incoming stream; raises ControlError, EOFError, OSError or ValueError."""
    header = _Fields(await _read_delimited(reader))
    return _peer_id(header.bytes_of(1)), header.bytes_of(3).decode("utf-8")


class _Fields:
    """The fields of one protobuf message, by number; unknown ones are kept and ignored.

    Raises ControlError when the bytes are no protobuf message or a required field is missing.
    """

    def __init__(self, data: bytes) -> None:
        self._varints: dict[int, int] = {}
        self._contents: dict[int, list[bytes]] = {}
        try:
            position = 0
            while position < len(data):
                position = self._read_field(data, position)
        except ValueError as error:
            raise ControlError(f"a garbled message from the network daemon ({error})") from error

    def _read_field(self, data: bytes, position: int) -> int:
        tag, position = decode_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            self._varints[number], position = decode_varint(data, position)
            return position
        if wire_type != 2:
            raise ValueError(f"wire type {wire_type}; expected 0 or 2")
        num_bytes, position = decode_varint(data, position)
        if position + num_bytes > len(data):
            raise ValueError("a field that is cut off")
        self._contents.setdefault(number, []).append(data[position : position + num_bytes])
        return position + num_bytes

    def varint_of(self, number: int) -> int:
        return self._varints.get(number, 0)

    def all_bytes_of(self, number: int) -> list[bytes]:
        return self._contents.get(number, [])

    def bytes_of(self, number: int) -> bytes:
        if number not in self._contents:
            raise ControlError(f"an answer of the network daemon without field {number}")
        return self._contents[number][-1]


async def _exchange(stream: ByteStream, request: bytes) -> _Fields:
    stream.write(request)
    await stream.drain()
    try:
        response = _Fields(await _read_delimited(stream))
    except EOFError as error:
        raise ControlError("the network daemon went away before it answered") from error
    if response.varint_of(1) != 0:
        message = _Fields(response.bytes_of(2)).bytes_of(1)
        raise ControlError(" ".join(message.decode("utf-8", errors="replace").split()))
    return response


async def _read_delimited(reader: ByteReader) -> bytes:
    header = b""
    while not header or header[-1] >= 0x80:
        header += await reader.readexactly(1)
        if len(header) > 5:
            raise ControlError("a garbled length from the network daemon")
    num_bytes, _ = decode_varint(header, 0)
    if num_bytes > MAX_CONTROL_BYTES:
        raise ControlError(f"a message of {num_bytes} bytes from the network daemon; expected at most 4 MiB")
    return await reader.readexactly(num_bytes)


def _request_bytes(kind: int, body: bytes = b"") -> bytes:
    message = _varint_field(1, kind) + body
    return encode_varint(len(message)) + message


def _varint_field(number: int, value: int) -> bytes:
    return encode_varint(number << 3) + encode_varint(value)


def _bytes_field(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def _seconds_field(timeout_seconds: float) -> bytes:
    return _varint_field(3, max(1, math.ceil(timeout_seconds)))


def _peer_bytes(peer_id: PeerId) -> bytes:
    content: bytes = base58.b58decode(peer_id)
    return content


def _peer_id(content: bytes) -> PeerId:
    text: str = base58.b58encode(content[:64]).decode("ascii")
    public_key_of(text)
    return PeerId(text)


def _known_addresses(contents: list[bytes]) -> list[Multiaddr]:
    addresses = []
    for content in contents:
        # Newer transports announce addresses this software cannot dial; they are nobody's mistake.
        with contextlib.suppress(ValueError):
            addresses.append(multiaddr_from_bytes(content))
    return addresses
