"""`Libp2pHost`: the `Host` port in pure Python, on py-libp2p's Noise, keys and messages; no daemon, no child process.

For observers, which are in one network with p2pd peers. The host only dials and serves no streams. It never dials
through a relay, because members that can be dialled also hold all records. It asks members for the addresses of others
(FIND_NODE), since records are also at members whose addresses the observer was not given.

py-libp2p's own Swarm and yamux are not used: they block a peer for a minute after one failed dial, try only one address
for each peer, and buffer received data without limit. They also run on trio, which would have to be a guest in the
asyncio loop. The needed rest is small enough to be written for asyncio (`yamux`, `connections`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final

from dht.ground.bounds import Newest
from dht.ground.delimited import MessageError, delimited, read_delimited
from dht.ground.errors import LocalFault, PeerUnreachable, words_of
from dht.ground.host import PeerId, Stream, StreamHandler
from dht.ground.tasks import Background
from dht.identity.keys import Identity, peer_id_bytes, public_key_of
from dht.identity.multiaddr import Multiaddr, parse_peer_multiaddr
from dht.pylibp2p import messages
from dht.pylibp2p.connections import Connections, MuxedConnection
from dht.pylibp2p.noise_handshake import HandshakeError, Securer, propose
from dht.pylibp2p.yamux import YamuxStream
from dht.streams.framing import FramedStream

MAX_OPENING_STREAMS: Final = 30

ASK_SECONDS: Final = 5.0
"""Time for one question about addresses; the remote answers from memory."""

MAX_KNOWN_PEERS: Final = 2048
"""Remotes with known addresses; the oldest is forgotten first."""

FIND_ROUNDS: Final = 3
FIND_WIDTH: Final = 4
"""A look-up asks this many of the nearest peers, in `FIND_ROUNDS` rounds. In a network of 100, half of the peers have
the addresses of all."""

_STREAM_ERRORS: Final = (HandshakeError, MessageError, OSError, EOFError, TimeoutError)

logger = logging.getLogger(__name__)


class Libp2pHost:
    """One libp2p identity on the network. Call `close` at the end, or use ``async with``."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._connections = Connections(Securer(self._identity), self._on_connection)
        self._opening = asyncio.Semaphore(MAX_OPENING_STREAMS)
        self._dialling: weakref.WeakValueDictionary[PeerId, asyncio.Lock] = weakref.WeakValueDictionary()
        self._background = Background()
        self._known: Newest[PeerId, tuple[Multiaddr, ...]] = Newest(MAX_KNOWN_PEERS)
        self._routers: Newest[PeerId, None] = Newest(MAX_KNOWN_PEERS)
        self._is_closed = False

    async def __aenter__(self) -> Libp2pHost:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def peer_id(self) -> PeerId:
        return self._identity.peer_id

    @property
    def is_up(self) -> bool:
        """Whether the host is open; there is no daemon that could be down."""
        return not self._is_closed

    def addresses(self) -> list[str]:
        """Return no addresses, because the host only dials."""
        return []

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Ignore the handler, because remotes cannot open streams to an observer."""

    def add_restart_listener(self, listener: Callable[[], Awaitable[None]]) -> None:
        """Ignore the listener, because there is no daemon that restarts."""

    async def wait_up(self, timeout_seconds: float) -> None:
        """Return at once.

        Raises:
            LocalFault: the host is closed.
        """
        if self._is_closed:
            raise LocalFault("the network host is closed; expected an open one; start again")

    async def connect(self, multiaddr: str, timeout_seconds: float) -> PeerId:
        """Dial `multiaddr`; see the port. A connected peer counts as reached."""
        peer_id, address = parse_peer_multiaddr(multiaddr)
        if peer_id == self.peer_id:
            raise PeerUnreachable(peer_id, "this is this peer's own address; expected another peer's; it is skipped")
        async with self._remote_call(peer_id, timeout_seconds, f"dial {address}"), self._dial_lock(peer_id):
            if self._connections.get(peer_id) is None:
                await self._connections.dial(peer_id, address)
        return peer_id

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        stream = await self.open_bytes(peer_id, protocol, timeout_seconds)
        return FramedStream(stream, peer_id)

    async def open_bytes(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> YamuxStream:
        """Open a stream without framing; raises as `open_stream`. The caller ends it."""
        async with self._remote_call(peer_id, timeout_seconds, f"open {protocol}"), self._opening:
            return await self._open(await self._reach(peer_id, may_search=True), protocol)

    async def connected_addresses(self) -> dict[PeerId, list[str]]:
        """Return for each connected peer the multiaddrs (with PeerId) where it listens; empty until it has announced
        them.

        Raises:
            LocalFault: the host is closed.
        """
        await self.wait_up(0)
        return {
            connection.remote: [
                str(address.with_peer_id(connection.remote)) for address in self._known.get(connection.remote, ())
            ]
            for connection in self._connections.live()
        }

    async def close(self) -> None:
        """End streams, handlers and connections. Never raises."""
        self._is_closed = True
        await self._background.close()
        await self._connections.close()

    # Calls to a remote

    @contextlib.asynccontextmanager
    async def _remote_call(self, peer_id: PeerId, timeout_seconds: float, what: str) -> AsyncIterator[None]:
        try:
            public_key_of(peer_id)
            if self._is_closed:
                raise PeerUnreachable(peer_id, f"cannot {what}: this host is closed; expected an open one")
            async with asyncio.timeout(timeout_seconds):
                yield
        except TimeoutError as error:
            raise PeerUnreachable(
                peer_id,
                f"did not answer within {timeout_seconds:g} s (to {what}); this peer retries or goes on without it",
            ) from error
        except EOFError as error:
            raise PeerUnreachable(
                peer_id, f"cannot {what}: it closed the connection; this peer retries or goes on without it"
            ) from error
        except (HandshakeError, OSError, ValueError) as error:
            raise PeerUnreachable(
                peer_id, f"cannot {what}: {_reason(error)}; this peer retries or goes on without it"
            ) from error

    def _dial_lock(self, peer_id: PeerId) -> asyncio.Lock:
        lock = self._dialling.get(peer_id)
        if lock is None:
            lock = self._dialling[peer_id] = asyncio.Lock()
        return lock

    async def _reach(self, peer_id: PeerId, *, may_search: bool) -> MuxedConnection:
        async with self._dial_lock(peer_id):
            connection = self._connections.get(peer_id)
            if connection is not None:
                return connection
            tried = self._known.get(peer_id, ())
            with contextlib.suppress(HandshakeError):
                return await self._dial_one_of(peer_id, tried)
            if may_search:
                found = await self._find(peer_id)
                return await self._dial_one_of(peer_id, [address for address in found if address not in tried])
            raise HandshakeError("no address of it answers")

    async def _dial_one_of(self, peer_id: PeerId, addresses: Iterable[Multiaddr]) -> MuxedConnection:
        for address in addresses:
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    return await self._connections.dial(peer_id, address)
            except _STREAM_ERRORS as error:
                logger.debug("%s is not at %s: %s", peer_id, address, words_of(error))
        raise HandshakeError("no address of it is known, or none answers")

    async def _open(self, connection: MuxedConnection, protocol: str) -> YamuxStream:
        stream = await connection.muxer.open()
        try:
            await propose(stream, protocol)
        except BaseException:
            stream.abort()
            raise
        return stream

    # Addresses of peers

    def _on_connection(self, connection: MuxedConnection) -> None:
        self._background.spawn(self._identify(connection))

    async def _identify(self, connection: MuxedConnection) -> None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                stream = await self._open(connection, messages.IDENTIFY_PROTOCOL)
                try:
                    addresses, protocols = messages.decode_identify(await _read_message(stream))
                finally:
                    stream.abort()
        except _STREAM_ERRORS as error:
            logger.debug("%s does not introduce itself: %s", connection.remote, words_of(error))
            return
        self._learn(connection.remote, addresses, connection.is_loopback)
        if messages.KAD_PROTOCOL in protocols:
            self._routers[connection.remote] = None

    def _learn(self, peer_id: PeerId, addresses: Sequence[Multiaddr], from_loopback: bool) -> None:
        # The loopback address of another machine would be this machine's own. Relays have limited capacity, which is
        # kept for peers.
        usable = tuple(
            address for address in addresses if not address.is_relayed and (from_loopback or not address.is_loopback)
        )
        if usable and peer_id != self.peer_id:
            self._known.pop(peer_id, None)
            self._known[peer_id] = usable

    async def _find(self, target: PeerId) -> tuple[Multiaddr, ...]:
        """Return the addresses of `target` from routing peers, asked nearest first; empty if unknown."""
        asked: set[PeerId] = set()
        candidates = {connection.remote for connection in self._connections.live()} & self._routers.keys() - {target}
        for _ in range(FIND_ROUNDS):
            nearest = sorted(candidates - asked, key=lambda peer: _distance(peer_id_bytes(target), peer))[:FIND_WIDTH]
            asked.update(nearest)
            for answer in await asyncio.gather(*(self._ask_where(peer, target) for peer in nearest)):
                candidates |= answer.keys() - {target, self.peer_id}
            if target in self._known:
                return self._known[target]
        return ()

    async def _ask_where(self, router: PeerId, target: PeerId) -> dict[PeerId, tuple[Multiaddr, ...]]:
        if self._connections.get(router) is None and self._dial_lock(router).locked():
            # Another task is searching for it, and may be waiting for this search.
            return {}
        try:
            async with asyncio.timeout(ASK_SECONDS):
                connection = await self._reach(router, may_search=False)
                stream = await self._open(connection, messages.KAD_PROTOCOL)
                try:
                    await _send_message(stream, messages.encode_find_node(target))
                    answer = messages.decode_closer_peers(await _read_message(stream))
                finally:
                    stream.abort()
        except _STREAM_ERRORS as error:
            logger.debug("%s does not return an address of %s: %s", router, target, words_of(error))
            return {}
        for peer_id, addresses in answer.items():
            # A connected peer has announced its own addresses.
            if self._connections.get(peer_id) is None:
                self._learn(peer_id, addresses, connection.is_loopback)
        return answer


async def _send_message(stream: YamuxStream, message: bytes) -> None:
    stream.write(delimited(message))
    await stream.drain()


async def _read_message(stream: YamuxStream) -> bytes:
    return await read_delimited(stream.readexactly, messages.MAX_MESSAGE_BYTES)


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "no program listens there"
    if isinstance(error, socket.gaierror):
        return "this name has no address"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _distance(key: bytes, peer_id: PeerId) -> int:
    """Return the distance of a key and a peer in kad: exclusive or of their hashes."""
    one, other = (hashlib.sha256(data).digest() for data in (key, peer_id_bytes(peer_id)))
    return int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
