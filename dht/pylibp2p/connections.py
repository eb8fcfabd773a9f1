"""The live connections of a pure-Python host: dialled, accepted, counted, pruned, closed.

A connection is made by `dial` or comes in through a listener; both end in `SecureChannel` and `Yamux`. Every number a
stranger can drive up has a bound here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Final

from dht.ending import end_tasks
from dht.errors import LocalFault, UsageFault
from dht.host import PeerId
from dht.identity.multiaddr import Multiaddr
from dht.pylibp2p.handshake import HandshakeError, RawStream, Securer, SocketStream
from dht.pylibp2p.yamux import Yamux, YamuxStream

MAX_CONNECTIONS: Final = 192
"""Of all remotes. Beyond it the idle one that was used least recently makes room; the daemon prunes at 192."""

MAX_INCOMING: Final = 128
MAX_CONNECTIONS_PER_PEER: Final = 2
"""Two peers that dial each other at once have two; more is no use to anybody, and the oldest gives way."""

MAX_HANDSHAKES: Final = 32
"""Incoming ones at a time; a handshake costs three milliseconds of CPU and four signatures."""

HANDSHAKE_SECONDS: Final = 10.0
"""Six round trips over a line of a second and a half each."""

SOCKET_BUFFER_BYTES: Final = 256 * 1024

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class MuxedConnection:
    """One encrypted connection to `remote`."""

    remote: PeerId
    muxer: Yamux
    is_incoming: bool
    is_loopback: bool
    used_at: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)


OnConnection = Callable[[MuxedConnection], None]
OnStream = Callable[[MuxedConnection, YamuxStream], None]


class Connections:
    """All connections of one host.

    Args:
        securer: proves our key and checks theirs.
        on_connection: called for each new connection; must not block.
        on_stream: called for each stream that a remote opens; must not block.
    """

    def __init__(self, securer: Securer, on_connection: OnConnection, on_stream: OnStream) -> None:
        self._securer = securer
        self._on_connection = on_connection
        self._on_stream = on_stream
        self._live: dict[PeerId, list[MuxedConnection]] = {}
        self._servers: list[asyncio.Server] = []
        self._accepted: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_handshakes = 0
        self._is_closed = False

    def live(self) -> list[MuxedConnection]:
        """All connections, one entry each."""
        return [connection for connections in self._live.values() for connection in connections]

    def get(self, peer_id: PeerId) -> MuxedConnection | None:
        """An open connection to `peer_id`; the newest, because an older one may have died unnoticed."""
        connections = [connection for connection in self._live.get(peer_id, ()) if connection.muxer.is_open]
        if not connections:
            return None
        connections[-1].used_at = asyncio.get_running_loop().time()
        return connections[-1]

    async def listen(self, addresses: Sequence[Multiaddr]) -> list[Multiaddr]:
        """Listen on TCP; returns the addresses with the ports that were taken.

        Raises:
            LocalFault: a port is taken, or an address is not of this machine.
            UsageFault: not an IP address and a TCP port.
        """
        bound = []
        for address in addresses:
            ip = address.ip
            if ip is None or [name for name, _ in address.parts[1:]] != ["tcp"] or address.port is None:
                raise UsageFault(
                    f"cannot listen on {address} without the network daemon; expected /ip4/ADDRESS/tcp/PORT; "
                    "use --host-backend p2pd for other kinds"
                )
            try:
                server = await asyncio.start_server(self._on_socket, str(ip), address.port)
            except OSError as error:
                why = "is taken by another program" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
                raise LocalFault(
                    f"cannot listen on {address}: it {why}; expected a free port of this machine; give another one"
                ) from error
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
            bound += [own.with_port(port) for own in _own_addresses(address)]
        return bound

    async def dial(self, peer_id: PeerId, address: Multiaddr) -> MuxedConnection:
        """Open a connection to `peer_id` at a TCP address; the caller sets the deadline.

        Raises:
            HandshakeError: somebody else is there, or the address is of another kind.
            OSError, EOFError: nobody answers.
        """
        host, port, family = _tcp_target(address)
        reader, writer = await asyncio.open_connection(host, port, family=family, limit=SOCKET_BUFFER_BYTES)
        return await self._dialled(SocketStream(reader, writer), peer_id, _is_from_here(writer), writer.transport.abort)

    async def dial_through(self, stream: YamuxStream, peer_id: PeerId) -> MuxedConnection:
        """The same through a stream that a relay has connected with `peer_id`."""
        return await self._dialled(stream, peer_id, False, stream.abort)

    async def close(self) -> None:
        """End all connections and listeners. Never raises."""
        self._is_closed = True
        for server in self._servers:
            server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.gather(*(connection.muxer.say_goodbye() for connection in self.live()))
        await end_tasks(self._tasks)
        # A task that was cancelled before its first step had no chance to close its socket.
        for writer in list(self._accepted):
            self._abort(writer)

    async def _dialled(
        self, stream: RawStream, peer_id: PeerId, is_loopback: bool, abort: Callable[[], None]
    ) -> MuxedConnection:
        try:
            channel = await self._securer.dial(stream, peer_id)
            if self._is_closed or not self._has_room():
                raise HandshakeError(f"this host has {MAX_CONNECTIONS} busy connections already")
        except BaseException:
            abort()
            raise
        return self._add(channel.remote, Yamux(channel, is_dialler=True), False, is_loopback, abort)

    def _on_socket(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed or self._num_handshakes >= MAX_HANDSHAKES:
            writer.transport.abort()
            return
        self._accepted.add(writer)
        self._spawn(self._accept(reader, writer))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_handshakes += 1
        connection = None
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                channel = await self._securer.accept(SocketStream(reader, writer))
            theirs = self._live.get(channel.remote, [])
            if len(theirs) >= MAX_CONNECTIONS_PER_PEER:
                # A remote that comes back before its old connection is known to be dead must not be turned away.
                theirs[0].muxer.end("the same peer opened another")
            elif sum(connection.is_incoming for connection in self.live()) >= MAX_INCOMING:
                raise HandshakeError("too many connections")
            connection = self._add(
                channel.remote,
                Yamux(channel, is_dialler=False),
                True,
                _is_from_here(writer),
                lambda: self._abort(writer),
            )
        except (HandshakeError, OSError, EOFError, TimeoutError) as error:
            logger.info("refused a connection: %s", error or "it was too slow")
        finally:
            self._num_handshakes -= 1
            if connection is None:
                self._abort(writer)

    def _abort(self, writer: asyncio.StreamWriter) -> None:
        self._accepted.discard(writer)
        writer.transport.abort()

    def _add(
        self, remote: PeerId, muxer: Yamux, is_incoming: bool, is_loopback: bool, abort: Callable[[], None]
    ) -> MuxedConnection:
        connection = MuxedConnection(remote, muxer, is_incoming, is_loopback, asyncio.get_running_loop().time())
        self._live.setdefault(remote, []).append(connection)
        self._spawn(self._run(connection, abort))
        self._on_connection(connection)
        return connection

    async def _run(self, connection: MuxedConnection, abort: Callable[[], None]) -> None:
        try:
            reason = await connection.muxer.run(lambda stream: self._on_stream(connection, stream))
            logger.debug("the connection to %s ended: %s", connection.remote, reason)
        finally:
            abort()
            others = [other for other in self._live[connection.remote] if other is not connection]
            if others:
                self._live[connection.remote] = others
            else:
                del self._live[connection.remote]
            connection.ended.set()

    def _has_room(self) -> bool:
        live = self.live()
        if len(live) < MAX_CONNECTIONS:
            return True
        idle = [connection for connection in live if not connection.muxer.num_streams]
        if not idle:
            return False
        min(idle, key=lambda connection: connection.used_at).muxer.end("it made room for another")
        return True

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_from_here(writer: asyncio.StreamWriter) -> bool:
    # None when the remote was gone before anybody asked.
    name = writer.get_extra_info("peername")
    return bool(name) and ipaddress.ip_address(name[0].partition("%")[0]).is_loopback


def _tcp_target(address: Multiaddr) -> tuple[str, int, int]:
    kind, host = address.parts[0]
    families = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6, "dns": 0}
    families |= {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}
    if kind not in families or [name for name, _ in address.parts[1:]] != ["tcp"] or not address.port:
        raise HandshakeError("an address of a kind that only the network daemon can dial")
    return host, address.port, families[kind]


def _own_addresses(address: Multiaddr) -> list[Multiaddr]:
    """What others can dial for an address listened on: the wildcard stands for every interface."""
    ip = address.ip
    if ip is None or not ip.is_unspecified:
        return [address]
    is_old = ip.version == 4
    loopback, outside = ("127.0.0.1", "192.0.2.1") if is_old else ("::1", "2001:db8::1")
    found = [loopback]
    # No packet is sent: connecting a datagram socket only asks the routing table, here with a documentation address.
    family = socket.AF_INET if is_old else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((outside, 9))
        found.append(probe.getsockname()[0])
    rest = address.parts[1:]
    return [Multiaddr((("ip4" if is_old else "ip6", ip_text), *rest)) for ip_text in dict.fromkeys(found)]
