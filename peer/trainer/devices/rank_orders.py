"""The processes ("ranks") of one peer that trains on several devices: rank 0 leads, the others do what it orders.

Rank 0 has the mailbox, the network process and every decision; each order is one broadcast. So all ranks take the same
inner steps and apply the same merges between the same two of them. Orders and the values that go with them travel over
a gloo group of their own, on the CPU, one fragment at a time. Gradients travel in the group of the devices (nccl or
gloo) as DDP (arXiv 2006.15704) and FSDP2 (arXiv 2304.11277) do it.

A rank that dies closes its connections, and the others' next exchange fails: they end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from averaging.outer.fragment_layout import Fragment
from dht.ground.errors import LocalFault
from peer.mailbox.slots import MergeKind
from peer.trainer.devices.at_once import Change, at_once
from peer.trainer.devices.portion import Part, Portion
from peer.trainer.devices.side_stream import SideStream

PATIENCE = timedelta(days=30)
"""For the next order: rank 0 may wait for the swarm as long as that takes; a dead one is noticed at once."""
_FIELDS = 3


class OrderKind(IntEnum):
    """What rank 0 orders."""

    STEP = 1  # number of positions, age of the optimizer, factor of the rate; the positions follow
    MERGE = 2  # fragment, kind; the fragment's values follow
    SEND_WORK = 3  # fragment; every rank sends what it has of L
    SEND_LIVE = 4  # fragment; the same with the live parameters
    MEASURE_ANEW = 5  # fragment
    MEASURE = 6  # put the live parameters aside; anchors follow, then LOSS
    SHOW = 7  # fragment; the fragment's values follow
    LOSS = 8  # 1: measure the validation loss, 0: do not; then take the live parameters back
    KEEP = 9  # every rank sends what it has of a checkpoint
    RESTORE = 10  # number of the checkpoint
    END = 11


@dataclass(frozen=True, slots=True)
class Order:
    """One order and its numbers, whose meaning stands at `OrderKind`."""

    kind: OrderKind
    numbers: tuple[float, ...] = ()


@dataclass
class Ranks:
    """This process's place among the processes of its peer, once their groups are made.

    Attributes:
        rank, size: this process's number and how many there are.
        orders: the gloo group for orders and values; None: there is nobody to order.
        is_sharded: whether each rank holds some rows of the parameters, or all of them.
    """

    rank: int
    size: int
    orders: dist.ProcessGroup | None
    is_sharded: bool

    @property
    def is_alone(self) -> bool:
        """Whether this process needs no other one for anything."""
        return self.size == 1 and not self.is_sharded

    # ------------------------------------------------------------------------------------------------- orders

    def order(self, kind: OrderKind, *numbers: float) -> None:
        """Tell all other ranks what comes; rank 0 only."""
        if self.size == 1:
            return
        message = torch.zeros(1 + _FIELDS, dtype=torch.float64)
        message[0] = kind
        message[1 : 1 + len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        self._broadcast(message)

    def next_order(self) -> Order:
        """Wait for what rank 0 orders; every other rank."""
        message = torch.zeros(1 + _FIELDS, dtype=torch.float64)
        self._broadcast(message)
        return Order(OrderKind(int(message[0])), tuple(message[1:].tolist()))

    def step(self, positions: NDArray[np.int64], optimizer_age: int, factor: float = 1.0) -> None:
        """Order the next inner step, with what the run's schedule leaves of the rate; rank 0 only."""
        self.order(OrderKind.STEP, len(positions), optimizer_age, factor)
        self._broadcast(torch.from_numpy(positions.copy()))

    def positions(self, order: Order) -> NDArray[np.int64]:
        """Where an ordered step reads; int64."""
        positions = torch.zeros(int(order.numbers[0]), dtype=torch.int64)
        self._broadcast(positions)
        return positions.numpy()

    # ------------------------------------------------------------------------------------------------- values

    def merge(self, portion: Portion, fragment: Fragment, kind: MergeKind, values: Tensor, message: int) -> None:
        """Let every rank take over what came for a fragment; rank 0 only. `message` as of `Portion.merge`."""
        self.order(OrderKind.MERGE, fragment.index, kind)
        self._broadcast(values)
        portion.merge(fragment, kind, values, message)

    def gather_work(self, portion: Portion, fragment: Fragment, out: Tensor, side: SideStream | None = None) -> None:
        """Fill `out`, float32 [num_values], with all ranks' parts of L; rank 0 only.

        Args:
            side: see `Portion.gather_work`; only where all of it is here.
        """
        portion.gather_work(fragment, out, side)
        self._gather_others(portion, fragment, OrderKind.SEND_WORK, out)

    def gather_live(self, portion: Portion, fragment: Fragment, out: Tensor) -> None:
        """The same with the live parameters."""
        portion.gather_live(fragment, out)
        self._gather_others(portion, fragment, OrderKind.SEND_LIVE, out)

    def _gather_others(self, portion: Portion, fragment: Fragment, kind: OrderKind, out: Tensor) -> None:
        if not self.is_sharded:
            return
        self.order(kind, fragment.index)
        for rank in range(1, self.size):
            places = portion.places(fragment, rank, self.size)
            self._receive_into(rank, [out[place] for place in places])

    def measuring_anew(self, portion: Portion, fragment: Fragment) -> list[Change]:
        """Local work of a fragment begins anew on every other rank, and on this one with these changes; rank 0 only."""
        self.order(OrderKind.MEASURE_ANEW, fragment.index)
        return portion.measuring_anew(fragment)

    def show(self, portion: Portion, fragment: Fragment, values: Tensor) -> None:
        """Put values into the live parameters of all ranks that measure; rank 0 only."""
        if self.is_sharded:
            self.order(OrderKind.SHOW, fragment.index)
            self._broadcast(values)
        portion.show(fragment, values)

    def whole(self, part: Part) -> Tensor:
        """A copy, on the CPU of rank 0, of a tensor of which each rank holds a part; all ranks call it."""
        if not part.is_sharded:
            return part.local.detach().to("cpu", copy=True).view(part.shape) if self.rank == 0 else torch.empty(0)
        if self.rank:
            self._send(part.local)
            return torch.empty(0)
        whole = torch.empty(part.shape, dtype=part.local.dtype)
        flat = whole.view(-1)
        flat[part.start : part.end].copy_(part.local)
        for rank in range(1, self.size):
            begin, end = part.range_of(rank, self.size)
            self._receive_into(rank, [flat[begin:end]])
        return whole

    def mean(self, value: float) -> float:
        """The mean over all ranks, on each of them; all call it."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        with _watched():
            dist.all_reduce(total, group=self.orders)
        return float(total) / self.size

    def agree(self, is_well: bool) -> bool:
        """Whether all ranks say so; all call it."""
        return self.mean(1.0 if is_well else 0.0) == 1.0

    # ------------------------------------------------------------------------------------------------- the others

    def obey(self, portion: Portion, order: Order) -> None:
        """Do what concerns only this rank's portion; every rank but 0."""
        fragment = portion.layout.fragments[int(order.numbers[0])]
        match order.kind:
            case OrderKind.MERGE:
                values = self._values(fragment)
                portion.merge(fragment, MergeKind(int(order.numbers[1])), values)
            case OrderKind.SHOW:
                portion.show(fragment, self._values(fragment))
            case OrderKind.MEASURE_ANEW:
                at_once(portion.measuring_anew(fragment))
            case OrderKind.SEND_WORK | OrderKind.SEND_LIVE:
                values = torch.empty(fragment.num_values)
                is_work = order.kind == OrderKind.SEND_WORK
                (portion.gather_work if is_work else portion.gather_live)(fragment, values)
                places = portion.places(fragment, self.rank, self.size)
                self._send(torch.cat([values[place] for place in places]) if places else torch.empty(0))
            case _:
                raise LocalFault(f"rank {self.rank} was ordered {order.kind.name}, which is no work on its portion")

    def _values(self, fragment: Fragment) -> Tensor:
        values = torch.empty(fragment.num_values)
        self._broadcast(values)
        return values

    # ------------------------------------------------------------------------------------------------- transport

    def _broadcast(self, tensor: Tensor) -> None:
        if self.size == 1:
            return
        with _watched():
            dist.broadcast(tensor, 0, group=self.orders)

    def _send(self, values: Tensor) -> None:
        if values.numel():
            with _watched():
                dist.send(values.detach().to("cpu").contiguous(), 0, group=self.orders)

    def _receive_into(self, rank: int, targets: list[Tensor]) -> None:
        num_values = sum(target.numel() for target in targets)
        if not num_values:
            return
        values = torch.empty(num_values, dtype=targets[0].dtype)
        with _watched():
            dist.recv(values, rank, group=self.orders)
        start = 0
        for target in targets:
            target.copy_(values[start : start + target.numel()])
            start += target.numel()


ALONE = Ranks(0, 1, None, is_sharded=False)
"""A peer that is one process."""


class RankLost(LocalFault):
    """Another process of this peer has ended."""


def lost_rank(error: BaseException) -> RankLost | None:
    """What an exception from an exchange between ranks means; None when it is about something else."""
    if isinstance(error, RankLost):
        return error
    is_exchange = isinstance(error, dist.DistError) or "gloo" in str(error) or "onnection closed by peer" in str(error)
    if not (isinstance(error, RuntimeError) and is_exchange):
        return None
    return RankLost(
        "another process of this peer ended, and the others cannot go on without it "
        f"({str(error).splitlines()[0][-120:]}); expected all of its devices; see the lines above, and start again"
    )


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        lost = lost_rank(error)
        if lost is None:
            raise
        raise lost from error
