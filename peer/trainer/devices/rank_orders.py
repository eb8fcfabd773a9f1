"""The processes ("ranks") of one peer that trains on several devices: rank 0 sends orders, and the others execute them.

Rank 0 has the mailbox and the network process, and makes every decision; each order is one broadcast. So all ranks
take the same inner steps and apply the same merges between the same two steps. Orders and their values are sent over a
separate gloo group, on the CPU, one fragment at a time. Gradients are sent in the group of the devices (nccl or gloo)
as in DDP (arXiv 2006.15704) and FSDP2 (arXiv 2304.11277).

When a rank dies, its connections close; the next exchange of the other ranks fails, and they end.
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
"""Time limit for the next order: rank 0 may wait long for the swarm. A dead rank is detected at once."""
_FIELDS = 3


class OrderKind(IntEnum):
    """The kinds of orders from rank 0."""

    STEP = 1  # number of positions, age of the optimizer, learning rate factor; the positions follow
    MERGE = 2  # fragment, kind; the fragment's values follow
    SEND_WORK = 3  # fragment; each rank sends its part of L
    SEND_LIVE = 4  # fragment; each rank sends its part of the live parameters
    MEASURE_ANEW = 5  # fragment
    MEASURE = 6  # save the live parameters; anchors follow, then LOSS
    SHOW = 7  # fragment; the fragment's values follow
    LOSS = 8  # 1: measure the validation loss, 0: do not; then restore the live parameters
    KEEP = 9  # each rank sends its part of a checkpoint
    RESTORE = 10  # number of the checkpoint
    END = 11


@dataclass(frozen=True, slots=True)
class Order:
    """An order and its numbers, which `OrderKind` describes."""

    kind: OrderKind
    numbers: tuple[float, ...] = ()


@dataclass
class Ranks:
    """This process's place among the processes of its peer, after their groups were made.

    Attributes:
        rank, size: this process's number and the number of processes.
        orders: the gloo group for orders and values; None: there are no other processes.
        is_sharded: whether each rank holds some rows of the parameters, instead of all.
    """

    rank: int
    size: int
    orders: dist.ProcessGroup | None
    is_sharded: bool

    @property
    def is_alone(self) -> bool:
        """Whether this process works without other processes."""
        return self.size == 1 and not self.is_sharded

    # ------------------------------------------------------------------------------------------------- orders

    def order(self, kind: OrderKind, *numbers: float) -> None:
        """Announce an order to all other ranks. Only rank 0 calls this method."""
        if self.size == 1:
            return
        message = torch.zeros(1 + _FIELDS, dtype=torch.float64)
        message[0] = kind
        message[1 : 1 + len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        self._broadcast(message)

    def next_order(self) -> Order:
        """Wait for the next order from rank 0. Only the other ranks call this method."""
        message = torch.zeros(1 + _FIELDS, dtype=torch.float64)
        self._broadcast(message)
        return Order(OrderKind(int(message[0])), tuple(message[1:].tolist()))

    def step(self, positions: NDArray[np.int64], optimizer_age: int, factor: float = 1.0) -> None:
        """Order the next inner step, with the schedule's factor of the learning rate. Only rank 0 calls this method."""
        self.order(OrderKind.STEP, len(positions), optimizer_age, factor)
        self._broadcast(torch.from_numpy(positions.copy()))

    def positions(self, order: Order) -> NDArray[np.int64]:
        """Return the positions that an ordered step reads; int64."""
        positions = torch.zeros(int(order.numbers[0]), dtype=torch.int64)
        self._broadcast(positions)
        return positions.numpy()

    # ------------------------------------------------------------------------------------------------- values

    def merge(self, portion: Portion, fragment: Fragment, kind: MergeKind, values: Tensor, message: int) -> None:
        """Merge a fragment's values on every rank. Only rank 0 calls this method. `message`: see `Portion.merge`."""
        self.order(OrderKind.MERGE, fragment.index, kind)
        self._broadcast(values)
        portion.merge(fragment, kind, values, message)

    def gather_work(self, portion: Portion, fragment: Fragment, out: Tensor, side: SideStream | None = None) -> None:
        """Fill `out`, float32 [num_values], with all ranks' parts of L. Only rank 0 calls this method.

        Args:
            side: see `Portion.gather_work`; only if rank 0 holds all of the fragment.
        """
        portion.gather_work(fragment, out, side)
        self._gather_others(portion, fragment, OrderKind.SEND_WORK, out)

    def gather_live(self, portion: Portion, fragment: Fragment, out: Tensor) -> None:
        """Fill `out` with all ranks' parts of the live parameters; otherwise as `gather_work`."""
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
        """Set ref to x on every other rank, and return the same changes for rank 0, the only caller."""
        self.order(OrderKind.MEASURE_ANEW, fragment.index)
        return portion.measuring_anew(fragment)

    def show(self, portion: Portion, fragment: Fragment, values: Tensor) -> None:
        """Copy values into the live parameters of all ranks that measure. Only rank 0 calls this method."""
        if self.is_sharded:
            self.order(OrderKind.SHOW, fragment.index)
            self._broadcast(values)
        portion.show(fragment, values)

    def whole(self, part: Part) -> Tensor:
        """Return a copy, on the CPU of rank 0, of a tensor whose parts are on several ranks; all ranks call this
        method.
        """
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
        """Return the mean over all ranks; all ranks call this method and get the result."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        with _watched():
            dist.all_reduce(total, group=self.orders)
        return float(total) / self.size

    def agree(self, is_well: bool) -> bool:
        """Return whether `is_well` is true on all ranks; all ranks call this method."""
        return self.mean(1.0 if is_well else 0.0) == 1.0

    # ------------------------------------------------------------------------------------------------- the others

    def obey(self, portion: Portion, order: Order) -> None:
        """Execute an order that concerns only this rank's portion; every rank but 0 calls this method."""
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
                raise LocalFault(f"rank {self.rank} received the order {order.kind.name}; expected work on its portion")

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
"""The place of a peer's only process."""


class RankLost(LocalFault):
    """Another process of this peer has ended."""


def lost_rank(error: BaseException) -> RankLost | None:
    """Return the `RankLost` fault for a failed exchange between ranks; None for any other exception."""
    if isinstance(error, RankLost):
        return error
    is_exchange = isinstance(error, dist.DistError) or "gloo" in str(error) or "onnection closed by peer" in str(error)
    if not (isinstance(error, RuntimeError) and is_exchange):
        return None
    return RankLost(
        "another process of this peer ended, and the others cannot continue without it "
        f"({str(error).splitlines()[0][-120:]}); expected all devices; see the lines above, and start again"
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
