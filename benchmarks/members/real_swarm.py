"""A run and its peers with all their processes, for `bench_stall.py`, `bench_footprint.py` and `bench_join.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench_round import MemberProcess
from dht.errors import UsageFault
from peer.owner.new_run import NewRun, create_run

RUN = """
seed = 1
[model]
num_layers = {layers}
d_model = {width}
num_heads = 8
context = {context}
[data]
evaluation_batches = 1
[averaging]
sync_every = {sync_every}
num_fragments = {fragments}
[network]
announce_seconds = 2.0
"""


class RealSwarm:
    """Its run in a temporary folder, and its members; the first one started makes the run findable.

    Raises:
        SystemExit: a run of that shape is impossible.
    """

    def __init__(self, folder: Path, lab: Any, **shape: int) -> None:
        self.folder = folder
        self._lab = lab
        self._toml = folder / "run.toml"
        self._toml.write_text(RUN.format(**shape))
        try:
            self.run: NewRun = create_run("bench", self._toml, folder / "owner")
        except UsageFault as fault:
            raise SystemExit(f"{fault}") from fault
        self.addresses: list[str] = []
        self.members: list[MemberProcess] = []

    def start(self, company: bool, cores: Sequence[int] = (), device: str = "cpu") -> MemberProcess:
        """One more peer's trainer process; it joins when told to."""
        index = len(self.members)
        folder = self.folder / f"peer{index}"
        folder.mkdir(mode=0o700)
        if index == 0:
            shutil.copy(self.run.run_record_path, folder / "run.record")
        command = [sys.executable, "-m", "benchmarks.members.session_member", "--run-toml", str(self._toml)]
        command += ["--ip", self.ip(index), "--device", device]
        command += ["--run-id", self.run.run_id, "--folder", str(folder), *(["--company"] if company else [])]
        if cores:
            command += ["--cores", ",".join(map(str, cores))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        member = MemberProcess(index, self.popen(index, command, **pipes))
        self.members.append(member)
        return member

    def ip(self, index: int) -> str:
        """Where peer `index` listens."""
        return "127.0.0.1" if self._lab is None else str(self._lab.ip(index))

    def popen(self, index: int, command: Sequence[str], **arguments: Any) -> subprocess.Popen[Any]:
        """A process on the line of peer `index`."""
        arguments["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
        if self._lab is None:
            return subprocess.Popen(command, **arguments)
        process: subprocess.Popen[Any] = self._lab.run(index, command, **arguments)
        return process

    def join(self, member: MemberProcess) -> None:
        """Make it a member, through those that are."""
        answer = member.ask(do="join", peers=list(self.addresses))
        self.addresses += answer["addresses"]

    def stop(self) -> None:
        """End all members."""
        for member in self.members:
            member.stop()


@contextmanager
def real_swarm(lab: Any, **shape: int) -> Iterator[RealSwarm]:
    """A swarm that is gone after the block. `shape`: layers, width, context, sync_every, fragments."""
    with ExitStack() as stack:
        # Short, because sockets have their paths in it.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        swarm = RealSwarm(Path(folder), lab, **shape)
        stack.callback(swarm.stop)
        yield swarm
