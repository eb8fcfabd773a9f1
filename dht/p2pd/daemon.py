"""One process of the libp2p daemon in hivemind's wheel: its flags, start and end.

`dht/p2pd/supervisor.py` supervises it. This module provides the needs of one child process: a free port, a key that is
never written to a disk, a log that is read, and error sentences for failed starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dht.ground.errors import DaemonFault, LocalFault, UsageFault
from dht.identity.keys import Identity
from dht.identity.multiaddr import Multiaddr, parse_multiaddr
from dht.p2pd.announced_addresses import announceable

START_SECONDS: Final = 30.0
"""Measured 0.1 to 0.5 s, once 1.1 s; hivemind's 15 s was too short on machines busy with training."""

STOP_SECONDS: Final = 3.0
"""The daemon closes its connections within milliseconds after SIGTERM; after this time it gets SIGKILL."""

LIFELINE_SECONDS: Final = 20
"""The daemon exits if no lifeline was opened for this long, because its owner was killed during the start."""

CORES_PER_THREAD: Final = 4
MOST_THREADS: Final = 4
"""Threads of the daemon: a quarter of the cores, at most this many."""

logger = logging.getLogger(__name__)


class PortTaken(LocalFault):
    """Another program uses the port on which the daemon was to listen."""


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """Network options of the daemon. The defaults suit a volunteer whose reachability is unknown."""

    reachability: Literal["unknown", "public", "private"] = "unknown"
    """`public` for seeds with an open port, `private` for peers known to be behind NAT; the daemon does not
    update it."""
    trusted_relays: tuple[str, ...] = ()
    """Multiaddrs of members that relay for this peer; used only if not `public`."""
    relays_for_others: bool = True
    map_ports: bool = False
    """Ask the router for a port mapping (UPnP, NAT-PMP); sends multicast into the local network."""


def find_p2pd() -> Path:
    """Return the path of the daemon's binary, without importing hivemind.

    Raises:
        LocalFault: hivemind is not installed, or its wheel has no binary for this system.
    """
    spec = importlib.util.find_spec("hivemind")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "hivemind_cli" / "p2pd"
        if path.is_file():
            return path
    raise LocalFault(
        "the network daemon p2pd is not installed; expected it inside the package hivemind; "
        "install this software again with: pip install --force-reinstall hivemind"
    )


def claim_ports(listen: list[Multiaddr]) -> list[Multiaddr]:
    """Replace port 0 with a free port (the same for all addresses), and check that fixed ports are free.

    A daemon behind NAT opens its ports so that another daemon can share them, and each then silently loses half of its
    callers. Hence this check before each start.

    Raises:
        LocalFault: the port is taken.
        UsageFault: the address does not belong to this machine.
    """
    for address in listen:
        if address.port != 0:
            _bind_once(address)
    port = 0
    claimed = []
    for address in listen:
        if address.port == 0:
            port = _bind_once(address.with_port(port))
            address = address.with_port(port)
        claimed.append(address)
    return claimed


def announced_addresses(announce: list[Multiaddr], listen: list[Multiaddr]) -> list[Multiaddr]:
    """Return `announce` with port 0 replaced by the listening port of the same transport.

    Raises:
        UsageFault: nothing listens with that transport.
    """
    complete = []
    for address in announce:
        if address.port == 0:
            same_transport = [other for other in listen if other.transport == address.transport]
            if not same_transport:
                raise UsageFault(
                    f"the announced address {address} has port 0 and nothing listens on {address.transport}; expected "
                    "the port at which other peers reach this machine; give it with --announce"
                )
            address = address.with_port(same_transport[0].port or 0)
        complete.append(address.without_peer_id())
    return complete


