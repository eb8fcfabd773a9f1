"""`peer demo`: a local swarm like one of volunteers, with one peer killed and one that joins late.

Every peer is a real `peer join` process with its own libp2p daemon and DHT node on loopback. Only the run id and one
bootstrap address connect them. The figures come from the peers' own events.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.cells import chop_cells
from rich.text import Text

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.quantities import loss_text, plural, share_text
from peer.config.peer_config import load_config
from peer.console.plain_console import PlainConsole
from peer.data_folder.run_folders import forget_places
from peer.demo.demo_view import DemoView, Figures, peers_table
from peer.demo.figures import Summary, num_rounds_of
from peer.demo.swarm import LOOK_SECONDS, DemoPeer, DemoSwarm, port_near
from peer.owner.new_run import create_run

DEMO_RUN = """
description = "A trial on one machine: the model learns to write Python, letter by letter, from the standard library"
seed = 1
[model]
num_layers = 4
d_model = 128
num_heads = 4
context = 128
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
EXPLAINED = """\
steps   how many times the peer has changed its own copy of the model
tokens  pieces of text that the peer has trained on; here each is a letter
rounds  how many times its work was averaged with the work of others
loss    how badly the model guesses the next letter, in nats: random guessing gives 5.5"""
START_SECONDS = 240.0
"""Time for a process to import torch and join: 5 s on an idle machine, 80 s on two cores shared with twenty others."""
SETTLED_SECONDS = 20.0
"""Shortest time of the late peer before the end, whatever the value of --minutes."""
CONTRIBUTED_SECONDS = 120.0
"""Additional time for the late peer's first round: 1 s on an idle machine, a minute beside twenty other programs."""
COMMAND_SECONDS = 180.0
"""Time for the model to generate text; the command loads torch again."""
HURRIED_SECONDS = 5.0
"""Time for goodbyes after Ctrl+C; a daemon needs 1 to 2 s."""
PROMPT = "def "
SAMPLE = ("--prompt", PROMPT, "--max-tokens", "160", "--temperature", "0.6", "--seed", "7")
"""Two or three lines, at a low temperature, because a model trained for two minutes is unsure."""
INDENT = 4


@dataclass
class Demo:
    """A swarm and its view."""

    swarm: DemoSwarm
    view: DemoView
    rounds_at_kill: int | None = None
    clock: tuple[float, float] | None = None
    """Start and length of the training, in seconds of the monotonic clock."""

    def passed(self) -> float:
        """Return the seconds of training so far."""
        return 0.0 if self.clock is None else time.monotonic() - self.clock[0]

    def kill(self, peer: DemoPeer) -> None:
        """Kill a peer and count the rounds from now on."""
        peer.kill()
        self.rounds_at_kill = self.num_rounds()

    def num_rounds(self) -> int:
        """Return the model's number of rounds, as far as the logs have been read."""
        return num_rounds_of([peer.log.own for peer in self.swarm.peers])

    def look(self) -> None:
        """Show the newest figures.

        Raises:
            LocalFault: a peer ended that was not killed.
        """
        for peer in self.swarm.peers:
            if not peer.is_alive and not peer.is_killed:
                raise LocalFault(
                    f"{peer.log.name} ended before training was over. Its last output:\n{peer.last_lines()}"
                )
        self.show()

    def show(self) -> None:
        """Show the newest figures, even if a peer has ended."""
        views = {peer.log.name: (peer.doing, peer.log.read_on()) for peer in self.swarm.peers}
        seconds = None if self.clock is None else (self.passed(), self.clock[1])
        since_kill = None if self.rounds_at_kill is None else self.num_rounds() - self.rounds_at_kill
        self.view.look(Figures(views, seconds, since_kill, self.swarm.page_address))

    def wait_joined(self, peers: list[DemoPeer]) -> None:
        """Wait until all peers are members.

        Raises:
            LocalFault: a peer ended or took too long.
        """
        seconds = START_SECONDS + 10.0 * len(peers)
        end = time.monotonic() + seconds
        while waiting := [peer for peer in peers if peer.log.own.joined_at is None]:
            self.look()
            if time.monotonic() >= end:
                raise LocalFault(
                    f"{waiting[0].log.name} did not join within {seconds:.0f} s; expected about 15 s. On a "
                    "busy machine, close other programs or try two peers: `peer demo --peers 2`. "
                    f"Its last output:\n{waiting[0].last_lines()}"
                )
            time.sleep(LOOK_SECONDS)

    def wait_contributed(self, peer: DemoPeer) -> None:
        """Wait until others have committed work of this peer, or for `CONTRIBUTED_SECONDS`."""
        end = time.monotonic() + CONTRIBUTED_SECONDS
        while time.monotonic() < end and not peer.log.own.confirmed_rounds:
            self.look()
            time.sleep(LOOK_SECONDS)

    def train_until(self, passed: float) -> None:
        """Wait until `passed` seconds of the training have passed."""
        while self.passed() < passed:
            self.look()
            time.sleep(min(LOOK_SECONDS, max(0.0, passed - self.passed())))


