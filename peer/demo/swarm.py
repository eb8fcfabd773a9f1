"""The processes of a demo: real `peer join` processes and a page, all of which end with the demo."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dht.ground.errors import LocalFault
from dht.identity.keys import Identity
from peer.child_process import DEVNULL, STDOUT, ChildProcess, Stream, end_all
from peer.demo.figures import PeerLog
from peer.import_path import python_command, python_environment

PAGE_SAMPLES = ("--samples-every", "45s", "--prompt", "def ", "--prompt", "import ")
"""Sample options of the page; the model learns the standard library's text."""
STOP_SECONDS = 30.0
"""Time for goodbyes in an orderly end."""
LOOK_SECONDS = 0.25
"""Pause between two checks of a process; a second would be noticeable."""
PROBE_SECONDS = 0.2
"""Time for a local port to accept a connection."""
_HERE = "127.0.0.1"


@dataclass
class DemoPeer:
    """One `peer join` process and its output."""

    log: PeerLog
    folder: Path
    process: ChildProcess
    is_late: bool = False
    is_killed: bool = False

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def doing(self) -> str:
        """The peer's activity for its row in the table."""
        own = self.log.own
        if self.is_killed:
            return "killed"
        if own.joined_at is None:
            return "catching up" if own.has_caught_up else "starting"
        return "training, came late" if self.is_late else "training"

    def kill(self) -> None:
        """End the peer and its children at once, like a power cut."""
        self.is_killed = True
        self.process.kill()
        self.process.wait()

    def last_lines(self) -> str:
        """Return the last lines of its standard error."""
        lines = (self.folder / "stderr.txt").read_text(errors="replace").splitlines()
        return "\n".join(lines[-8:]) or "(it printed nothing)"


@dataclass
class DemoSwarm:
    """The swarm of one demo; all of its files are below `folder`."""

    folder: Path
    run_id: str
    address: str = ""
    peers: list[DemoPeer] = field(default_factory=list)
    others: list[ChildProcess] = field(default_factory=list)
    page_port: int | None = None

    def start_peer(self, name: str, *, is_late: bool = False) -> DemoPeer:
        """Start one volunteer; the first has the run's record, and all others join through its address."""
        folder = self.folder / name
        identity = Identity.load_or_create(folder / "identity.key")
        arguments = ["--run-id", self.run_id, "--data-dir", str(folder), "--json", "--threads", "1", "--name", name]
        if self.peers:
            arguments += ["--peers", self.address, "--listen", f"/ip4/{_HERE}/tcp/0"]
        else:
            shutil.copy(self.folder / "owner" / "run.record", folder / "run.record")
            listen = f"/ip4/{_HERE}/tcp/{free_port()}"
            self.address = f"{listen}/p2p/{identity.peer_id}"
            arguments += ["--listen", listen]
        with open(folder / "stderr.txt", "wb") as errors:
            process = self._started("join", arguments, DEVNULL, errors)
        peer = DemoPeer(PeerLog(name, folder / "events.jsonl"), folder, process, is_late)
        self.peers.append(peer)
        return peer

    def start_page(self, port: int) -> None:
        """Serve the dashboard beside the swarm."""
        target = ["--run-id", self.run_id, "--peers", self.address, "--join-address", self.address]
        options = ["--port", str(port), "--db", str(self.folder / "dashboard.sqlite"), *PAGE_SAMPLES]
        with open(self.folder / "dashboard.txt", "wb") as output:
            self.others.append(self._started("dashboard", [*target, *options], output, STDOUT))
        self.page_port = port

    @property
    def page_address(self) -> str | None:
        """The page's address; None while it is not up."""
        if self.page_port is None:
            return None
        with socket.socket() as probe:
            probe.settimeout(PROBE_SECONDS)
            is_up = probe.connect_ex((_HERE, self.page_port)) == 0
        return f"http://{_HERE}:{self.page_port}/" if is_up else None

    def call(self, command: str, arguments: list[str], seconds: float, meanwhile: Callable[[], None]) -> str:
        """Run a command that ends by itself; return its standard output.

        Args:
            meanwhile: called a few times a second.

        Raises:
            LocalFault: the command failed, with its own message, or took longer than `seconds`.
        """
        end = time.monotonic() + seconds
        paths = self.folder / "call.stdout", self.folder / "call.stderr"
        with open(paths[0], "wb") as output, open(paths[1], "wb") as errors:
            process = self._started(command, arguments, output, errors)
        self.others.append(process)
        while process.poll() is None:
            if time.monotonic() >= end:
                raise LocalFault(
                    f"peer {command} took more than {seconds:.0f} s; expected it to finish; is the machine busy?"
                )
            meanwhile()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
        shown, said = (path.read_text(errors="replace") for path in paths)
        if process.returncode:
            raise LocalFault(f"peer {command} failed:\n{said.strip()[-1500:]}")
        return shown

    def stop_peers(self) -> None:
        """Ask all peers to leave, and kill those that do not within `STOP_SECONDS`."""
        end_all([peer.process for peer in self.peers], STOP_SECONDS)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End all processes, including the page, within `seconds`; if interrupted, at once."""
        end_all([*(peer.process for peer in self.peers), *self.others], seconds)

    def _started(self, command: str, arguments: list[str], output: Stream, errors: Stream) -> ChildProcess:
        """Start a command that leaves when its standard input closes, as it does when this process dies.

        It uses one thread, because two waiting threads took 60 times as long while peers had the cores. Files that a
        killed peer leaves in its temporary folder are deleted with the demo's.
        """
        environment = {**python_environment(), "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder)}
        kept = python_command("peer.demo.kept_command", command, *arguments)
        return ChildProcess(kept, "for the demo", output=output, errors=errors, environment=environment)


def port_near(wanted: int) -> int:
    """Return `wanted`, or a free local port if another program listens there; 0: any free port."""
    with socket.socket() as probe:
        # Like the page's own server, so that the port of a page that has just ended is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HERE, wanted))
        except OSError:
            return free_port()
        port: int = probe.getsockname()[1]
        return port


def free_port() -> int:
    """Return a port on which no process listens now."""
    return port_near(0)
