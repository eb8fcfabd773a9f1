"""How the processes of one peer find each other, started by `peer join --devices N` or by torchrun.

`peer join --devices N` is rank 0; it starts N - 1 processes `peer.trainer.loop.rank_process`, which end when rank 0
ends. Under torchrun (`torchrun --nproc-per-node N -m peer join ...`) each process is a `peer join`, and those with a
rank above 0 become `rank_process`. The processes meet in a torch key-value store, on loopback unless torchrun sets
another address. The JSON that rank 0 publishes there is the only input that decides what the others do.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from dht.ground.errors import LocalFault
from peer.child_process import ChildProcess, end_all, how_it_ended
from peer.import_path import python_command
from peer.trainer.devices.rank_orders import PATIENCE, RankLost, Ranks, lost_rank
from peer.trainer.devices.torchrun import Place

MEET_SECONDS = 300.0
"""Time for all processes of a peer to start: several import torch from a cold disk at once."""
END_SECONDS = 10.0
"""Time for a process to end after the order to end."""
KILL_SECONDS = 3.0
"""Time for a process to end after its standard input closed; then it is killed."""
NOTICE_SECONDS = 2.0
"""Time from a broken connection until the system reports the death of a process."""
LOOK_SECONDS = 0.1
_SETUP = "setup"


@dataclass(frozen=True, slots=True)
class RankSetup:
    """The settings that rank 0 publishes to the other ranks once it has the run."""

    manifest: str
    """The manifest in hexadecimal."""
    data: str
    is_own_data: bool
    """Whether the volunteer chose the data; see `open_run_corpus`."""
    base: str
    """Folder of pretrained weights; empty: none."""
    base_bits: str
    device: str
    threads: int | None
    is_sharded: bool
    offloads: bool
    checkpoints: str
    choices: dict[str, Any] = field(default_factory=dict)
    """Fields of `peer.trainer.computing.compute_choices.ComputeChoices`."""


class RankGroup:
    """All processes of this peer, managed by rank 0 from their start to their end.

    Args:
        num_ranks: the number of processes.
        place: the place that torchrun assigned to this process; None: this process starts the others.

    Raises:
        LocalFault: the store where the processes meet cannot be opened.
    """

    def __init__(self, num_ranks: int, place: Place | None) -> None:
        host, port = ("127.0.0.1", 0) if place is None else (place.host, place.port)
        self._children: list[ChildProcess] = []
        self._is_ending = False
        self.ranks: Ranks | None = None
        self.died: str | None = None
        try:
            self._store = TCPStore(
                host, port, is_master=place is None, wait_for_workers=False, timeout=timedelta(seconds=MEET_SECONDS)
            )
        except RuntimeError as error:
            raise LocalFault(
                f"the processes of this peer cannot meet at {host}:{port} ({_first_line(error)})"
            ) from error
        self.place = place or Place(0, 0, num_ranks, host, self._store.port)
        if place is None:
            self._children = [self._start(rank) for rank in range(1, num_ranks)]
            threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def _start(self, rank: int) -> ChildProcess:
        place = Place(rank, rank, self.place.size, self.place.host, self.place.port)
        command = python_command("peer.trainer.loop.rank_process", json.dumps(asdict(place)))
        return ChildProcess(command, f"for device {rank}", output=None, errors=None, has_own_group=False)

    def _watch(self) -> None:
        """Detect the death of a process even while rank 0 waits for its GPU."""
        while not self._is_ending:
            for rank, child in enumerate(self._children, 1):
                code = child.poll()
                if code is not None and not self._is_ending:
                    self.died = _death(rank, code)
                    return
            time.sleep(LOOK_SECONDS)

    def check(self) -> None:
        """Raise a fault if a process has died.

        Raises:
            RankLost: a process has died.
        """
        if self.died is not None:
            raise RankLost(self.died)

    def explain(self, error: BaseException) -> LocalFault | None:
        """Return the fault behind an exception: a process that died; None if there is no such process."""
        lost = lost_rank(error)
        if lost is not None and self._children:
            end = time.monotonic() + NOTICE_SECONDS
            while self.died is None and time.monotonic() < end:
                time.sleep(0.05)
        return RankLost(self.died) if lost is not None and self.died is not None else lost

    def meet(self, setup: RankSetup, device: torch.device) -> Ranks:
        """Publish the settings for the other ranks, and make the groups.

        Raises:
            LocalFault: the other ranks did not arrive.
        """
        self._store.set(_SETUP, json.dumps(asdict(setup)))
        self.ranks = make_ranks(self.place, self._store, device, setup.is_sharded)
        return self.ranks

    def end(self, *, is_orderly: bool) -> None:
        """Wait until processes that were ordered to end have ended, then kill the remaining processes."""
        self._is_ending = True
        if is_orderly:
            end = time.monotonic() + END_SECONDS
            while time.monotonic() < end and any(child.poll() is None for child in self._children):
                time.sleep(LOOK_SECONDS)
        with contextlib.suppress(KeyboardInterrupt):
            end_all(self._children, KILL_SECONDS)  # closes their standard input, which makes them end
        if is_orderly and dist.is_initialized():
            dist.destroy_process_group()


def join_store(place: Place) -> TCPStore:
    """Return the store of rank 0 of this peer.

    Raises:
        LocalFault: the store cannot be reached.
    """
    try:
        return TCPStore(place.host, place.port, is_master=False, timeout=PATIENCE)
    except RuntimeError as error:
        raise LocalFault(
            f"rank 0 of this peer does not answer at {place.host}:{place.port} ({_first_line(error)})"
        ) from error


def read_setup(store: TCPStore) -> RankSetup:
    """Wait for the settings from rank 0.

    Raises:
        LocalFault: rank 0 has ended.
    """
    try:
        fields: dict[str, Any] = json.loads(store.get(_SETUP))
    except RuntimeError as error:
        raise LocalFault(f"rank 0 of this peer has ended ({_first_line(error)})") from error
    return RankSetup(**fields)


def make_ranks(place: Place, store: TCPStore, device: torch.device, is_sharded: bool) -> Ranks:
    """Make the groups of this process; all ranks call this function.

    Raises:
        LocalFault: some ranks did not arrive in time.
    """
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("peer", store),
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=MEET_SECONDS),
        )
        orders = dist.new_group(backend="gloo", timeout=PATIENCE)
    except RuntimeError as error:
        raise LocalFault(
            f"the {place.size} processes of this peer did not find each other ({_first_line(error)}); see the lines "
            "above, and start again"
        ) from error
    assert orders is not None
    return Ranks(place.rank, place.size, orders, is_sharded)


def _death(rank: int, code: int) -> str:
    return (
        f"process {rank} of this peer {how_it_ended(code)}, and the others cannot continue without it; expected all "
        "devices; see the lines above, and start again: the peer continues from its last checkpoint"
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
