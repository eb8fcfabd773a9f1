"""`serve_dashboard`: puts network, observer and page together in one process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from aiohttp import web

from dashboard.live import Live
from dashboard.observer import CommitFetcher, Observer
from dashboard.routes import make_app
from dashboard.state import DashboardState
from dht.errors import UsageFault
from dht.host import Host
from dht.host_backend import HostBackend
from dht.identity import split_run_id
from dht.observer_network import observer_network
from dht.records import RunRecord

SHUTDOWN_SECONDS: Final = 5.0
"""For answers in progress; event streams are ended at once."""

OpenCommits = Callable[[Host, RunRecord], CommitFetcher]
"""Composes `averaging.catch_up.fetch_commits` with the host, a doorkeeper and the run's limits."""


def serve_dashboard(
    run_id: str,
    peers: Sequence[str],
    host: str = "127.0.0.1",
    port: int = 8470,
    *,
    open_commits: OpenCommits | None = None,
    backend: HostBackend = "p2pd",
) -> int:
    """Serve the page at `host`:`port` until SIGINT or SIGTERM; returns the exit code, 0. Blocks.

    Args:
        peers: multiaddrs of members to dial; while nobody answers, the page says so and it goes on trying.
        open_commits: how to ask members for commit records; without it the page shows versions only.
        backend: what carries the connections to the swarm.

    Raises:
        UsageFault: the run id is none, or the port is taken (exit code 2).
        LocalFault: the transport cannot run.
    """
    split_run_id(run_id)
    asyncio.run(_serve(run_id, peers, host, port, open_commits, backend))
    return 0


async def start_site(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Listen at `host`:`port`; the caller ends it with `cleanup`.

    Raises:
        UsageFault: the port is taken, or the address is not of this machine.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        if error.errno == errno.EADDRINUSE:
            raise UsageFault(
                f"port {port} of {host} is taken by another program; give another one with --port"
            ) from error
        raise UsageFault(
            f"cannot serve at {host} port {port} ({error.strerror or error}); expected an address of this machine and "
            f"a port that you may use; give others with --host and --port"
        ) from error
    return runner


def bound_port(runner: web.AppRunner) -> int:
    """The port that is listened on, which matters when 0 was asked for."""
    return int(runner.addresses[0][1])


async def _serve(
    run_id: str, peers: Sequence[str], host: str, port: int, open_commits: OpenCommits | None, backend: HostBackend
) -> None:
    stopped = asyncio.Event()
    with _stop_signals(stopped):
        now = time.time()
        live = Live(DashboardState(run_id=run_id, started_at=now, now=now), secrets.token_hex(4))
        runner = await start_site(make_app(live), host, port)
        try:
            shown_host = f"[{host}]" if ":" in host else host
            print(f"The page is at http://{shown_host}:{bound_port(runner)}/ (Ctrl+C ends it)", flush=True)
            watching = asyncio.create_task(_watch(run_id, peers, live, open_commits, backend), name="observer")
            stopping = asyncio.create_task(stopped.wait(), name="stop signal")
            try:
                await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
            finally:
                for task in (watching, stopping):
                    task.cancel()
                await asyncio.gather(watching, stopping, return_exceptions=True)
        finally:
            await runner.cleanup()


async def _watch(
    run_id: str, peers: Sequence[str], live: Live, open_commits: OpenCommits | None, backend: HostBackend
) -> None:
    async with observer_network(backend, peers) as (host, store):
        observer = Observer(
            run_id,
            store,
            peers,
            wall_clock=time.time,
            on_state=live.publish,
            open_commits=None if open_commits is None else lambda run: open_commits(host, run),
        )
        await observer.run()


@contextlib.contextmanager
def _stop_signals(stopped: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    added = []
    # Outside the main thread, and on Windows, signals cannot be had; there KeyboardInterrupt does the same.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        for number in signals:
            loop.add_signal_handler(number, stopped.set)
            added.append(number)
    try:
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)
