"""`P2pdHost`: the `Host` port over hivemind's libp2p daemon, for bulk data.

The daemon is a child process under `P2pdSupervisor`. When it dies, open streams fail at once, and it restarts with the
same key and port. The host then registers its protocols, dials its former peers again, and runs the restart listeners.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Final, TypeVar

from dht.ground.bounds import Allowances, Newest
from dht.ground.errors import DaemonFault, LocalFault, PeerFault, PeerUnreachable, words_of
from dht.ground.host import PeerId, Stream, StreamHandler
from dht.ground.tasks import Background
from dht.identity.keys import Identity, public_key_of
from dht.identity.multiaddr import Multiaddr, parse_multiaddr, parse_peer_multiaddr
from dht.p2pd.congestion_control import BBR, congestion_control
from dht.p2pd.control import ControlError, P2pdControl, listen_for_streams, read_stream_header
from dht.p2pd.daemon import START_SECONDS, DaemonOptions
from dht.p2pd.supervisor import CONTROL_SECONDS, P2pdSupervisor
from dht.streams.byte_stream import ByteStream
from dht.streams.framing import FramedStream
from dht.streams.remote_memory import RemoteMemory
from dht.streams.streams_per_remote import MAX_INCOMING_STREAMS, MAX_INCOMING_STREAMS_PER_PEER, gives_way
from dht.streams.upload_and_download_limits import Pace, Paces, RateLimits

MAX_OPENING_STREAMS: Final = 30
"""Concurrent opens; a burst of 300 lost half of them, 900 in steps of 30 lost none."""

REDIAL_SECONDS: Final = 5.0
MAX_REMEMBERED_PEERS: Final = 64
"""Peers dialled again after a restart; others are found through them."""

MAX_ADDRESSES_PER_PEER: Final = 4

STREAMS_AT_ONCE: Final = 256
"""Streams that one remote may open at once. A joiner asks each donor of a large run for the digest of each fragment, on
separate streams."""
SECONDS_PER_STREAM: Final = 1 / 16
"""Seconds until one more is served. A stream costs this process and its daemon about a millisecond each before any byte
is read."""

_TRIED_AGAIN: Final = "; this peer retries or goes on without it"
_IN_WORDS: Final = {
    "routing: not found": "no peer that this peer is connected to knows an address of it",
    "failed to find any peer in table": "this peer is connected to no peer that could know an address of it",
}
"""Plain words for the daemon's errors."""

T = TypeVar("T")

RestartListener = Callable[[], Awaitable[None]]

logger = logging.getLogger(__name__)