class P2pdProcess:
    """A running daemon. `start` creates it."""

    def __init__(self, process: asyncio.subprocess.Process, log_task: asyncio.Task[None]) -> None:
        self._process = process
        self._log_task = log_task

    @property
    def process_id(self) -> int:
        return self._process.pid

    @classmethod
    async def start(
        cls,
        *,
        binary: Path,
        control_socket: Path,
        identity: Identity,
        listen: list[Multiaddr],
        announce: Sequence[Multiaddr],
        options: DaemonOptions,
    ) -> P2pdProcess:
        """Start the daemon and wait until it answers on its control socket.

        Raises:
            PortTaken: another program took a port after `claim_ports` had checked it.
            LocalFault: the daemon did not start; the sentence contains its last output.
            UsageFault: the daemon refused an address.
        """
        key_reader, key_writer = os.pipe()
        try:
            os.write(key_writer, identity.to_bytes())
        finally:
            os.close(key_writer)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(control_socket)
        try:
            process = await asyncio.create_subprocess_exec(
                str(binary),
                f"-listen=/unix{control_socket}",
                f"-id=/dev/fd/{key_reader}",
                *daemon_flags(listen, announce, options),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(key_reader,),
                env=os.environ | daemon_environment(options),
                # A terminal's Ctrl+C reaches the whole process group; the daemon must outlive this peer's farewell
                # messages.
                start_new_session=True,
            )
        except OSError as error:
            raise LocalFault(
                f"the network daemon {binary} cannot be run ({error.strerror}); expected an executable for this "
                f"system; install hivemind again"
            ) from error
        finally:
            os.close(key_reader)
        return await cls._wait_ready(process)

    @classmethod
    async def _wait_ready(cls, process: asyncio.subprocess.Process) -> P2pdProcess:
        ready = asyncio.Event()
        last_lines: deque[str] = deque(maxlen=20)
        log_task = asyncio.create_task(_drain_log(process, ready, last_lines), name="p2pd log")
        daemon = cls(process, log_task)
        exited = asyncio.create_task(process.wait())
        came_up = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({exited, came_up}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                await log_task
                raise _start_failure(last_lines)
            if not ready.is_set():
                raise DaemonFault(
                    f"the network daemon did not start within {START_SECONDS:.0f} s; expected less than 1 s; is this "
                    "machine out of memory or very busy?"
                )
        except BaseException:  # also when cancelled: no daemon outlives an abandoned start
            await daemon.stop()
            raise
        finally:
            exited.cancel()
            came_up.cancel()
        return daemon

    async def wait(self) -> int:
        """Wait for the daemon's end. Return its exit status, negative for a signal."""
        return await self._process.wait()

    async def stop(self) -> None:
        """End the daemon, with SIGKILL if it ignores SIGTERM. Never raises."""
        for number, patience_seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            if self._process.returncode is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    await self._process.wait()
        self._log_task.cancel()
        await asyncio.gather(self._log_task, return_exceptions=True)

    def kill(self) -> None:
        """Send SIGKILL without waiting, for a daemon that no longer answers."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


def daemon_flags(listen: list[Multiaddr], announce: Sequence[Multiaddr], options: DaemonOptions) -> list[str]:
    """Return the command-line flags of the daemon.

    No bootstrap peers, since the daemon exits if none of them answers; this software dials. AutoNAT is on because the
    daemon requires it for hole punching. Relay discovery is off because it delays a relay address by three minutes.
    """
    flags = [
        "-dhtServer=1",
        "-b=0",
        "-connManager=1",
        "-autonat=1",
        "-relay=1",
        f"-relayService={int(options.relays_for_others)}",
        f"-natPortMap={int(options.map_ports)}",
        f"-idleTimeout={LIFELINE_SECONDS}s",
        f"-persistentConnMaxMsgSize={4 * 1024 * 1024}",
        "-hostAddrs=" + ",".join(map(str, listen)) if listen else "-noListenAddrs=1",
    ]
    if announce:
        flags.append("-announceAddrs=" + ",".join(map(announceable, announce)))
    if options.reachability == "public":
        flags.append("-forceReachabilityPublic=1")
    if options.reachability == "private":
        flags.append("-forceReachabilityPrivate=1")
    if options.trusted_relays and options.reachability != "public":
        relays = [str(parse_multiaddr(relay)) for relay in options.trusted_relays]
        flags += ["-autoRelay=1", "-relayDiscovery=0", "-trustedRelays=" + ",".join(relays)]
    return flags


def daemon_environment(options: DaemonOptions) -> dict[str, str]:
    """Return the settings that the daemon reads only from its environment.

    By default it dials from the port on which it listens. Two peers that dial each other at the same moment then open
    one TCP connection from both ends; the handshake fails on both sides, and each refuses to dial the other for 5 s (in
    2 of 6 tries). Only hole punching through a NAT needs that port.
    """
    # Idle threads of a daemon take cores from training: with one thread instead of two, the rounds of four peers on two
    # cores take 14 % less time. One thread transfers about 180 MB/s, both directions together.
    num_threads = min(MOST_THREADS, max(1, (os.cpu_count() or 1) // CORES_PER_THREAD))
    if options.reachability == "public" and options.relays_for_others:
        # Two relays register at start, in a fixed order only with a single thread (own_relay_trial.py).
        num_threads = 1
    return {
        "LIBP2P_TCP_REUSEPORT": "true" if options.reachability == "private" else "false",
        "GOMAXPROCS": str(num_threads),
    }


async def _drain_log(process: asyncio.subprocess.Process, ready: asyncio.Event, last_lines: deque[str]) -> None:
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:
            # readline has dropped a line longer than the buffer, which is fine for a log.
            continue
        if not line:
            return
        text = line.decode("utf-8", errors="replace").rstrip()
        last_lines.append(text)
        logger.debug("p2pd: %s", text)
        if text.startswith("Peer ID:"):
            ready.set()


def _start_failure(last_lines: deque[str]) -> LocalFault:
    words = " ".join(list(last_lines)[-3:]).strip()[-400:] or "it printed nothing"
    if "address already in use" in words:
        return PortTaken(f"a port to listen on is taken ({words}); expected a free one; choose another with --listen")
    if "cannot assign requested address" in words:
        return UsageFault(
            f"an address to listen on does not belong to this machine ({words}); expected one of its addresses or "
            f"0.0.0.0; correct --listen, and use --announce for the address others see"
        )
    return DaemonFault(
        f"the network daemon ended at once: {words}; expected it to run; report this line if this happens again"
    )


def _bind_once(address: Multiaddr) -> int:
    """Bind the address briefly. Return its port, a free one if the address has port 0."""
    ip = address.ip
    if ip is None or address.transport is None:
        raise UsageFault(
            f"cannot listen on {address}; expected an IP address and a port such as /ip4/0.0.0.0/tcp/4001; correct "
            "--listen"
        )
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if address.transport == "tcp" else socket.SOCK_DGRAM
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            # Without it, closing connections after a crash would make this peer's own port look taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((str(ip), address.port))
            return int(probe.getsockname()[1])
        except OSError as error:
            raise _bind_failure(address, error) from error


def _bind_failure(address: Multiaddr, error: OSError) -> LocalFault:
    if error.errno == errno.EADDRINUSE:
        return LocalFault(
            f"the port of {address} is in use by another program; expected a free port; choose another with --listen, "
            "or end the other program (a second peer on this machine?)"
        )
    if error.errno == errno.EACCES:
        return LocalFault(f"this user may not listen on {address}; expected a port above 1023; correct --listen")
    return UsageFault(
        f"cannot listen on {address} ({error.strerror}); expected an address of this machine or 0.0.0.0; correct "
        "--listen, and use --announce for the address others see"
    )