def run_demo(num_peers: int, minutes: float, as_json: bool, page_port: int | None, program: str = "peer") -> int:
    """Run the demo. Return 0 only if the swarm really trained together; see `Summary.problems`.

    Args:
        page_port: port of the dashboard; None: no dashboard.
        program: the user's command for `peer`, for suggested command lines.
    """
    stream = sys.stderr if as_json else sys.stdout
    # A pipe has no width.
    console = PlainConsole(stderr=as_json, highlight=False, soft_wrap=not stream.isatty())
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    with _temporary_folder() as folder, contextlib.ExitStack() as running:
        with contextlib.closing(DemoView(console)) as view:
            view.stage("Creating a run: the owner's key, and the manifest on which all peers agree")
            (folder / "run.toml").write_text(DEMO_RUN)
            swarm = DemoSwarm(folder, create_run("demo", folder / "run.toml", folder / "owner").run_id)
            running.enter_context(_stopped(swarm, view))
            demo = Demo(swarm, view)
            _play(demo, num_peers, minutes, page_port)
            summary, text = _end(demo)
        if as_json:
            print(json.dumps(summary.facts() | {"text": text}))
        else:
            _print_report(console, demo, summary, text, program)
        problems = summary.problems()
        for problem in problems:
            console.print(f"unexpected: {problem}", style="red")
        if problems and (load := os.getloadavg()[0]) > (os.cpu_count() or 1):
            console.print(
                f"This machine is busy (load {load:.0f} on {plural(os.cpu_count() or 1, 'core')}), so the peers may "
                "have had too little time: end other programs, or use more --minutes or fewer --peers."
            )
        page = swarm.page_address
        if page is not None and console.is_terminal and sys.stdin.isatty() and not as_json:
            console.print(f"\nThe page {page} stays until you press Enter.", style="bold")
            _wait_for_enter()
    return 1 if problems else 0


def _play(demo: Demo, num_peers: int, minutes: float, page_port: int | None) -> None:
    view, swarm = demo.view, demo.swarm
    length = max(60.0 * minutes, 2 * SETTLED_SECONDS)
    shortest = ", the minimum" if length > 60.0 * minutes else ""
    view.say(
        f"{num_peers} peers train one model on this machine for {length:.0f} s{shortest}. Starting them and generating "
        "text take about 15 s each on two idle cores.\n"
    )
    view.say(f"{EXPLAINED}\n")
    view.stage("Starting the first peer: it loads torch and creates the model")
    first = swarm.start_peer("peer-1")
    demo.wait_joined([first])
    view.say("peer-1 trains alone; others need only its address and the run's id to join")
    view.stage(f"Starting {plural(num_peers - 1, 'more peer')}" + ("" if page_port is None else " and the page"))
    others = [swarm.start_peer(f"peer-{number}") for number in range(2, num_peers + 1)]
    if page_port is not None:
        port = port_near(page_port)
        if page_port and port != page_port:
            view.say(f"port {page_port} is taken by another program, so the page uses port {port}")
        swarm.start_page(port)
    demo.wait_joined(others)
    demo.clock = (time.monotonic(), length)
    victim = others[-1]
    view.stage(f"All peers train together; after {length / 2:.0f} s {victim.log.name} is killed")
    demo.train_until(length / 2)
    demo.kill(victim)
    view.say(
        f"killed {victim.log.name} with SIGKILL, like a power cut: the others continue without it, and without a pause"
    )
    late = swarm.start_peer(f"peer-{num_peers + 1}", is_late=True)
    view.say(f"started {late.log.name}, which joins late and must catch up")
    view.stage(f"{late.log.name} downloads the model from the others and starts from it")
    demo.wait_joined([late])
    length = max(length, demo.passed() + SETTLED_SECONDS)
    demo.clock = (demo.clock[0], length)
    view.stage("All peers train together until the end")
    demo.train_until(length)
    demo.wait_contributed(late)