class P2pdHost:
    """One libp2p identity on the network. Call `start` once and `close` at the end, or use ``async with``.

    Args:
        identity: the peer's key.
        listen: multiaddrs to listen on; empty: it only dials. Port 0 takes a free port, which stays the same after
            restarts.
        announce: multiaddrs to announce instead of the found ones; port 0 means the listening port.
        options: reachability, relays, port mapping.
        limits: rate limits of all streams of this host together.

    Attributes:
        daemon: supervisor of the child process.

    Raises:
        UsageFault: a multiaddr is wrong.
    """

    def __init__(
        self,
        identity: Identity,
        listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0",),
        announce: Sequence[str] = (),
        *,
        options: DaemonOptions | None = None,
        limits: RateLimits | None = None,
    ) -> None:
        self._identity = identity
        self.daemon = P2pdSupervisor(
            self._identity,
            [parse_multiaddr(text) for text in listen],
            [parse_multiaddr(text) for text in announce],
            options or DaemonOptions(),
            on_launch=self._register_all,
            on_healthy=self._refresh_connections,
            on_restarted=self._after_restart,
        )
        self._limits = limits or RateLimits()
        self._paces = self._limits.paces(time.monotonic)
        self._line_paces: dict[str, Pace] = {}
        self.memory = RemoteMemory()
        self._handlers: dict[str, StreamHandler] = {}
        self._restart_listeners: list[RestartListener] = []
        self._opening = asyncio.Semaphore(MAX_OPENING_STREAMS)
        self._streams: weakref.WeakSet[FramedStream] = weakref.WeakSet()
        self._incoming: Counter[PeerId] = Counter()
        self._opened = Allowances[PeerId](STREAMS_AT_ONCE, SECONDS_PER_STREAM)
        self._served: list[FramedStream] = []
        """Incoming streams, the newest last, without those that were cut."""
        self._background = Background()
        self._dialable: dict[PeerId, list[Multiaddr]] = {}
        self._remembered: Newest[PeerId, list[Multiaddr]] = Newest(MAX_REMEMBERED_PEERS)
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> P2pdHost:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def peer_id(self) -> PeerId:
        return self._identity.peer_id

    @property
    def is_up(self) -> bool:
        return self.daemon.is_up

    def pace_of(self, protocol: str) -> Pace | None:
        """Return the pace that streams opened for `protocol` from now on share; unlimited until `follow`.

        None: a limit is set for all streams of this host, or the kernel paces each connection.
        """
        if self._limits.upload_bits_per_second is not None or congestion_control() == BBR:
            return None
        return self._line_paces.setdefault(protocol, Pace(None, time.monotonic, within=self._paces.upload))

    def limit(self, limits: RateLimits) -> None:
        """Apply these limits to all streams of this host together, including open ones."""
        for pace, bits in (
            (self._paces.upload, limits.upload_bits_per_second),
            (self._paces.download, limits.download_bits_per_second),
        ):
            if pace is not None:
                pace.limit(bits)

    async def start(self) -> None:
        """Start the daemon and its supervision.

        Raises:
            LocalFault: a port is taken, or the daemon cannot run.
            UsageFault: an address is wrong.
        """
        try:
            self.daemon.open_directory()
            self._server = await listen_for_streams(
                self._streams_socket, self._on_connection, self.memory.read_buffer_bytes
            )
            await self.daemon.start()
        except BaseException:
            await self.close()
            raise

    def addresses(self) -> list[str]:
        """Return dialable multiaddrs with this PeerId; loopback ones only if there are no others."""
        addresses = self.daemon.addresses
        outside = [address for address in addresses if not address.is_loopback]
        return [str(address.with_peer_id(self.peer_id)) for address in outside or addresses]

    def local_addresses(self) -> list[str]:
        """Return the addresses at which this machine reaches the daemon, with this PeerId, whatever is announced."""
        return [str(address.on_this_machine().with_peer_id(self.peer_id)) for address in self.daemon.listens]

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve incoming streams of `protocol`; a second call replaces the handler. Survives daemon restarts."""
        is_new = protocol not in self._handlers
        self._handlers[protocol] = handler
        if is_new and self.is_up:
            self._background.spawn(self._register_late(protocol))

    def add_restart_listener(self, listener: RestartListener) -> None:
        """Await `listener` after each restart of the daemon, once it is usable again."""
        self._restart_listeners.append(listener)

    async def wait_up(self, timeout_seconds: float) -> None:
        """Wait until the daemon is usable.

        Raises:
            LocalFault: the daemon did not restart in time, or the host is closed.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.daemon.wait_up()
        except TimeoutError as error:
            raise LocalFault(
                f"the network daemon did not restart within {timeout_seconds:.0f} s; expected it within seconds; see "
                "the log"
            ) from error
        if self.daemon.is_closed:
            raise LocalFault("the network host is closed; expected an open one; join again")

    @property
    def options(self) -> DaemonOptions:
        return self.daemon.options

    async def change(self, options: DaemonOptions, announce: Sequence[str] | None = None) -> None:
        """Restart the daemon with other options: streams end; key, port and protocols stay.

        Args:
            announce: multiaddrs to announce; None: the present ones.

        Raises:
            LocalFault: the daemon does not restart.
        """
        await self.daemon.change(options, None if announce is None else [parse_multiaddr(text) for text in announce])
        await self.wait_up(START_SECONDS)

    def moved_bytes(self, peer_id: PeerId) -> int:
        """Return the bytes moved by the open streams of a peer; an unchanged number means that nothing moves."""
        return sum(
            stream.bytes_sent + stream.bytes_received
            for stream in list(self._streams)
            if stream.remote == peer_id and stream.is_open
        )

    async def connect(self, multiaddr: str, timeout_seconds: float) -> PeerId:
        """Dial `multiaddr`; see the port. A connected peer counts as reached."""
        peer_id, address = parse_peer_multiaddr(multiaddr)
        if peer_id == self.peer_id:
            raise PeerUnreachable(peer_id, "this is this peer's own address; expected another peer's; it is skipped")
        async with self._remote_call(peer_id, timeout_seconds, f"dial {address}") as control:
            await control.connect(peer_id, address, timeout_seconds)
        self._remember(peer_id, [address])
        return peer_id

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        async with self._remote_call(peer_id, timeout_seconds, f"open {protocol}") as control, self._opening:
            connection = await control.open_stream(peer_id, protocol, timeout_seconds)
        paces = Paces(self._line_paces.get(protocol, self._paces.upload), self._paces.download)
        stream = FramedStream(connection, peer_id, paces, self.memory)
        self._streams.add(stream)
        return stream

    async def disconnect(self, peer_id: PeerId) -> None:
        """Close all connections to a peer, with their streams. Does nothing if there are none.

        The daemons' own DHT may dial a recently met peer again by itself.
        """
        with contextlib.suppress(PeerUnreachable):
            async with self._remote_call(peer_id, CONTROL_SECONDS, "disconnect") as control:
                await control.disconnect(peer_id)

    async def connections(self) -> dict[PeerId, list[Multiaddr]]:
        """Return for each connected peer the remote address of each connection; relayed ones contain their relay.

        Raises:
            LocalFault: the daemon does not answer.
        """
        found: dict[PeerId, list[Multiaddr]] = {}
        for peer_id, address in await self._ask(self.daemon.control.list_connections()):
            found.setdefault(peer_id, []).append(address)
        return found

    async def connected_addresses(self) -> dict[PeerId, list[str]]:
        """Return for each connected peer the multiaddrs (with PeerId) where it listens; empty until it has announced
        them.

        Raises:
            LocalFault: the daemon does not answer.
        """
        await self._ask(self._refresh_connections())
        return {
            peer_id: [str(address.with_peer_id(peer_id)) for address in addresses]
            for peer_id, addresses in self._dialable.items()
        }

    async def close(self) -> None:
        """End streams, handlers, supervision and the daemon, and delete the sockets. Never raises.

        If cancelled, it stops waiting but still leaves nothing behind.
        """
        if self._server is not None:
            self._server.close()
        try:
            await asyncio.gather(*(stream.close() for stream in list(self._streams)))
            await self._background.close()
        finally:
            await self.daemon.close()

    # Calls to the daemon

    async def _ask(self, question: Coroutine[None, None, T]) -> T:
        try:
            await self.wait_up(CONTROL_SECONDS)
            async with asyncio.timeout(CONTROL_SECONDS):
                return await question
        except (ControlError, OSError, EOFError) as error:
            raise DaemonFault(
                f"the network daemon does not answer ({words_of(error)}); expected its peers; try again"
            ) from error
        finally:
            question.close()

    @contextlib.asynccontextmanager
    async def _remote_call(self, peer_id: PeerId, timeout_seconds: float, what: str) -> AsyncIterator[P2pdControl]:
        try:
            public_key_of(peer_id)
            async with asyncio.timeout(timeout_seconds):
                await self.daemon.wait_up()
                if self.daemon.is_closed:
                    raise PeerUnreachable(peer_id, f"cannot {what}: this host is closed; expected an open one")
                yield P2pdControl(self.daemon.control_socket, self.memory.read_buffer_bytes)
        except TimeoutError as error:
            reason = f"did not answer within {timeout_seconds:g} s"
            raise PeerUnreachable(peer_id, f"{reason} (to {what}){_TRIED_AGAIN}", reason) from error
        except (ControlError, ValueError) as error:
            reason = _IN_WORDS.get(str(error), str(error))
            raise PeerUnreachable(peer_id, f"cannot {what}: {reason}{_TRIED_AGAIN}", reason) from error
        except (OSError, EOFError) as error:
            raise PeerUnreachable(
                peer_id,
                f"cannot {what}: this peer's network daemon is down; expected it back within seconds; try again",
            ) from error

    async def _refresh_connections(self) -> None:
        connections = await self.daemon.control.list_connections()
        self._dialable = {peer_id: self._dialable.get(peer_id, []) for peer_id, _ in connections}
        unknown = [(peer_id, address) for peer_id, address in connections if not self._dialable[peer_id]]
        await asyncio.gather(*(self._find_addresses(peer_id, address) for peer_id, address in unknown))
        for peer_id, addresses in self._dialable.items():
            self._remember(peer_id, addresses)

    async def _find_addresses(self, peer_id: PeerId, far_end: Multiaddr) -> None:
        # The remote address of an incoming connection has a temporary port; the peer announced its listening addresses
        # to the daemon.
        try:
            found = await self.daemon.control.find_peer(peer_id)
        except ControlError as error:
            logger.debug("no addresses of %s yet: %s", peer_id, error)
            return
        here = far_end.is_loopback
        self._dialable[peer_id] = [
            address.without_peer_id()
            for address in found
            if not address.is_relayed and (here or not address.is_loopback)
        ]

    def _remember(self, peer_id: PeerId, addresses: list[Multiaddr]) -> None:
        known = [address for address in self._remembered.pop(peer_id, []) if address not in addresses]
        if known or addresses:
            self._remembered[peer_id] = (addresses + known)[:MAX_ADDRESSES_PER_PEER]

    async def _after_restart(self) -> None:
        await asyncio.gather(*(self._redial(peer_id) for peer_id in list(self._remembered)))
        for listener in self._restart_listeners:
            try:
                await listener()
            except (PeerFault, LocalFault) as fault:
                logger.warning("after the restart of the network daemon: %s", fault)

    async def _redial(self, peer_id: PeerId) -> None:
        for address in self._remembered.get(peer_id, []):
            with contextlib.suppress(PeerUnreachable):
                await self.connect(str(address.with_peer_id(peer_id)), REDIAL_SECONDS)
                return

    # Incoming streams

    @property
    def _streams_socket(self) -> Path:
        return self.daemon.directory / "streams.sock"

    async def _register_all(self) -> None:
        registered: set[str] = set()
        # Repeated, because `handle` may be called while an earlier protocol is being registered.
        while new := [protocol for protocol in self._handlers if protocol not in registered]:
            for protocol in new:
                await self.daemon.control.add_stream_handler(protocol, self._streams_socket)
                registered.add(protocol)

    async def _register_late(self, protocol: str) -> None:
        while True:
            try:
                async with asyncio.timeout(CONTROL_SECONDS):
                    await self.daemon.control.add_stream_handler(protocol, self._streams_socket)
                return
            except TimeoutError:
                # The machine may be busy with its start. If the daemon has the protocol by then, its error ends this
                # loop.
                logger.info("protocol %s is not served yet: no answer from the daemon; asking again", protocol)
            except (ControlError, OSError, EOFError) as error:
                # A restarted daemon gets all protocols, including this one.
                logger.info("protocol %s is not served yet: %s", protocol, words_of(error))
                return

    def _on_connection(self, connection: ByteStream) -> None:
        self._background.spawn(self._accept(connection))

    async def _accept(self, connection: ByteStream) -> None:
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                remote, protocol = await read_stream_header(connection)
        except (ControlError, OSError, EOFError, ValueError, TimeoutError) as error:
            logger.info("refused a stream without a readable header: %s", words_of(error, "no data arrived"))
            connection.abort()
            return
        except asyncio.CancelledError:
            connection.abort()
            raise
        handler = self._handlers.get(protocol)
        is_full = self._incoming[remote] >= MAX_INCOMING_STREAMS_PER_PEER or not self._has_room_for(remote)
        if handler is None or is_full or self.daemon.is_closed:
            logger.info("refused a stream %s of peer %s: %s", protocol, remote, "too many" if is_full else "no handler")
            connection.abort()
            return
        await self._serve(handler, FramedStream(connection, remote, self._paces, self.memory), protocol)

    def _has_room_for(self, remote: PeerId) -> bool:
        """Return whether another stream fits. If all streams are in use, end a stream of the remote with the most
        streams.
        """
        if self._incoming.total() < MAX_INCOMING_STREAMS:
            return True
        # Without streams that were cut but whose handlers are still running.
        greatest = gives_way(Counter(stream.remote for stream in self._served), remote)
        if greatest is None:
            return False
        newest = next(stream for stream in reversed(self._served) if stream.remote == greatest)
        self._served.remove(newest)
        logger.info("closing a stream of peer %s: all streams are in use, and that peer has most of them", greatest)
        newest.cut("another remote needs its place")
        return True

    async def _serve(self, handler: StreamHandler, stream: FramedStream, protocol: str) -> None:
        self._streams.add(stream)
        self._served.append(stream)
        self._incoming[stream.remote] += 1
        try:
            while not self._opened.spend(stream.remote, time.monotonic()):  # noqa: ASYNC110 (time gives more)
                await asyncio.sleep(SECONDS_PER_STREAM)
            await handler(stream)
        except PeerFault as fault:
            logger.info("stream %s ended: %s", protocol, fault)
        except Exception:
            # The port promises that a bug in one handler does not stop the host, but the bug must be visible.
            logger.exception("the handler of %s failed; this is a bug", protocol)
        finally:
            self._incoming -= Counter([stream.remote])
            if stream in self._served:
                self._served.remove(stream)
            await stream.close()
