"""`peer demo`: a local swarm as volunteers would run it, with one peer killed and one that comes late.

Every peer is a real `peer join` process with its own libp2p daemon and DHT node on loopback. The run id and one
bootstrap address alone join them. What the summary says is read from the peers' events and from the anchors themselves,
which are fetched at the end as any observer could. Loads torch when the peers have gone, so that the first word comes
at once and the peers have the cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from averaging.arrays import F32
from dht.ground.errors import LocalFault, MurmurationError
from dht.ground.quantities import plural, short_peer
from peer.config.model_shapes import seed_sizes
from peer.console.plain_console import PlainConsole
from peer.demo.leftovers import DemoGuard, forget
from peer.demo.measuring_messages import Words, write_anchors
from peer.demo.progress_table import DemoView, Figures, LineView, TableView, explanations
from peer.demo.report import print_report
from peer.demo.summary import (
    PeerLog,
    Summary,
    newest_evaluation,
    num_rounds_of,
    read_logs,
    rounds_of,
    row_of,
    summarise,
)
from peer.demo.swarm import LOOK_SECONDS, DemoPeer, DemoSwarm, hang_up_interrupts, page_port_near, undisturbed
from peer.files.checked_folder import run_file_path
from peer.import_path import python_command
from peer.observe.observer import observe
from peer.owner.new_run import create_run

DEMO_RUN = """
description = "A try on one machine: it learns to write Python, letter by letter, from the standard library"
organiser = "this machine"
seed = 1
[model]
num_layers = 4
d_model = 128
num_heads = 4
context = 128
"""
HOW_IT_TRAINS = """
[training]
batch_size = 4
learning_rate = 0.003
warmup_steps = 20
[averaging]
sync_every = 20
num_fragments = 4
[network]
announce_seconds = 4.0
"""
"""Sections of run.toml that both models share."""
LLAMA_VOCABULARY = 1024
"""Learned from a megabyte or two: larger ones would have words that occur once."""
START_SECONDS = 240.0
"""For one process to import torch and join: 5 s on an idle machine, 80 s on two cores that twenty others want."""
SETTLED_SECONDS = 20.0
"""The late peer gets at least this long before the end, whatever --minutes says."""
CONTRIBUTED_SECONDS = 120.0
"""For the late peer's first round, beyond that: a second on an idle machine, a minute where twenty others compute."""
COMMAND_SECONDS = 180.0
"""For an export or the measuring: each loads torch anew, on a machine where four peers train."""
HURRIED_SECONDS = 5.0
"""For goodbyes after Ctrl+C: a daemon takes one or two."""


