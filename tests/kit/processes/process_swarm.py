"""Real `peer` processes for tests: started in a temporary folder, watched through their event logs, never left behind.

Every process of one `ProcessSwarm` carries the same mark in its environment, children and grandchildren included, so
that whatever outlives its parent is found (in /proc) and ended.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from averaging.rounds.round_facts import AppliedCommit, Fact, RoundCommitted
from dht.ground.host import PeerId
from dht.identity.keys import Identity
from peer.cli import app
from peer.config.hf_model_section import DescribedModel
from peer.events.event_log import from_json
from peer.events.peer_events import Event, JoinedRun, SwarmContact, TrainingProgressed
from peer.files.checked_folder import FILES_NAME
from peer.owner.new_run import NewRun, create_run
from tests.kit.waiting import LOOK_SECONDS, WAIT_SECONDS, wait_until

TINY_RUN = """
description = "a model that trains in milliseconds"
seed = 1
[model]
num_layers = 1
d_model = 32
num_heads = 2
context = 32
[data]
source = "text:"
[training]
batch_size = 4
accumulation_steps = 2
warmup_steps = 5
[averaging]
sync_every = 10
num_fragments = 2
[network]
announce_seconds = 2.0
"""
MARK = "MURMURATION_TEST_MARK"
UNHURRIED = "tests.kit.processes.unhurried_peer"
DEAF = ("sh", "-c", """trap '' INT HUP; exec "$@" """, "sh")
"""How a script's shell starts a background job, and nohup a program."""
LOOPBACK = "127.0.0.1"
STEP_SECONDS = 0.1
"""Of a peer in tests: ten steps a second are a round a second in `TINY_RUN`, and take a tenth of a core."""
WORKERS = 4
PORTS = list(range(12_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS, 32_000, WORKERS))
"""For peers that must listen at a port known beforehand: each of a few workers has its own, and gives each out once."""

F = TypeVar("F", bound=Fact)
RoundKey = tuple[int, int, tuple[PeerId, ...], int]
"""(fragment, version, contributors, tokens): the same round in two logs. Forks share versions, not rounds."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One line of /proc."""

    pid: int
    parent: int
    command: str

    @property
    def resident_bytes(self) -> int:
        """Of its memory now; 0 when it is gone."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)


def free_port() -> int:
    """A TCP port that nobody listens on now; neither this function nor the system gives it to others meanwhile."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            PORTS.remove(port)
            return port
    raise AssertionError("every port for tests is taken")


