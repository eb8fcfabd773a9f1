"""A run and its peers with all their processes, for `bench_stall.py`, `bench_footprint.py` and `bench_join.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.members.member_process import MemberProcess
from dht.ground.errors import UsageFault
from tests.kit.processes.process_swarm import LOOPBACK, ProcessSwarm, process_swarm

RUN = """
seed = 1
[model]
num_layers = {layers}
d_model = {width}
num_heads = 8
context = {context}
[data]
[averaging]
sync_every = {sync_every}
num_fragments = {fragments}
[network]
announce_seconds = 2.0
"""


class RealSwarm(ProcessSwarm):
    """Peers that train a loop of the benchmark's, on lines of a lab; the first one makes the run findable."""

    def __init__(self, folder: Path, sockets: Path, run_toml: str, *, lab: Any) -> None:
        super().__init__(folder, sockets, run_toml)
        self._lab = lab
        self.addresses: list[str] = []
        self.members: list[MemberProcess] = []

    def start_member(self, company: bool, cores: Sequence[int] = (), device: str = "cpu") -> MemberProcess:
        """One more peer's trainer process; it joins when told to."""
        index = len(self.members)
        folder = self.folder / f"peer{index}"
        folder.mkdir(mode=0o700)
        if index == 0:
            shutil.copy(self.run.run_record_path, folder / "run.record")
        command = [sys.executable, "-m", "benchmarks.members.session_member", "--device", device]
        command += ["--run-toml", str(self.folder / "run.toml"), "--ip", self.ip(index)]
        command += ["--run-id", self.run_id, "--folder", str(folder), *(["--company"] if company else [])]
        if cores:
            command += ["--cores", ",".join(map(str, cores))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        member = MemberProcess(index, self.popen(index, command, **pipes))
        self.members.append(member)
        return member

    def ip(self, index: int) -> str:
        """Where peer `index` listens."""
        return LOOPBACK if self._lab is None else str(self._lab.ip(index))

    def popen(self, index: int, command: Sequence[str], **arguments: Any) -> subprocess.Popen[Any]:
        """A process on the line of peer `index`."""
        arguments["env"] = self.environment
        if self._lab is None:
            return subprocess.Popen(command, **arguments)
        process: subprocess.Popen[Any] = self._lab.run(index, command, **arguments)
        return process

    def join_member(self, member: MemberProcess) -> None:
        """Make it a member, through those that are."""
        answer = member.ask(do="join", peers=list(self.addresses))
        self.addresses += answer["addresses"]

    def close(self) -> None:
        """End all members, gently if they can be."""
        for member in self.members:
            member.stop()
        super().close()


@contextmanager
def real_swarm(lab: Any, **shape: int) -> Iterator[RealSwarm]:
    """A swarm that is gone after the block. `shape`: layers, width, context, sync_every, fragments.

    Raises:
        SystemExit: a run of that shape is impossible.
    """
    try:
        with process_swarm(RUN.format(**shape), partial(RealSwarm, lab=lab)) as swarm:
            yield swarm
    except UsageFault as fault:
        raise SystemExit(f"{fault}") from fault