@dataclass
class Demo:
    """A swarm and the view of it."""

    swarm: DemoSwarm
    view: DemoView
    rounds_at_kill: int | None = None
    clock: tuple[float, float] | None = None
    """When the training began and how long it takes, in seconds of the monotonic clock."""
    trained_until: float | None = None

    def begin(self, length: float) -> None:
        """The training begins now and takes `length` seconds."""
        self.clock = (time.monotonic(), length)

    def extend(self, passed: float) -> None:
        """The training goes on until so many seconds have passed, at least."""
        assert self.clock is not None
        self.clock = (self.clock[0], max(self.clock[1], passed))

    def end(self) -> None:
        """The training is over."""
        self.trained_until = time.monotonic()

    def passed(self) -> float:
        """Seconds of the training so far."""
        return 0.0 if self.clock is None else time.monotonic() - self.clock[0]

    def kill(self, peer: DemoPeer) -> None:
        """Kill a peer and count the rounds from now on."""
        peer.kill()
        self.rounds_at_kill = num_rounds_of([one.events.log for one in self.swarm.peers])

    def look(self) -> None:
        """Show the newest figures.

        Raises:
            LocalFault: a peer ended that nobody killed.
        """
        for peer in self.swarm.peers:
            if not peer.is_alive and peer.killed_at is None:
                raise LocalFault(
                    f"{peer.name} ended by itself; expected it to train. Its last words:\n{peer.last_lines()}"
                )
        self.show()

    def show(self) -> None:
        """Show the newest figures, also when a peer has ended."""
        # After the training the figures are those of the summary: what comes with the goodbyes is not in it.
        events = [peer.events for peer in self.swarm.peers]
        logs = [one.read_on() if self.trained_until is None else one.log for one in events]
        contributors, num_rounds = rounds_of(logs), num_rounds_of(logs)
        pairs = zip(self.swarm.peers, logs, strict=True)
        self.view.look(
            Figures(
                rows=tuple(row_of(log, _doing(peer, log), contributors) for peer, log in pairs),
                seconds=None if self.clock is None or self.trained_until else (self.passed(), self.clock[1]),
                evaluation=newest_evaluation(logs),
                num_rounds=num_rounds,
                rounds_since_kill=None if self.rounds_at_kill is None else num_rounds - self.rounds_at_kill,
                page=self.swarm.page_address,
            )
        )

    def wait_joined(self, peers: list[DemoPeer]) -> None:
        """Until all of them are members.

        Raises:
            LocalFault: one ended or took too long.
        """
        end = time.monotonic() + START_SECONDS + 10.0 * len(peers)
        while waiting := [peer for peer in peers if peer.events.log.own.joined_at is None]:
            self.look()
            if time.monotonic() >= end:
                took = time.monotonic() - waiting[0].started_at
                raise LocalFault(
                    f"{waiting[0].name} did not join within {took:.0f} s; expected a quarter of a minute. On a "
                    "busy machine close other programs, or try two peers: `peer demo --peers 2`. "
                    f"Its last words:\n{waiting[0].last_lines()}"
                )
            time.sleep(LOOK_SECONDS)

    def wait_contributed(self, peer: DemoPeer) -> None:
        """Until others have committed work of this peer, or for `CONTRIBUTED_SECONDS`."""
        end = time.monotonic() + CONTRIBUTED_SECONDS
        logs = [one.events.log for one in self.swarm.peers]
        while time.monotonic() < end and not any(peer.peer_id in members for members in rounds_of(logs).values()):
            self.look()
            time.sleep(LOOK_SECONDS)

    def train_until(self, passed: float) -> None:
        """Until so many seconds of the training have passed."""
        while self.passed() < passed:
            self.look()
            time.sleep(min(LOOK_SECONDS, max(0.0, passed - self.passed())))


def run_demo(
    num_peers: int, minutes: float, as_json: bool, page_port: int | None, out: Path | None = None, program: str = "peer"
) -> int:
    """Run the demo. Returns 0 only if the swarm really trained together; see `Summary.problems`.

    Args:
        page_port: of the dashboard; None: there is none.
        out: train a small Llama of transformers and take it home to this new folder; None: the built-in model.
        program: how the person calls `peer`, for the lines that they may type next.
    """
    stream = sys.stderr if as_json else sys.stdout
    # A pipe has no width.
    console = PlainConsole(stderr=as_json, highlight=False, soft_wrap=not stream.isatty())
    chance, token = (math.log(256), "here each is a letter")
    if out is not None:
        chance, token = (math.log(LLAMA_VOCABULARY), "a word or a part of one")
    explained = explanations(chance, token)
    folder = _temporary_folder()
    with hang_up_interrupts(), _guarded(folder) as guard, contextlib.ExitStack() as running:
        with contextlib.closing(TableView(console, explained) if console.is_terminal else LineView(console)) as view:
            began = time.monotonic()
            swarm = _make_run(folder, guard, view, out)
            running.enter_context(_stopped(swarm, view))
            demo = Demo(swarm, view)
            _play(demo, num_peers, minutes, page_port)
            summary, words = _measure(demo, out, began)
        if as_json:
            print(json.dumps(summary.facts() | _kept(words, out)))
        else:
            print_report(console, summary, words, explained, out, program)
        for problem in summary.problems():
            console.print(f"not as it should be: {problem}", style="red")
        if summary.problems() and (load := os.getloadavg()[0]) > (os.cpu_count() or 1):
            console.print(
                f"This machine is busy (load {load:.0f} on {plural(os.cpu_count() or 1, 'core')}), so they may have "
                "had too little time: end other programs, or give more --minutes or fewer --peers."
            )
        page = swarm.page_address
        if page is not None and console.is_terminal and sys.stdin.isatty() and not as_json:
            console.print(f"\nThe page {page} stays until you press Enter.", style="bold")
            _wait_for_enter()
    return 1 if summary.problems() else 0


