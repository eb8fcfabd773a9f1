"""`P2pdHost`: the `Host` port over hivemind's libp2p daemon. It carries the bulk data.

The daemon is a child process that may die or hang at any time, and nobody would notice by itself: calls in flight
would wait for ever. So this host supervises it. It comes back with the same key and port, the protocols are
registered again, the peers it was connected to are dialled again, and then the restart listeners run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from dht.errors import LocalFault, PeerFault, PeerUnreachable
from dht.framing import FramedStream
from dht.host import PeerId, Stream, StreamHandler
from dht.identity import Identity, public_key_of
from dht.multiaddr import Multiaddr, parse_multiaddr, parse_peer_multiaddr
from dht.p2pd_control import Connection, ControlError, P2pdControl, listen_for_streams, read_stream_header
from dht.p2pd_daemon import DaemonOptions, P2pdProcess, announced_addresses, claim_ports, find_p2pd
from dht.p2pd_directory import SocketDirectory, remove_stale

MAX_OPENING_STREAMS: Final = 30
"""Opens in progress at once; a burst of 300 lost half of them, 900 in steps of 30 lost none."""

MAX_INCOMING_STREAMS: Final = 512
MAX_INCOMING_STREAMS_PER_PEER: Final = 64
"""One open stream costs a file descriptor here and in the daemon, and up to 2 MiB of buffer. A round needs a few."""

CONTROL_SECONDS: Final = 10.0
"""Deadline of a question that the daemon answers from memory: a thousand times what it needs on an idle machine."""

HEALTH_SECONDS: Final = 2.0
"""Two small questions over a local socket. It also bounds how old the list of peers to dial after a restart is."""
NUM_MISSED_ANSWERS: Final = 3
"""A daemon that is alive but silent for 3 * (2 + 10) s is killed and started again."""

REDIAL_SECONDS: Final = 5.0
MAX_REMEMBERED_PEERS: Final = 64
"""Peers dialled again after a restart; the rest is found through them."""

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 10.0
_STABLE_SECONDS: Final = 30.0
"""A daemon that lived for so long gets a quick restart; one that keeps dying is retried ever more slowly."""

RestartListener = Callable[[], Awaitable[None]]

logger = logging.getLogger(__name__)


class P2pdHost:
    """One libp2p identity on the network. Call `start` once, `close` at the end; or use it with ``async with``.

    Args:
        identity: the peer's key, or the path of its key file.
        listen: multiaddrs to listen on. Port 0 takes a free port, which then stays the same over restarts.
        announce: multiaddrs told to others in place of the found ones; port 0 means the port listened on.
        options: reachability, relays, port mapping.
        binary: another daemon than the one in hivemind's wheel.

    Raises:
        UsageFault: a multiaddr is wrong.
    """

    def __init__(
        self,
        identity: Identity | str | Path,
        listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0",),
        announce: Sequence[str] = (),
        *,
        options: DaemonOptions | None = None,
        binary: Path | None = None,
    ) -> None:
        self._identity = identity if isinstance(identity, Identity) else Identity.load(identity)
        self._listen = [parse_multiaddr(text) for text in listen]
        self._announce = [parse_multiaddr(text) for text in announce]
        self._options = options or DaemonOptions()
        self._binary = binary
        self._handlers: dict[str, StreamHandler] = {}
        self._restart_listeners: list[RestartListener] = []
        self._up = asyncio.Event()
        self._closed = False
        self._opening = asyncio.Semaphore(MAX_OPENING_STREAMS)
        self._streams: weakref.WeakSet[FramedStream] = weakref.WeakSet()
        self._incoming: Counter[PeerId] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._visible: list[Multiaddr] = []
        self._dialable: dict[PeerId, list[Multiaddr]] = {}
        self._remembered: dict[PeerId, list[Multiaddr]] = {}
        self._num_restarts = 0
        self._directory: SocketDirectory | None = None
        self._daemon: P2pdProcess | None = None
        self._lifeline: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self._supervisor: asyncio.Task[None] | None = None

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
        """Whether the daemon runs and answers."""
        return self._up.is_set()

    @property
    def num_restarts(self) -> int:
        """How many times the daemon had to be started again."""
        return self._num_restarts

    @property
    def daemon_process_id(self) -> int | None:
        return self._daemon.process_id if self._daemon is not None else None

    @property
    def socket_directory(self) -> Path:
        """Private directory of this host's sockets; whoever speaks to the daemon puts its own sockets there."""
        if self._directory is None:
            raise LocalFault("the network host was used before it started; expected start() first; this is a bug")
        return self._directory.path

    @property
    def control_socket(self) -> Path:
        """Unix socket of the daemon's control protocol."""
        return self.socket_directory / "control.sock"

    async def start(self) -> None:
        """Start the daemon and its supervision.

        Raises:
            LocalFault: a port is taken, or the daemon cannot run.
            UsageFault: an address is wrong.
        """
        remove_stale()
        self._directory = SocketDirectory()
        try:
            self._binary = self._binary or find_p2pd()
            self._listen = claim_ports(self._listen)
            self._announce = announced_addresses(self._announce, self._listen)
            self._server = await listen_for_streams(self.socket_directory / "streams.sock", self._on_connection)
            await self._launch()
        except (ControlError, OSError, TimeoutError) as error:
            await self.close()
            raise LocalFault(
                f"the network daemon does not answer ({error or type(error).__name__}); expected its PeerId; try again"
            ) from error
        except BaseException:
            await self.close()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="p2pd supervisor")

    def addresses(self) -> list[str]:
        """Dialable multiaddrs with this PeerId; loopback ones only when there are no others."""
        addresses = self._announce or [address for address in self._visible if address.port != 0]
        outside = [address for address in addresses if not address.is_loopback]
        return [str(address.with_peer_id(self.peer_id)) for address in outside or addresses]

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve incoming streams of `protocol`; a second call replaces the handler. Survives daemon restarts."""
        is_new = protocol not in self._handlers
        self._handlers[protocol] = handler
        if is_new and self._up.is_set():
            self._spawn(self._register(protocol))

    def add_restart_listener(self, listener: RestartListener) -> None:
        """Have `listener` awaited after each restart of the daemon, once it can be used again."""
        self._restart_listeners.append(listener)

    async def wait_up(self, timeout_seconds: float) -> None:
        """Wait until the daemon can be used.

        Raises:
            LocalFault: it is not back in time, or the host is closed.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._up.wait()
        except TimeoutError as error:
            raise LocalFault(
                f"the network daemon is not back after {timeout_seconds:.0f} s; expected it within seconds; see the log"
            ) from error
        if self._closed:
            raise LocalFault("the network host is closed; expected an open one; join again")

    async def connect(self, multiaddr: str, timeout_seconds: float) -> PeerId:
        """Dial `multiaddr`; see the port. A peer that is connected already counts as reached."""
        peer_id, address = parse_peer_multiaddr(multiaddr)
        if peer_id == self.peer_id:
            raise PeerUnreachable(peer_id, "this is our own address; expected another peer's; it is skipped")
        async with self._remote_call(peer_id, timeout_seconds, f"dial {address}") as control:
            await control.connect(peer_id, address, timeout_seconds)
        self._remember(peer_id, [address])
        return peer_id

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        """Open a stream to a known peer; see the port."""
        async with self._remote_call(peer_id, timeout_seconds, f"open {protocol}") as control, self._opening:
            reader, writer = await control.open_stream(peer_id, protocol, timeout_seconds)
        stream = FramedStream(reader, writer, peer_id)
        self._streams.add(stream)
        return stream

    async def connected_addresses(self) -> dict[PeerId, list[str]]:
        """For each connected peer the multiaddrs (with PeerId) where it listens; empty while it has not told yet.

        Raises:
            LocalFault: the daemon does not answer.
        """
        await self.wait_up(CONTROL_SECONDS)
        try:
            await self._refresh_connections()
        except (ControlError, OSError, TimeoutError) as error:
            raise LocalFault(f"the network daemon does not answer ({error}); expected its peers; try again") from error
        return {
            peer_id: [str(address.with_peer_id(peer_id)) for address in addresses]
            for peer_id, addresses in self._dialable.items()
        }

    async def close(self) -> None:
        """End streams, handlers, supervision and the daemon, and delete the sockets. Never raises."""
        self._closed = True
        self._up.set()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        streams = list(self._streams)
        await asyncio.gather(*(stream.close() for stream in streams))
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._daemon is not None:
            await self._daemon.stop()
        self._drop_lifeline()
        if self._directory is not None:
            self._directory.remove()

    # Calls to the daemon

    @contextlib.asynccontextmanager
    async def _remote_call(self, peer_id: PeerId, timeout_seconds: float, what: str) -> AsyncIterator[P2pdControl]:
        try:
            public_key_of(peer_id)
            async with asyncio.timeout(timeout_seconds):
                await self._up.wait()
                if self._closed:
                    raise PeerUnreachable(peer_id, f"cannot {what}: this host is closed; expected an open one")
                yield P2pdControl(self.control_socket)
        except TimeoutError as error:
            raise PeerUnreachable(
                peer_id, f"did not answer within {timeout_seconds:g} s (to {what}); it is tried again or left out"
            ) from error
        except (ControlError, ValueError) as error:
            raise PeerUnreachable(peer_id, f"cannot {what}: {error}; it is tried again or left out") from error
        except (OSError, EOFError) as error:
            raise PeerUnreachable(
                peer_id, f"cannot {what}: our own network daemon is down; expected it back within seconds; try again"
            ) from error

    async def _refresh_connections(self) -> None:
        async with asyncio.timeout(CONTROL_SECONDS):
            connections = await P2pdControl(self.control_socket).list_connections()
            self._dialable = {
                connection.peer_id: self._dialable.get(connection.peer_id, []) for connection in connections
            }
            unknown = [connection for connection in connections if not self._dialable[connection.peer_id]]
            await asyncio.gather(*(self._find_addresses(connection) for connection in unknown))
        for peer_id, addresses in self._dialable.items():
            self._remember(peer_id, addresses)

    async def _find_addresses(self, connection: Connection) -> None:
        # The other end of a connection that came in is a passing port; where the peer listens, it has told the daemon.
        try:
            found = await P2pdControl(self.control_socket).find_peer(connection.peer_id)
        except ControlError as error:
            logger.debug("no addresses of %s yet: %s", connection.peer_id, error)
            return
        here = connection.address.is_loopback
        self._dialable[connection.peer_id] = [
            address.without_peer_id()
            for address in found
            if not address.is_relayed and (here or not address.is_loopback)
        ]

    def _remember(self, peer_id: PeerId, addresses: list[Multiaddr]) -> None:
        # An address that was dialled is better than the one a peer came from, which may be a passing port.
        known = [address for address in self._remembered.pop(peer_id, []) if address not in addresses]
        if known or addresses:
            self._remembered[peer_id] = (known + addresses)[:4]
        while len(self._remembered) > MAX_REMEMBERED_PEERS:
            del self._remembered[next(iter(self._remembered))]

    # Incoming streams

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._accept(reader, writer))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                remote, protocol = await read_stream_header(reader)
        except (ControlError, OSError, EOFError, ValueError, TimeoutError) as error:
            logger.info("refused a stream without a readable header: %s", error or "nothing came")
            writer.transport.abort()
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        handler = self._handlers.get(protocol)
        is_full = (
            self._incoming.total() >= MAX_INCOMING_STREAMS or self._incoming[remote] >= MAX_INCOMING_STREAMS_PER_PEER
        )
        if handler is None or is_full or self._closed:
            logger.info("refused a stream %s of peer %s: %s", protocol, remote, "too many" if is_full else "no handler")
            writer.transport.abort()
            return
        await self._serve(handler, FramedStream(reader, writer, remote), protocol)

    async def _serve(self, handler: StreamHandler, stream: FramedStream, protocol: str) -> None:
        self._streams.add(stream)
        self._incoming[stream.remote] += 1
        try:
            await handler(stream)
        except PeerFault as fault:
            logger.info("stream %s ended: %s", protocol, fault)
        except Exception:
            # The port promises that a bug in one handler does not take the host down; it must be seen, though.
            logger.exception("the handler of %s failed; this is a bug", protocol)
        finally:
            self._incoming -= Counter([stream.remote])
            await stream.close()

    async def _register(self, protocol: str) -> None:
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                await P2pdControl(self.control_socket).add_stream_handler(
                    protocol, self.socket_directory / "streams.sock"
                )
        except (ControlError, OSError, EOFError, TimeoutError) as error:
            # A daemon that died meanwhile gets every protocol again when it is back.
            logger.warning("protocol %s is not served yet: %s", protocol, error or "no answer")

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The daemon's life

    async def _launch(self) -> None:
        assert self._binary is not None
        self._daemon = await P2pdProcess.start(
            binary=self._binary,
            control_socket=self.control_socket,
            identity=self._identity,
            listen=self._listen,
            announce=self._announce,
            options=self._options,
        )
        control = P2pdControl(self.control_socket)
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                _, self._lifeline = await control.open_lifeline()
                peer_id, self._visible = await control.identify()
                for protocol in list(self._handlers):
                    await control.add_stream_handler(protocol, self.socket_directory / "streams.sock")
        except BaseException:
            await self._daemon.stop()
            raise
        if peer_id != self.peer_id:
            raise LocalFault(f"the network daemon calls itself {peer_id}; expected {self.peer_id}; this is a bug")
        self._up.set()

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            assert self._daemon is not None
            started_at = loop.time()
            health = asyncio.create_task(self._watch_health(self._daemon), name="p2pd health")
            try:
                status = await self._daemon.wait()
            finally:
                health.cancel()
                await asyncio.gather(health, return_exceptions=True)
            self._up.clear()
            self._drop_lifeline()
            logger.warning("the network daemon ended with status %d; it is started again", status)
            if loop.time() - started_at > _STABLE_SECONDS:
                pause_seconds = _FIRST_PAUSE_SECONDS
            pause_seconds = await self._restart(pause_seconds)

    async def _restart(self, pause_seconds: float) -> float:
        while True:
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
            try:
                claim_ports(self._listen)
                await self._launch()
                break
            except (LocalFault, ControlError, OSError, EOFError, TimeoutError) as error:
                logger.warning("the network daemon did not come back: %s; next try in %.1f s", error, pause_seconds)
        self._num_restarts += 1
        self._spawn(self._after_restart())
        return pause_seconds

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

    async def _watch_health(self, daemon: P2pdProcess) -> None:
        num_missed = 0
        while num_missed < NUM_MISSED_ANSWERS:
            await asyncio.sleep(HEALTH_SECONDS)
            try:
                async with asyncio.timeout(CONTROL_SECONDS):
                    _, self._visible = await P2pdControl(self.control_socket).identify()
                await self._refresh_connections()
                num_missed = 0
            except TimeoutError:
                num_missed += 1
            except (ControlError, OSError, EOFError) as error:
                logger.debug("no answer of the network daemon: %s", error)
        logger.warning("the network daemon has stopped answering; it is killed and started again")
        daemon.kill()

    def _drop_lifeline(self) -> None:
        if self._lifeline is not None:
            self._lifeline.transport.abort()
            self._lifeline = None
