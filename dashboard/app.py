"""`serve_dashboards`: combines network, observer and page in one process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import web

from dashboard.collect.commit_fetcher import Gatherer, SignedCommits, commits_from, proof_line
from dashboard.collect.profiles import follow_profiles
from dashboard.history.history import History, open_history
from dashboard.history_facts import HistoryPoint
from dashboard.observe.dashboard_state import DashboardState
from dashboard.observe.fault_barrier import keep_going
from dashboard.observe.join_addresses import JoinRule, is_of_this_machine, with_later
from dashboard.observe.shown_manifest import ShownManifest, run_facts
from dashboard.observe.swarm_observer import SwarmObserver
from dashboard.samples.model_process import ask
from dashboard.samples.sample_loop import follow_samples
from dashboard.samples.sample_schedule import SamplePlan
from dashboard.samples.score_file import follow_scores
from dashboard.server.connection_bound import SEND_SECONDS, ConnectionBound, cut_off_stalled, own_bound
from dashboard.server.free_port import cannot_serve
from dashboard.server.handler_context import SITE, Site
from dashboard.server.live_updates import Live
from dashboard.server.log_limits import OncePerMinute
from dashboard.server.page_access import PageAccess, read_token
from dashboard.server.routes import also_below_its_base, make_app
from dashboard.several_runs.index import make_index, run_path
from dashboard.share.page_address import path_of
from dht.ground.errors import LocalFault, PeerFault, UsageFault
from dht.identity.keys import split_run_id
from dht.observer.host_choice import HostBackend
from dht.observer.network import ObserverEntry, observer_network
from dht.records.signed_manifest import RunRecord, decode_run_record, encode_run_record
from peer.installation import install_command
from peer.tracking.recorded_rows import RUN_COLUMNS, Row, RunRows
from peer.tracking.recorder import recording
from peer.tracking.trackers import Record

SHUTDOWN_SECONDS: Final = 5.0
"""Time for answers in progress; event streams are ended at once."""
IDLE_SECONDS: Final = 20.0
"""Time for the whole head of a request, including later requests on a connection."""
MAX_LINE_BYTES: Final = 4096
"""Longest line in the head of a request."""
AGAIN_SECONDS: Final = 30.0
"""Seconds until one of several runs is observed again after an error."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of a dashboard's operator: addresses, files and rules.

    Attributes:
        page_address: address under which visitors see the page; empty: the address of each request.
        db: file of the history; None: in memory.
        token_file: file of the token that makes the page private.
        join_addresses: members' addresses that the page shows to all visitors; empty: addresses of seeds that answer.
        install: command with which visitors install `peer`; None: the command that installs this copy.
        shows_seeds: whether the page may show addresses of seeds.
        backend: transport to the swarm.
        samples: prompts and times for samples of the model's text; None: no samples.
        evaluations: file with output lines of `peer evaluate --tasks ... --json`; None: no scores are shown.
        observer_folder: folder with the key and pass of a private run's observer.
        record: destination of the run's values over time; None: only the history.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    page_address: str = ""
    db: Path | None = None
    token_file: Path | None = None
    join_addresses: tuple[str, ...] = ()
    install: str | None = None
    shows_seeds: bool = True
    backend: HostBackend = "p2pd"
    samples: SamplePlan | None = None
    evaluations: Path | None = None
    observer_folder: Path = Path()
    record: Record | None = None

    @property
    def join_rule(self) -> JoinRule:
        """Return the rule for shown addresses, with the way to install `peer`."""
        is_of_one_machine = not self.page_address and self.host in ("127.0.0.1", "::1", "localhost")
        install = self.install or install_command()
        return JoinRule(self.join_addresses, self.shows_seeds, is_of_one_machine, install)


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run of a dashboard, and its display options.

    Attributes:
        peers: multiaddrs of members to dial; until a member answers, the page shows that none has.
        later: returns further multiaddrs known by then, of members on this machine.
        entry: credentials for a private run.
    """

    run_id: str
    peers: Sequence[str]
    choices: Choices
    entry: ObserverEntry | None = None
    later: Callable[[], Sequence[str]] = tuple


def serve_dashboards(
    runs: Sequence[ShownRun], unusable: Mapping[str, str] | None = None, *, is_index: bool = True
) -> int:
    """Serve an index of several runs and the pages of each, until SIGINT or SIGTERM. Return the exit code 0. Blocks.

    A run that cannot be opened or observed gets a sentence on the index; the others continue. Host, port and token come
    from the first run.

    Args:
        unusable: run ids that cannot be opened -> reason; the index has a card for each.
        is_index: False: the page of the only run is at ``/``, and an error that prevents it ends the program.

    Raises:
        UsageFault: a run id is invalid, the port is taken, a file is unusable, or no run can be opened (exit code 2).
        LocalFault: without an index, the transport cannot run or the history is damaged.
    """
    for run in runs:
        split_run_id(run.run_id)
    token_file = runs[0].choices.token_file
    access = None if token_file is None else PageAccess(read_token(token_file))
    asyncio.run(_serve(runs, unusable or {}, access, is_alone=not is_index))
    return 0


NOT_SHOWN: Final = "This run cannot be shown at present. The owner of this page sees the reason."


@dataclass(frozen=True, slots=True)
class Serving:
    """A running web server."""

    runner: web.AppRunner
    listener: asyncio.Server

    async def cleanup(self) -> None:
        """Close the listener, end the streams, and wait briefly for answers in progress."""
        self.listener.close()
        await self.runner.cleanup()


async def start_site(
    app: web.Application,
    host: str,
    port: int,
    *,
    idle_seconds: float = IDLE_SECONDS,
    send_seconds: float = SEND_SECONDS,
) -> Serving:
    """Listen at `host`:`port` with the connection limit of the application's site. The caller ends it with `cleanup`.

    Raises:
        UsageFault: the port is taken, or the address does not belong to this machine.
    """
    bound = app[SITE].bound
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=idle_seconds,
        # Time for request bodies that no handler reads.
        lingering_time=1.0,
        max_line_size=MAX_LINE_BYTES,
        max_field_size=MAX_LINE_BYTES,
        logger=logging.getLogger("dashboard.http"),
    )
    await runner.setup()
    server = runner.server
    assert server is not None
    try:
        # The kernel accepts this many at once before the first is processed.
        backlog = min(128, bound.num_connections // 4)
        protocols = bound.protocols(server)
        listener = await asyncio.get_running_loop().create_server(protocols, host, port, backlog=backlog)
    except OSError as error:
        await runner.cleanup()
        raise cannot_serve(host, port, error) from error
    cut_off_stalled(listener, send_seconds)
    return Serving(runner, listener)


def bound_port(serving: Serving) -> int:
    """Return the listening port, for when port 0 was requested."""
    return int(serving.listener.sockets[0].getsockname()[1])


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keep strangers from filling the log, also through asyncio, which logs each connection that cannot be accepted."""
    quiet = OncePerMinute()
    names = (
        "dashboard.http",
        "dashboard.observe.swarm_observer",
        "dashboard.server.live_stream",
        "dashboard.history.history",
        "asyncio",
    )
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(quiet)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(quiet)


