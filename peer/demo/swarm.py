"""The processes of a demo: real `peer join` processes and a page, none of which outlives it."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dht.ground.errors import LocalFault
from dht.ground.host import PeerId
from dht.identity.keys import Identity
from peer.child_process import DEVNULL, STDOUT, ChildProcess, Stream, end_all
from peer.config.manifest import RunManifest
from peer.demo.leftovers import DemoGuard
from peer.demo.summary import LogFollower, PeerLog
from peer.files.checked_folder import FILES_NAME
from peer.import_path import python_command, python_environment

NUM_PORTS = 20
"""Tried for the page, from the one that was asked for."""
PAGE_SAMPLES = ("--samples-every", "45s", "--prompt", "def ", "--prompt", "import ")
"""What the page has the model write: it learns the library's text."""
STOP_SECONDS = 30.0
"""For goodbyes, when nothing hurries."""
LOOK_SECONDS = 0.25
"""Between two looks at a process: a second would be noticed."""
PROBE_SECONDS = 0.2
"""For a port of this machine to take a connection."""


@dataclass
class DemoPeer:
    """One `peer join` process and what it printed."""

    name: str
    peer_id: PeerId
    folder: Path
    process: ChildProcess
    events: LogFollower
    started_at: float
    is_late: bool = False
    killed_at: float | None = None

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it and its children at once, as a power cut would."""
        self.killed_at = time.monotonic()
        self.process.end(0.0)

    def last_lines(self) -> str:
        """What it said last on standard error."""
        lines = (self.folder / "stderr.txt").read_text(errors="replace").splitlines()
        return "\n".join(lines[-8:]) or "(it printed nothing)"


@dataclass
class DemoSwarm:
    """The swarm of one demo; everything it writes is below `folder`."""

    folder: Path
    run_id: str
    manifest: RunManifest
    guard: DemoGuard | None = None
    """Is told of every process; None: they would outlive this one if it were killed."""
    data: str | None = None
    address: str = ""
    peers: list[DemoPeer] = field(default_factory=list)
    calls: list[ChildProcess] = field(default_factory=list)
    page: ChildProcess | None = None
    page_port: int | None = None

    def start_peer(self, name: str, *, is_late: bool = False) -> DemoPeer:
        """Start one volunteer; the first one holds the run's record and is everybody's bootstrap address."""
        folder = self.folder / name
        identity = Identity.load_or_create(folder / "identity.key")
        arguments = ["--run-id", self.run_id, "--data-dir", str(folder), "--json", "--threads", "1", "--name", name]
        if self.data is not None:
            arguments += ["--data", self.data]
        if self.peers:
            arguments += ["--peers", self.address, "--listen", "/ip4/127.0.0.1/tcp/0"]
        else:
            shutil.copy(self.folder / "owner" / "run.record", folder / "run.record")
            if (self.folder / "owner" / FILES_NAME).is_dir():
                shutil.copytree(self.folder / "owner" / FILES_NAME, folder / FILES_NAME)
            listen = f"/ip4/127.0.0.1/tcp/{free_port()}"
            self.address = f"{listen}/p2p/{identity.peer_id}"
            arguments += ["--listen", listen]
        command = python_command("peer", "join", *arguments)
        with open(folder / "stderr.txt", "wb") as errors, undisturbed():
            # What a killed peer leaves in its temporary folder goes with the demo's.
            process = _started(command, DEVNULL, errors, OMP_NUM_THREADS="1", TMPDIR=str(self.folder))
            events = LogFollower(PeerLog(name, identity.peer_id), folder / "events.jsonl")
            peer = DemoPeer(name, identity.peer_id, folder, process, events, time.monotonic(), is_late)
            self.peers.append(peer)
            self._tell_guard()
        return peer

    def start_page(self, port: int) -> None:
        """Serve the dashboard beside the swarm."""
        target = ["--run-id", self.run_id, "--peers", self.address]
        history = ["--db", str(self.folder / "dashboard.sqlite"), "--join-address", self.address]
        command = python_command("peer", "dashboard", *target, "--port", str(port), *history, *PAGE_SAMPLES)
        with open(self.folder / "dashboard.txt", "wb") as output, undisturbed():
            self.page = _started(command, output, STDOUT)
            self._tell_guard()
            self.page_port = port

    @property
    def page_address(self) -> str | None:
        """Where the page is; None: it is not up."""
        if self.page_port is None or self.page is None or self.page.poll() is not None:
            return None
        with socket.socket() as probe:
            probe.settimeout(PROBE_SECONDS)
            is_up = probe.connect_ex(("127.0.0.1", self.page_port)) == 0
        return f"http://127.0.0.1:{self.page_port}/" if is_up else None

    def call(self, what: str, command: list[str], seconds: float, meanwhile: Callable[[], None]) -> str:
        """Run something of ours that ends by itself; returns what it printed on standard output.

        It computes on one thread: two that wait for each other took 60 times as long while peers had the cores.

        Args:
            what: it does, for a sentence, e.g. "peer export".
            meanwhile: called a few times a second.

        Raises:
            LocalFault: it failed, with its own sentence, or took longer than `seconds`.
        """
        end = time.monotonic() + seconds
        paths = self.folder / "call.stdout", self.folder / "call.stderr"
        with open(paths[0], "wb") as output, open(paths[1], "wb") as errors, undisturbed():
            process = _started(command, output, errors, OMP_NUM_THREADS="1")
            self.calls.append(process)
            self._tell_guard()
        while process.poll() is None:
            if time.monotonic() >= end:
                raise LocalFault(f"{what} took more than {seconds:.0f} s; expected it done; is the machine busy?")
            meanwhile()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
        shown, said = (path.read_text(errors="replace") for path in paths)
        if process.returncode:
            raise LocalFault(f"{what} failed:\n{said.strip()[-1500:]}")
        return shown

    def _running(self) -> list[ChildProcess]:
        page = [] if self.page is None else [self.page]
        return [one for one in (*(peer.process for peer in self.peers), *self.calls, *page) if one.poll() is None]

    def _tell_guard(self) -> None:
        if self.guard is not None:
            self.guard.tell(self.run_id, [process.pid for process in self._running()])

    def stop_peers(self) -> None:
        """Ask all peers to leave, and end those that do not within `STOP_SECONDS`."""
        # Not SIGINT: a demo that runs in the background of a script has it ignored, and so have its children.
        end_all([peer.process for peer in self.peers], STOP_SECONDS, signal.SIGTERM)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """The same for all, the page included, within `seconds`; interrupted, it ends them at once. None is left."""
        end_all(self._running(), seconds, signal.SIGTERM)


def _started(command: list[str], output: Stream, errors: Stream, **environment: str) -> ChildProcess:
    return ChildProcess(
        command,
        "for the demo",
        stdin=DEVNULL,
        output=output,
        errors=errors,
        environment={**python_environment(), **environment},
    )


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl+C, SIGTERM and a closed terminal wait until the block is over: between a process and its place in a list.

    Raises:
        KeyboardInterrupt: one of them came meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number, handler in before.items() if callable(handler)]
    for number in taken:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def hang_up_interrupts() -> Iterator[None]:
    """A closed terminal ends the block as Ctrl+C does, unless somebody had it ignored (nohup)."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGHUP, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def page_port_near(wanted: int) -> int:
    """`wanted`, or the next port of this machine that nobody listens on; 0: any free one."""
    for port in range(wanted, min(wanted + NUM_PORTS, 1 << 16)) if wanted else ():
        with socket.socket() as probe:
            # As the page's own server: a port of a page that has just ended is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return free_port()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