def _make_run(folder: Path, guard: DemoGuard, view: DemoView, out: Path | None) -> DemoSwarm:
    if out is None:
        view.stage("Making a run: the key of its owner, and what all peers agree on")
        (folder / "run.toml").write_text(DEMO_RUN + HOW_IT_TRAINS)
        made = create_run("demo", folder / "run.toml", folder / "owner")
        return DemoSwarm(folder, made.run_id, made.manifest, guard)
    view.stage("Making a tokenizer and token shards of the text of Python's library")
    from peer.demo.llama import make_llama_run  # loads torch

    made, data = make_llama_run(folder, LLAMA_VOCABULARY, HOW_IT_TRAINS, view.say)
    return DemoSwarm(folder, made.run_id, made.manifest, guard, data)


def _play(demo: Demo, num_peers: int, minutes: float, page_port: int | None) -> None:
    view = demo.view
    length = max(60.0 * minutes, 2 * SETTLED_SECONDS)
    shortest = ", the shortest there is" if length > 60.0 * minutes else ""
    view.say(
        f"{num_peers} peers train one model on this machine for {length:.0f} s{shortest}. Starting them and "
        "measuring the model come besides: a quarter of a minute each on two idle cores."
    )
    view.stage("Starting the first peer: it loads torch and makes the model")
    first = demo.swarm.start_peer("peer-1")
    demo.wait_joined([first])
    view.say(f"peer-1 {short_peer(first.peer_id)} trains alone; others need only its address and the run's id to join")
    view.stage(f"Starting {plural(num_peers - 1, 'more peer')}" + ("" if page_port is None else " and the page"))
    others = [demo.swarm.start_peer(f"peer-{number}") for number in range(2, num_peers + 1)]
    if page_port is not None:
        port = page_port_near(page_port)
        if page_port and port != page_port:
            view.say(f"port {page_port} is taken by another program, so the page is at port {port}")
        demo.swarm.start_page(port)
    demo.wait_joined(others)
    demo.begin(length)
    victim = others[-1]
    view.stage(f"All train together; after {length / 2:.0f} s {victim.name} is killed")
    demo.train_until(length / 2)
    demo.kill(victim)
    view.say(
        f"killed {victim.name} {short_peer(victim.peer_id)} with SIGKILL, as a power cut would: watch how the others "
        "go on without it, and without a pause"
    )
    late = demo.swarm.start_peer(f"peer-{num_peers + 1}", is_late=True)
    view.say(f"started {late.name} {short_peer(late.peer_id)}, which comes late and must catch up")
    view.stage(f"{late.name} fetches the model from the others and begins where they are")
    demo.wait_joined([late])
    demo.extend(demo.passed() + SETTLED_SECONDS)
    assert demo.clock is not None
    view.stage("All train together until the end")
    demo.train_until(demo.clock[1])
    demo.wait_contributed(late)