async def _serve(
    runs: Sequence[ShownRun], unusable: Mapping[str, str], access: PageAccess | None, *, is_alone: bool
) -> None:
    """Serve one run at ``/``, whose error ends the program, or an index, which shows errors of single runs."""
    choices = runs[0].choices
    async with contextlib.AsyncExitStack() as stack:
        stopped = asyncio.Event()
        stack.enter_context(_stop_signals(stopped))
        stack.enter_context(_quiet_logs())
        bound = own_bound()
        pages: list[tuple[web.Application, _Watch]] = []
        faults = dict(unusable)
        for run in runs:
            try:
                base = path_of(choices.page_address) if is_alone else run_path(run.run_id)
                pages.append(await _opened(stack, run, access, bound, base))
            except LocalFault as fault:
                if is_alone:
                    raise
                faults[run.run_id] = str(fault)
        for run_id, why in faults.items():
            _warn(f"{run_id} is not shown: {why}")
        if not pages:
            raise UsageFault(f"none of {len(runs)} runs can be shown; the sentences above give the reasons")
        if is_alone:
            app = also_below_its_base(pages[0][0])
        else:
            app = make_index([app for app, _ in pages], dict.fromkeys(faults, NOT_SHOWN))
        serving = await start_site(app, choices.host, choices.port)
        stack.push_async_callback(serving.cleanup)
        port = bound_port(serving)
        _announce(choices, port, is_private=access is not None, num_runs=len(pages))
        if is_alone:
            _say_what_is_shown(runs[0])
        watching = [
            asyncio.create_task(_watch_once(watch) if is_alone else _watch_on(app[SITE].live, watch))
            for app, watch in pages
        ]
        stopping = asyncio.create_task(stopped.wait(), name="stop signal")
        try:
            await asyncio.wait((*watching, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in watching:
                if task.done():
                    task.result()
        finally:
            for one in (*watching, stopping):
                one.cancel()
            await asyncio.gather(*watching, stopping, return_exceptions=True)


_Watch = Callable[[], Coroutine[None, None, None]]
"""Observes a run forever."""


async def _opened(
    stack: contextlib.AsyncExitStack, run: ShownRun, access: PageAccess | None, bound: ConnectionBound, base: str
) -> tuple[web.Application, _Watch]:
    """Return the pages of a run, ready to be served, and what observes it."""
    choices = run.choices
    history = await stack.enter_async_context(open_history(choices.db, run.run_id, clock=time.time, warn=_warn))
    now = time.time()
    state = DashboardState(
        run_id=run.run_id,
        started_at=now,
        now=now,
        run=_known_run(run.run_id, history.stored_run_record),
        view=history.stored_view,
        join_addresses=choices.join_addresses,
        install=choices.join_rule.install,
    )
    live = Live(state, secrets.token_hex(4), history.view, base)
    site = Site(
        live,
        history,
        access=access,
        proof_line=partial(proof_line, run.run_id),
        page_address=choices.page_address.removesuffix(base),
        bound=bound,
        base=base,
    )
    rows = RunRows()

    def row_of(point: HistoryPoint) -> Row | None:
        return rows.row(point.at, {name: getattr(point, name) for name in RUN_COLUMNS})

    note = stack.enter_context(recording(choices.record, _warn, row_of))
    return make_app(site), lambda: _watch(run, live, history, note)


async def _watch_on(live: Live, watch: _Watch) -> None:
    """Observe one of several runs. An error is shown on its page, and the observation begins again."""
    while True:
        try:
            await _watch_once(watch)
        except Exception as error:  # noqa: BLE001 -- an error of one run must not end the others
            _warn(f"{live.state.run_id} is not observed: {error}; next attempt in {AGAIN_SECONDS:.0f} s")
            # Not the text of the error, which may contain file names of this machine.
            problem = "this run is not observed at present; the owner of this page sees the reason"
            live.publish(replace(live.state, now=time.time(), problem=problem), live.history)
        await asyncio.sleep(AGAIN_SECONDS)


async def _watch_once(watch: _Watch) -> None:
    """Observe a run. Of several simultaneous errors, raise one that the owner can act on."""
    try:
        await watch()
    except BaseExceptionGroup as group:
        fault: BaseException | None = group.subgroup(LocalFault)
        while isinstance(fault, BaseExceptionGroup):
            fault = fault.exceptions[0]
        if fault is not None:
            raise fault from group
        raise


def _place(host: str, port: int) -> str:
    """Return the server's address on this machine, without a slash at its end."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _announce(choices: Choices, port: int, *, is_private: bool, num_runs: int = 1) -> None:
    private = "; private: open it once with ?token=TOKEN" if is_private else ""
    print(f"The page is at {_place(choices.host, port)}/ (Ctrl+C ends it{private})", flush=True)
    if num_runs > 1:
        print(f"It shows {num_runs} runs, each with its own history", flush=True)
        return
    kept = f"stored in {choices.db}" if choices.db is not None else "kept in memory and ends with this process"
    print(f"Its history is {kept}", flush=True)


def _known_run(run_id: str, stored: bytes | None) -> ShownManifest | None:
    """Return the history's run record; None without one, or without the owner's signature."""
    try:
        return run_facts(decode_run_record(stored, run_id=run_id)) if stored is not None else None
    except PeerFault as fault:
        _warn(f"the run record in the history is not used: {fault}")
        return None


def _say_what_is_shown(run: ShownRun) -> None:
    rule = run.choices.join_rule
    if not (rule.is_of_one_machine or rule.install):
        _advise(
            "The page tells visitors to ask you for this software; pass the command that installs it with --install."
        )
    if rule.asked or not rule.shows_seeds or rule.is_of_one_machine:
        return
    if all(map(is_of_this_machine, run.peers)):
        _advise(
            "The page is public, but it has no address to show to people who want to join; "
            "all addresses in --peers work only on this machine; pass one with --join-address MULTIADDR."
        )


def _warn(sentence: str) -> None:
    _advise(f"peer: {sentence}")


def _advise(sentence: str) -> None:
    """Print a sentence without the prefix of an error."""
    print(sentence, file=sys.stderr, flush=True)


async def _watch(run: ShownRun, live: Live, history: History, note: Callable[[HistoryPoint], object]) -> None:
    run_id, choices = run.run_id, run.choices
    async with observer_network(choices.backend, run.peers, run.entry) as (host, store):
        gatherer = Gatherer(history, time.time)
        opened: tuple[RunRecord, SignedCommits] | None = None
        has_opened = asyncio.Event()

        def show(state: DashboardState) -> None:
            history.look(state)
            if history.trend.points:
                note(history.trend.points[-1])
            live.publish(state, history.view)

        async def gather(record: RunRecord, state: DashboardState) -> None:
            nonlocal opened
            if opened is None or opened[0] != record:
                opened = record, await asyncio.to_thread(commits_from, host, record, run.entry)
                has_opened.set()
                history.keep_run_record(encode_run_record(record))
            await gatherer.gather(opened[1], state)

        observer = SwarmObserver(
            run_id,
            store,
            run.peers,
            wall_clock=time.time,
            on_state=show,
            gather=gather,
            vouched=lambda: history.ledger.machines,
            work=lambda: history.ledger.recent_work(time.time()),
            withdrawn=lambda: history.withdrawn,
            faults=lambda: store.dial_faults,
            rule=choices.join_rule,
            later=run.later,
            tell=_warn,
        )
        observer.state = live.state

        def seen() -> DashboardState:
            return live.state

        works: dict[str, Callable[[], Awaitable[None]]] = {
            "Reading profiles": partial(follow_profiles, store, history, run_id, time.time),
        }
        if choices.evaluations is not None:
            works["Reading evaluations"] = partial(
                follow_scores, choices.evaluations, run_id, history.show_scores, _warn
            )
        if (plan := choices.samples) is not None:

            async def write(plan: SamplePlan = plan) -> bytes:
                return await ask(run_id, with_later(run.peers, run.later()), str(choices.observer_folder), plan)

            works["Asking the model for samples"] = partial(
                follow_samples,
                plan,
                lambda: history.samples,
                history.keep_samples,
                seen,
                write,
                time.time,
                _warn,
            )
        async with asyncio.TaskGroup() as tasks:
            for what, work in works.items():
                tasks.create_task(keep_going(work, what, _warn), name=what)
            await observer.run()


@contextlib.contextmanager
def _stop_signals(stopped: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    added = []
    # Signals are unavailable outside the main thread and on Windows; there KeyboardInterrupt has the same effect.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        for number in signals:
            loop.add_signal_handler(number, stopped.set)
            added.append(number)
    try:
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)
