"""Keep one libp2p daemon alive: start it, watch it, and restart it with the same key and port.

No other code notices a dead daemon: calls in flight would wait forever. A hanging daemon is as bad, so the supervisor
sends requests every few seconds, and kills the daemon if it does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from dht.ground.errors import DaemonFault, LocalFault, words_of
from dht.ground.tasks import end_tasks
from dht.identity.keys import Identity
from dht.identity.multiaddr import Multiaddr
from dht.p2pd.announced_addresses import must_announce
from dht.p2pd.control import ControlError, P2pdControl
from dht.p2pd.daemon import DaemonOptions, P2pdProcess, PortTaken, announced_addresses, claim_ports, find_p2pd
from dht.p2pd.socket_directory import SocketDirectory, remove_stale
from dht.streams.byte_stream import ByteStream

CONTROL_SECONDS: Final = 10.0
"""Deadline of a request that the daemon answers from memory: a thousand times its time on an idle machine."""

HEALTH_SECONDS: Final = 2.0
"""Interval between health checks: two small requests over a local socket. It also bounds the age of the list of peers
to dial after a restart."""

NUM_MISSED_ANSWERS: Final = 3
"""A daemon without answers for 3 * (2 + 10) s is killed and restarted."""

NUM_TRIES_OF_CHANGE: Final = 3
"""After this many failed starts with new options or addresses, the daemon runs with the old ones. Some options come
from other members, and without a daemon no peer would be reachable."""

NUM_TRIES_OF_A_PORT: Final = 3
"""Between the check for a free port and the daemon's use of it, another program may take the port: seen once in
days."""

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 10.0
_STABLE_SECONDS: Final = 30.0
"""A daemon that lived for this long restarts quickly; one that keeps dying is restarted ever more slowly."""

logger = logging.getLogger(__name__)


class P2pdSupervisor:
    """One daemon, across its restarts.

    Args:
        identity: the key of the daemon, also after restarts.
        listen, announce: parsed multiaddrs. Port 0 is replaced at the first start and stays, unless another program has
            taken the port at a restart.
        options: reachability, relays, port mapping.
        on_launch: awaited in each start before the daemon counts as up; registers the protocols.
        on_healthy: awaited after each answered request.
        on_restarted: awaited after each restart; calls do not overlap.

    Attributes:
        num_restarts: number of unexpected restarts.
        last_downtime_seconds: seconds from the daemon's last unexpected end until it answered again.
        options: options of the running daemon.
    """

    def __init__(
        self,
        identity: Identity,
        listen: list[Multiaddr],
        announce: list[Multiaddr],
        options: DaemonOptions,
        *,
        on_launch: Callable[[], Awaitable[None]],
        on_healthy: Callable[[], Awaitable[None]],
        on_restarted: Callable[[], Awaitable[None]],
    ) -> None:
        self._identity = identity
        self._wanted = listen
        self._listen = listen
        self._asked_announce = announce
        self._announce = announce
        self.options = options
        self._on_launch = on_launch
        self._on_healthy = on_healthy
        self._on_restarted = on_restarted
        self._up = asyncio.Event()
        self.is_closed = False
        self._visible: list[Multiaddr] = []
        self.num_restarts = 0
        self._is_changing = False
        self._before_change = (options, announce)
        self.last_downtime_seconds = 0.0
        self._directory: SocketDirectory | None = None
        self._daemon: P2pdProcess | None = None
        self._lifeline: ByteStream | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._greeters: set[asyncio.Task[None]] = set()
        self._greeting = asyncio.Lock()

    @property
    def is_up(self) -> bool:
        return self._up.is_set() and not self.is_closed

    @property
    def process_id(self) -> int | None:
        return self._daemon.process_id if self._daemon is not None else None

    @property
    def directory(self) -> Path:
        """Private directory for sockets, created by `open_directory`; the daemon's callers put their sockets
        there too.
        """
        if self._directory is None:
            raise LocalFault("the network host was used before it started; expected start() first; this is a bug")
        return self._directory.path

    @property
    def control_socket(self) -> Path:
        return self.directory / "control.sock"

    @property
    def control(self) -> P2pdControl:
        return P2pdControl(self.control_socket)

    @property
    def addresses(self) -> list[Multiaddr]:
        """The announced addresses or, without any, those that the daemon found."""
        return self._announce or [address for address in self._visible if address.port != 0]

    @property
    def listens(self) -> list[Multiaddr]:
        return list(self._listen)

    def open_directory(self) -> None:
        """Create the private directory, and delete those of killed processes."""
        remove_stale()
        self._directory = SocketDirectory()

    async def start(self) -> None:
        """Start the daemon and its supervision.

        Raises:
            LocalFault: a port is taken, or the daemon cannot run or does not answer.
            UsageFault: an address is wrong.
        """
        try:
            await self._launch_on_a_free_port()
        except (ControlError, OSError, EOFError) as error:
            raise DaemonFault(
                f"the network daemon does not answer ({words_of(error)}); expected its PeerId; try again"
            ) from error
        self._watcher = asyncio.create_task(self._supervise(), name="p2pd supervisor")

    async def change(self, options: DaemonOptions, announce: list[Multiaddr] | None = None) -> None:
        """Restart the daemon with other options and the same key and port. `announce` None: as before.

        If it cannot start with them, it returns to the old options, which `options` then contains.
        """
        if not self._is_changing:
            self._before_change = self.options, self._asked_announce
        self.options = options
        if announce is not None:
            self._asked_announce = announce
        self._is_changing = True
        self._up.clear()
        if self._daemon is not None:
            await self._daemon.stop()

    async def wait_up(self) -> None:
        """Wait until the daemon is usable or the supervisor is closed."""
        await self._up.wait()

    async def close(self) -> None:
        """End the supervision and the daemon, and delete the directory, even when cancelled. Never raises."""
        self.is_closed = True
        self._up.set()
        try:
            await end_tasks(task for task in (self._watcher, *self._greeters) if task is not None)
            if self._daemon is not None:
                await self._daemon.stop()
        finally:
            if self._daemon is not None:
                self._daemon.kill()
            self._drop_lifeline()
            if self._directory is not None:
                self._directory.remove()

    async def _launch_on_a_free_port(self) -> None:
        """Start the daemon. If no fixed port was requested, try another one when a program takes the first after the
        check.
        """
        num_tries = NUM_TRIES_OF_A_PORT if any(address.port == 0 for address in self._wanted) else 1
        for num_left in reversed(range(num_tries)):
            self._claim(self._wanted)
            try:
                await self._launch()
                break
            except PortTaken as fault:
                if not num_left:
                    raise
                logger.info("%s; trying another port", fault)

    async def _launch(self) -> None:
        await self._run_daemon(self._announce)
        # A peer behind relays announces nothing: it is found at its relays.
        if not self._announce and self.options.reachability != "private" and (odd := must_announce(self._visible)):
            logger.info("the network daemon is started again, to announce %s", ", ".join(map(str, odd)))
            await self._stop_daemon()
            await self._run_daemon(odd)
        async with self._or_stopped():
            await self._on_launch()
        self._up.set()

    async def _run_daemon(self, announce: Sequence[Multiaddr]) -> None:
        self._daemon = await P2pdProcess.start(
            binary=find_p2pd(),
            control_socket=self.control_socket,
            identity=self._identity,
            listen=self._listen,
            announce=announce,
            options=self.options,
        )
        async with self._or_stopped():
            self._lifeline = await self.control.open_lifeline()
            peer_id, self._visible = await self.control.identify()
            if peer_id != self._identity.peer_id:
                raise LocalFault(
                    f"the network daemon has the PeerId {peer_id}; expected {self._identity.peer_id}; this is a bug"
                )

    @contextlib.asynccontextmanager
    async def _or_stopped(self) -> AsyncIterator[None]:
        """Stop the daemon if the block fails or takes too long."""
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                yield
        except BaseException:
            await self._stop_daemon()
            raise

    async def _stop_daemon(self) -> None:
        self._drop_lifeline()
        if self._daemon is not None:
            await self._daemon.stop()

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
            ended_at = loop.time()
            self._up.clear()
            # Only ends its log reader; the process is gone.
            await self._stop_daemon()
            if self._is_changing:
                logger.info("the network daemon is started again with other options")
            else:
                logger.warning("the network daemon ended with status %d; it is started again", status)
            if loop.time() - started_at > _STABLE_SECONDS:
                pause_seconds = _FIRST_PAUSE_SECONDS
            pause_seconds = await self._restart(pause_seconds)
            self.num_restarts += not self._is_changing
            self._is_changing = False
            self.last_downtime_seconds = loop.time() - ended_at
            greeter = asyncio.create_task(self._greet_again(), name="p2pd restarted")
            self._greeters.add(greeter)
            greeter.add_done_callback(self._greeters.discard)

    async def _restart(self, pause_seconds: float) -> float:
        """Retry until the daemon is up. Return how long to wait before the next attempt if it dies again
        immediately.
        """
        for num_tries in itertools.count():
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
            if self._is_changing and num_tries == NUM_TRIES_OF_CHANGE:
                logger.warning("the network daemon does not start with the new options; it keeps the old ones")
                self.options, self._asked_announce = self._before_change
            try:
                self._claim_again()
                await self._launch()
                break
            except (LocalFault, ControlError, OSError, EOFError) as error:
                logger.warning(
                    "the network daemon did not restart: %s; next try in %.1f s",
                    words_of(error),
                    pause_seconds,
                )
        return pause_seconds

    def _claim(self, listen: list[Multiaddr]) -> None:
        claimed = claim_ports(listen)
        self._announce = announced_addresses(self._asked_announce, claimed)
        self._listen = claimed

    def _claim_again(self) -> None:
        try:
            self._claim(self._listen)
        except LocalFault as fault:
            # A port that was not requested can be any other; other peers learn it when this peer dials them.
            if self._listen == self._wanted:
                raise
            self._claim(self._wanted)
            logger.warning("%s; listening on %s now", fault, ", ".join(map(str, self._listen)))

    async def _greet_again(self) -> None:
        # One after the other, even if the daemon dies again while the previous restart is being handled.
        async with self._greeting:
            await self._on_restarted()

    async def _watch_health(self, daemon: P2pdProcess) -> None:
        num_missed = 0
        while num_missed < NUM_MISSED_ANSWERS:
            await asyncio.sleep(HEALTH_SECONDS)
            try:
                async with asyncio.timeout(CONTROL_SECONDS):
                    _, self._visible = await self.control.identify()
                    await self._on_healthy()
                num_missed = 0
            except (ControlError, OSError, EOFError) as error:
                num_missed += 1
                logger.debug("no answer from the network daemon: %s", words_of(error))
        logger.warning("the network daemon has stopped answering; it is killed and started again")
        daemon.kill()

    def _drop_lifeline(self) -> None:
        if self._lifeline is not None:
            with contextlib.suppress(OSError):
                self._lifeline.abort()
            self._lifeline = None