class PeerProcess:
    """One `peer` command that runs until it is stopped."""

    def __init__(
        self,
        name: str,
        identity: Identity,
        port: int,
        output: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        ip: str = LOOPBACK,
        wrapper: Sequence[str] = (),
        step_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.peer_id: PeerId = identity.peer_id
        self.port = port
        self.address = f"/ip4/{ip}/tcp/{port}/p2p/{self.peer_id}"
        self._output = output
        self._events: list[Event] = []
        self._read_bytes = 0
        program = [UNHURRIED, str(step_seconds)] if step_seconds else ["peer"]
        with open(f"{output}.stdout", "ab") as shown, open(f"{output}.stderr", "ab") as errors:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, "-m", *program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )

    # ---------------------------------------------------------------------------------------------------- its words

    @property
    def stderr(self) -> str:
        """What it wrote on standard error so far."""
        return Path(f"{self._output}.stderr").read_text(errors="replace")

    def events(self) -> list[Event]:
        """All events it has shown so far (`--json`), those of earlier processes of the same name included."""
        with open(f"{self._output}.stdout", "rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self._events += [from_json(line) for line in whole.splitlines() if line]
        return self._events

    def wait_for(
        self,
        kind: type[F],
        matches: Callable[[F], bool] = lambda fact: True,
        *,
        after: int = 0,
        seconds: float = WAIT_SECONDS,
    ) -> F:
        """The first such fact behind the first `after` events; fails the test when the process ends or time is up."""
        end = time.monotonic() + seconds
        position = after
        while True:
            is_alive = self.is_alive
            events = self.events()
            for event in events[position:]:
                if isinstance(event.fact, kind) and matches(event.fact):
                    return event.fact
            position = max(after, len(events))
            if not is_alive:
                code = self.process.returncode
                raise AssertionError(f"{self.name} ended with {code}, no such {kind.__name__}:\n{self.last_words()}")
            if time.monotonic() >= end:
                raise AssertionError(f"{self.name}: no such {kind.__name__} in {seconds:.0f} s:\n{self.last_words()}")
            time.sleep(LOOK_SECONDS)

    def last_words(self) -> str:
        """The end of its event log and of its standard error, for a failed test."""
        counts: dict[str, int] = {}
        for event in self.events():
            counts[type(event.fact).__name__] = counts.get(type(event.fact).__name__, 0) + 1
        lines = [event.sentence() for event in self.events()[-12:]]
        return "\n".join([str(counts), *lines, "stderr:", self.stderr[-3000:]])

    def mark(self) -> int:
        """Number of events so far, for `after`."""
        return len(self.events())

    def inner_steps(self) -> int:
        """Inner steps as last reported."""
        return max(
            (event.fact.inner_steps for event in self.events() if isinstance(event.fact, TrainingProgressed)), default=0
        )

    def versions(self) -> dict[int, int]:
        """The newest version of each fragment that it applied."""
        applied = [event.fact for event in self.events() if isinstance(event.fact, AppliedCommit)]
        return {fact.fragment: fact.version for fact in applied}

    def outcomes(self) -> dict[RoundKey, str]:
        """The anchor digest after every round that it saw committed."""
        outcomes: dict[RoundKey, str] = {}
        last: dict[int, RoundCommitted] = {}
        for event in self.events():
            if isinstance(event.fact, RoundCommitted):
                last[event.fact.fragment] = event.fact
            elif isinstance(event.fact, AppliedCommit) and event.fact.fragment in last:
                commit = last.pop(event.fact.fragment)
                outcomes[(commit.fragment, commit.version, commit.contributors, commit.tokens)] = event.fact.digest
        return outcomes

    def losses_and_finds(self, after: int) -> list[str]:
        """What it told its owner of losing and finding the swarm, behind the first `after` events."""
        return [event.fact.state for event in self.events()[after:] if isinstance(event.fact, SwarmContact)]

    def wait_joined(self, after: int = 0, seconds: float = WAIT_SECONDS) -> JoinedRun:
        """Wait until it is a member; from then on its trainer makes way for processes that are just starting."""
        joined = self.wait_for(JoinedRun, after=after, seconds=seconds)
        os.setpriority(os.PRIO_PROCESS, self.process.pid, 5)
        return joined

    def wait_common_round(self, *others: PeerId, after: int, seconds: float = WAIT_SECONDS) -> RoundCommitted:
        """Wait for a commit that this peer and all `others` contributed to."""
        wanted = {self.peer_id, *others}
        return self.wait_for(
            RoundCommitted, lambda fact: wanted <= set(fact.contributors), after=after, seconds=seconds
        )

    # ---------------------------------------------------------------------------------------------------- its life

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def family(self) -> list[ProcessInfo]:
        """The process and all its descendants."""
        everyone = list(_all_processes())
        family = [process for process in everyone if process.pid == self.process.pid]
        for member in family:
            family += [process for process in everyone if process.parent == member.pid]
        return family

    def daemon(self) -> ProcessInfo:
        """Its libp2p daemon."""
        return next(process for process in self.family() if "/p2pd" in process.command.split(" ")[0])

    def network(self) -> ProcessInfo:
        """Its network process."""
        return next(process for process in self.family() if "peer.network.process.main" in process.command)

    def wait_end(self, seconds: float = WAIT_SECONDS) -> int:
        """Its exit code; fails the test when it does not end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {seconds:.0f} s:\n{self.last_words()}") from None

    def signal_all(self, number: signal.Signals) -> None:
        """A signal to the process and all its descendants, as from a service manager or a laptop that goes to sleep."""
        for process in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def kill_all(self) -> None:
        """SIGKILL to the process and all its descendants at once, as a power cut would."""
        for process in self.family():
            _kill(process.pid)
        self.process.wait()


class ProcessSwarm:
    """A run in a temporary folder and the processes that take part in it."""

    def __init__(
        self,
        folder: Path,
        sockets: Path,
        run_toml: str = TINY_RUN,
        files: Mapping[str, bytes] | None = None,
        model: DescribedModel | None = None,
    ) -> None:
        self.folder = folder
        self.sockets = sockets
        self.peers: list[PeerProcess] = []
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("MURMURATION")},
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(sockets),
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "share"),
            MARK: uuid.uuid4().hex,
        }
        self.text = folder / "text.txt"
        self.text.write_text("".join(f"line {number}: {number * number}\n" for number in range(20_000)))
        (folder / "run.toml").write_text(run_toml)
        for name, content in (files or {}).items():
            (folder / name).write_bytes(content)
        given = [folder / name for name in files or ()]
        self.run: NewRun = create_run("tiny", folder / "run.toml", folder / "owner", files=given, model=model)

    @property
    def run_id(self) -> str:
        return self.run.run_id

    def start(
        self,
        name: str,
        *arguments: str,
        peers: Sequence[str] = (),
        has_record: bool = False,
        command: str = "join",
        port: int | None = None,
        run_id: str | None = None,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
        ip: str = LOOPBACK,
        wrapper: Sequence[str] = (),
        step_seconds: float = STEP_SECONDS,
    ) -> PeerProcess:
        """Start `peer join` (or `seed`) in the folder `name`, on loopback; `arguments` come last and so beat these.

        What it prints goes to ``output.stdout`` and ``output.stderr``, in its folder when nothing is said. `wrapper`
        is a command that ends in running the one behind it. A step takes `step_seconds` longer than it must; with 0
        it is the command as users start it (see `unhurried_peer.py`).
        """
        folder = self.folder / name
        identity = self.identity_of(name)
        if has_record:
            shutil.copy(self.run.run_record_path, folder / "run.record")
            if self.run.manifest.files:
                shutil.copytree(self.run.folder / FILES_NAME, folder / FILES_NAME)
        port = port or free_port()
        given = [command, "--run-id", run_id or self.run_id, "--data-dir", str(folder), "--json"]
        given += ["--listen", f"/ip4/{ip}/tcp/{port}"]
        if command == "join":
            given += ["--threads", "1", "--device", "cpu", "--data", f"text:{self.text}"]
        for address in peers:
            given += ["--peers", address]
        environment = {**self.environment, **(environment or {})}
        shown = output or folder / "shown"
        peer = PeerProcess(
            *(name, identity, port, shown, [*given, *arguments], environment),
            ip=ip,
            wrapper=wrapper,
            step_seconds=step_seconds if command == "join" else 0.0,
        )
        self.peers.append(peer)
        return peer

    def folder_of(self, name: str) -> Path:
        """The data folder of a peer."""
        return self.folder / name

    def identity_of(self, name: str) -> Identity:
        """The identity of a peer, also before it starts."""
        folder = self.folder_of(name)
        folder.mkdir(mode=0o700, exist_ok=True)
        return Identity.load_or_create(folder / "identity.key")

    def call(
        self, *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one `peer` command that ends by itself, in `folder`, within this process, which has loaded everything.

        Only its daemon and other children are processes of their own.
        """
        shown, errors = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(folder or Path.cwd()),
            contextlib.redirect_stdout(shown),
            contextlib.redirect_stderr(errors),
            warnings.catch_warnings(),
        ):
            # As Python shows them to users: not at all.
            warnings.simplefilter("ignore")
            for name, value in {**self.environment, **(environment or {})}.items():
                patch.setenv(name, value)
            patch.setattr(tempfile, "tempdir", str(self.sockets))
            code = app.run(arguments)
        return subprocess.CompletedProcess(arguments, code, shown.getvalue(), errors.getvalue())

    def call_python(
        self, *arguments: str, seconds: float = WAIT_SECONDS, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the interpreter on something that ends by itself, in `folder`."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=seconds,
            check=False,
        )

    def processes(self) -> list[ProcessInfo]:
        """Everything that carries this swarm's mark, orphans included."""
        mark = f"{MARK}={self.environment[MARK]}".encode()
        return [process for process in _all_processes() if mark in _read(process.pid, "environ").split(b"\0")]

    def process_ids(self) -> set[int]:
        """Their ids."""
        return {process.pid for process in self.processes()}

    def socket_directories(self) -> list[Path]:
        """Socket directories of daemons, also of killed ones."""
        return sorted(self.sockets.glob("murmuration-p2pd-*"))

    def close(self) -> None:
        """End everything, gently or not."""
        for process in self.processes():
            _kill(process.pid)
        for peer in self.peers:
            peer.process.wait()
        wait_until(lambda: not self.processes(), "the processes of the test end")


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """The default action would end this process before it has ended its peers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


Swarm = TypeVar("Swarm", bound=ProcessSwarm)


@contextmanager
def process_swarm(run_toml: str = TINY_RUN, make: Callable[[Path, Path, str], Swarm] = ProcessSwarm) -> Iterator[Swarm]:
    """A swarm of processes; on leaving, nothing of it is left. SIGTERM is meanwhile what Ctrl+C is."""
    # Short, because the paths of Unix sockets end at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mm", dir="/tmp") as sockets, _interrupted_by_sigterm():
        folder = Path(sockets) / "run"
        folder.mkdir()
        swarm = make(folder, Path(sockets), run_toml)
        try:
            yield swarm
        finally:
            swarm.close()


def assert_one_sentence(stderr: str, *words: str) -> None:
    """Standard error is one line of `peer: ...` at its end, no traceback, and says each of `words`."""
    assert "Traceback" not in stderr, stderr
    assert "his is a bug" not in stderr, stderr
    sentences = [line for line in stderr.splitlines() if line.startswith("peer: ")]
    assert len(sentences) == 1, stderr
    for word in words:
        assert re.search(word, sentences[0]), f"{word!r} is not in: {sentences[0]}"


def _all_processes() -> Iterator[ProcessInfo]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        stat = _read(int(entry.name), "stat").decode(errors="replace")
        # The name in brackets may hold blanks; a zombie has ended already.
        fields = stat.rpartition(")")[2].split()
        if len(fields) > 2 and fields[0] not in ("Z", "X"):
            command = _read(int(entry.name), "cmdline").replace(b"\0", b" ").decode(errors="replace")
            yield ProcessInfo(int(entry.name), int(fields[1]), command)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