def _end(demo: Demo) -> tuple[Summary, str]:
    """End the peers, each of which evaluates the model once more, and let the model generate text."""
    swarm, view = demo.swarm, demo.view
    live = tuple(peer.log for peer in swarm.peers if peer.is_alive)
    view.stage("The peers measure the model once more and leave the run")
    demo.clock = None
    swarm.stop_peers()
    demo.show()
    view.stage("The model generates text")
    folder = str(swarm.peers[0].folder)
    text = swarm.call("sample", [swarm.run_id, "--checkpoint", folder, *SAMPLE], COMMAND_SECONDS, demo.show)
    logs = tuple(peer.log for peer in swarm.peers)
    return Summary(logs, live, logs[-1]), text


def _print_report(console: PlainConsole, demo: Demo, summary: Summary, text: str, program: str) -> None:
    """Print each peer's work, the model's text, the figures, and suggested commands."""
    facts = summary.facts()
    console.print("What each peer did", style="bold")
    console.print(peers_table({peer.log.name: (peer.doing, peer.log.own) for peer in demo.swarm.peers}))
    console.print(f"\nAsked to continue {PROMPT!r}, the model writes:")
    for line in text.rstrip().expandtabs().splitlines():
        # Not wrapped at words: spaces are part of the text of a character-level model.
        for part in chop_cells(line, max(20, console.width - 2 * INDENT)) or [""]:
            console.print(Text(" " * INDENT + part, style="bold"), soft_wrap=True)
    first, last = loss_text(facts["loss_first"]), loss_text(facts["loss_last"])
    up, down = facts["bits_per_parameter_up"], facts["bits_per_parameter_down"]
    console.print(f"\nIts validation loss, on text that no peer trained on: {first} nats before, {last} after.")
    console.print(f"A round moved {up:.3f} bits per parameter up and {down:.3f} down, instead of 32.")
    console.print(f"Training waited for the network {share_text(facts['trainer_wait_fraction'])} of the time.")
    console.print(f"All peers hold the same model, bit for bit: {'yes' if facts['anchors_equal'] else 'NO'}.")
    console.print(f"The late peer took part: {'yes' if facts['late_joiner_contributed'] else 'NO'}.")
    console.print("\nNow for real:", style="bold")
    for command, what in (
        ("init my-run", "creates your own run, and prints how to start and join it"),
        ("doctor", "checks whether this machine and its connection suit another person's run"),
    ):
        console.print(f"  {program} {command}", style="bold", soft_wrap=True)
        console.print(f"      {what}")


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix="murmuration-demo-"))
    except OSError as error:
        raise LocalFault(
            f"the demo's folder could not be created ({error.strerror}); expected a writable folder for temporary "
            "files; set TMPDIR to one"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _stopped(swarm: DemoSwarm, view: DemoView) -> Iterator[None]:
    """End all processes afterwards; after an interruption or fault, peers get little time for their goodbyes."""
    try:
        yield
    except BaseException:
        # The terminal may be closed.
        with contextlib.suppress(OSError):
            view.close()
        swarm.stop(HURRIED_SECONDS)
        raise
    else:
        swarm.stop()
    finally:
        _forget(swarm.run_id, swarm.folder)


def _forget(run_id: str, folder: Path) -> None:
    """Remove the demo's files outside `folder`, except the files of a peer that runs in another terminal."""
    with contextlib.suppress(OSError, UsageFault):
        forget_places(folder)
        usual = load_config({"run_id": run_id})
        shutil.rmtree(usual.observer_path, ignore_errors=True)
        usual.data_dir.rmdir()


def _wait_for_enter() -> None:
    """Wait for Enter, Ctrl+C or the end of the input; earlier input is discarded."""
    with contextlib.suppress(termios.error, OSError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    with contextlib.suppress(KeyboardInterrupt, OSError):
        sys.stdin.readline()
