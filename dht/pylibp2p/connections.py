"""The live connections of a pure-Python host: dialled, counted, pruned, closed.

`dial` creates a connection from `SecureChannel` and `Yamux`. All resources that a stranger can use up are bounded here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dht.ground.host import PeerId
from dht.ground.tasks import Background
from dht.identity.multiaddr import Multiaddr
from dht.pylibp2p.noise_handshake import HandshakeError, Securer
from dht.pylibp2p.yamux import Yamux
from dht.streams.byte_stream import ByteStream

MAX_CONNECTIONS: Final = 192
"""Connections to all remotes. Beyond the limit, the least recently used idle one makes room; the daemon also prunes at
192."""

SOCKET_BUFFER_BYTES: Final = 256 * 1024

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class MuxedConnection:
    """One encrypted connection to `remote`; `abort` closes its socket."""

    remote: PeerId
    muxer: Yamux
    is_loopback: bool
    used_at: float
    abort: Callable[[], None]


OnConnection = Callable[[MuxedConnection], None]


class Connections:
    """All connections of one host.

    Args:
        securer: proves this peer's key and checks the remote's.
        on_connection: called for each new connection; must not block.
    """

    def __init__(self, securer: Securer, on_connection: OnConnection) -> None:
        self._securer = securer
        self._on_connection = on_connection
        self._live: list[MuxedConnection] = []
        self._background = Background()
        self._is_closed = False

    def live(self) -> list[MuxedConnection]:
        """Return all connections, the newest last."""
        return list(self._live)

    def get(self, peer_id: PeerId) -> MuxedConnection | None:
        """Return the newest open connection to `peer_id`, because an older one may have died unnoticed."""
        open_ones = (one for one in reversed(self._live) if one.remote == peer_id and one.muxer.is_open)
        connection = next(open_ones, None)
        if connection is not None:
            connection.used_at = asyncio.get_running_loop().time()
        return connection

    async def dial(self, peer_id: PeerId, address: Multiaddr) -> MuxedConnection:
        """Open a connection to `peer_id` at a TCP address; the caller sets the deadline.

        Raises:
            HandshakeError: a different peer is there, or the address is not TCP.
            OSError, EOFError: no answer.
        """
        host, port, family = _tcp_target(address)
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(lambda: ByteStream(SOCKET_BUFFER_BYTES), host, port, family=family)
        try:
            channel = await self._securer.dial(stream, peer_id)
            if self._is_closed or not self._has_room():
                raise HandshakeError(f"this host has {MAX_CONNECTIONS} busy connections already")
        except BaseException:
            stream.abort()
            raise
        connection = MuxedConnection(
            remote=channel.remote,
            muxer=Yamux(channel),
            is_loopback=_is_from_here(stream.transport),
            used_at=loop.time(),
            abort=stream.abort,
        )
        self._live.append(connection)
        self._background.spawn(self._run(connection))
        self._on_connection(connection)
        return connection

    async def close(self) -> None:
        """End all connections. Never raises."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.gather(*(connection.muxer.say_goodbye() for connection in self._live))
        await self._background.close()
        # A task that was cancelled before its first step could not close its socket.
        for connection in self._live:
            connection.abort()

    async def _run(self, connection: MuxedConnection) -> None:
        try:
            reason = await connection.muxer.run()
            logger.debug("the connection to %s ended: %s", connection.remote, reason)
        finally:
            connection.abort()
            self._live.remove(connection)

    def _has_room(self) -> bool:
        if len(self._live) < MAX_CONNECTIONS:
            return True
        idle = [connection for connection in self._live if not connection.muxer.num_streams]
        if not idle:
            return False
        min(idle, key=lambda connection: connection.used_at).muxer.end("it made room for another connection")
        return True


def _is_from_here(transport: asyncio.Transport) -> bool:
    # None if the remote was already gone.
    name = transport.get_extra_info("peername")
    return bool(name) and ipaddress.ip_address(name[0].partition("%")[0]).is_loopback


def _tcp_target(address: Multiaddr) -> tuple[str, int, int]:
    kind, host = address.parts[0]
    families = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6, "dns": 0}
    families |= {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}
    if kind not in families or [name for name, _ in address.parts[1:]] != ["tcp"] or not address.port:
        raise HandshakeError("an address of a kind that only the network daemon can dial")
    return host, address.port, families[kind]