def _measure(demo: Demo, out: Path | None, began: float) -> tuple[Summary, Words]:
    swarm, view = demo.swarm, demo.view
    demo.end()
    live = [peer.peer_id for peer in swarm.peers if peer.is_alive]
    logs = read_logs([(peer.name, peer.peer_id, peer.folder) for peer in swarm.peers])
    view.stage("Fetching the model from the peers, as any observer can")
    sizes = seed_sizes(swarm.manifest)
    anchors = asyncio.run(_fetch_anchors(demo))
    if out is not None:
        view.stage(f"Taking the model home to {out}: peer export")
        source = ("--run-id", swarm.run_id, "--peers", swarm.address)
        export = python_command("peer", "export", *source, "--out", str(out))
        swarm.call("peer export", export, COMMAND_SECONDS, demo.show)
    view.stage("The peers say goodbye")
    swarm.stop_peers()
    # When the peers have gone: they leave no core free.
    view.stage("Measuring the model before and after, and letting it write")
    named = swarm.manifest.data.tokenizer
    tokenizer = "" if named is None else str(run_file_path(swarm.folder / "owner", swarm.manifest, named))
    write_anchors(swarm.folder, swarm.manifest, anchors)
    measure = python_command("peer.demo.measuring_process", str(swarm.folder), swarm.data or "", tokenizer)
    words = Words(**json.loads(swarm.call("measuring the model", measure, COMMAND_SECONDS, demo.show)))
    late = [peer.peer_id for peer in swarm.peers if peer.is_late]
    assert demo.clock is not None
    assert demo.trained_until is not None
    moments = (began, demo.clock[0], demo.trained_until, time.monotonic())
    seconds = (moments[1] - moments[0], moments[2] - moments[1], moments[3] - moments[2])
    summary = summarise(logs, live, late, words.loss_first, words.loss_last, sum(sizes), seconds)
    return summary, words


async def _fetch_anchors(demo: Demo) -> dict[int, F32]:
    """The anchors as any observer can fetch them; empty, and told, when nobody gives them."""
    try:
        async with observe(demo.swarm.run_id, [demo.swarm.address], 30.0) as observer:
            found = await observer.fetch_anchors(await observer.records())
            return {index: fetched.snapshot.anchor for index, fetched in enumerate(found)}
    except MurmurationError as error:
        demo.view.say(f"the anchors could not be fetched: {error}")
        return {}


def _doing(peer: DemoPeer, log: PeerLog) -> str:
    if peer.killed_at is not None:
        return f"killed {time.monotonic() - peer.killed_at:.0f} s ago"
    if not peer.is_alive:
        return "left"
    if log.own.joined_at is None:
        return "catching up" if log.own.has_caught_up else "starting"
    return "training, came late" if peer.is_late else "training"


def _kept(words: Words, out: Path | None) -> dict[str, object]:
    """What the JSON has beside the summary."""
    said: dict[str, object] = {"said_first": words.said_first, "said_last": words.said_last}
    return said if out is None else said | {"model": str(out), "text": words.said_last}


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="murmuration-demo-"))
    except OSError as error:
        raise LocalFault(
            f"no folder for the demo could be made ({error.strerror}); expected one for temporary files that can be "
            "written; set TMPDIR to it"
        ) from error


@contextlib.contextmanager
def _guarded(folder: Path) -> Iterator[DemoGuard]:
    """The folder goes afterwards, with all that runs in it if this process is killed."""
    guard = DemoGuard(folder)
    try:
        yield guard
    finally:
        with undisturbed():
            shutil.rmtree(folder, ignore_errors=True)
            guard.close()


@contextlib.contextmanager
def _stopped(swarm: DemoSwarm, view: DemoView) -> Iterator[None]:
    """No process is left afterwards; interrupted or failed, peers get little time for their goodbyes."""
    try:
        yield
    except BaseException:
        # The terminal may be what has gone.
        with contextlib.suppress(OSError):
            view.close()
        swarm.stop(HURRIED_SECONDS)
        raise
    else:
        swarm.stop()
    finally:
        forget(swarm.run_id, swarm.folder)


def _wait_for_enter() -> None:
    """Until Enter, Ctrl+C or the end of the input; what was typed before does not count."""
    with contextlib.suppress(termios.error, OSError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    with contextlib.suppress(KeyboardInterrupt, OSError):
        sys.stdin.readline()
