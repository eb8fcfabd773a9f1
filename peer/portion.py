"""What one process holds of the parameters, and what it does to them: elementwise, fragment by fragment.

Alone, or data-parallel, a process holds whole parameters. Sharded (FSDP2, `torch.distributed.fsdp.fully_shard`), it
holds some rows of each, a contiguous range of the flattened parameter, and nothing here needs the others' ranges.
Per element there is one float32 reference, `ref`: the point from which local work is measured; see `trainer_link`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from averaging.fragments import Fragment, FragmentLayout
from dht.errors import LocalFault
from peer.mailbox import MergeKind
from peer.side_stream import SideStream


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a flattened tensor: from `start`, here as `local` (flat; a view of what is trained)."""

    local: Tensor
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    divided: tuple[int, ...]
    """Shape of the parameter whose rows the ranks share; as many elements as `shape`."""
    is_sharded: bool = False

    @property
    def end(self) -> int:
        return self.start + self.local.numel()

    def range_of(self, rank: int, num_ranks: int) -> tuple[int, int]:
        """Where the part of any rank begins and ends in the flattened tensor."""
        row = math.prod(self.divided[1:])
        first, behind = range_of_rows(self.divided[0], rank, num_ranks)
        return row * first, row * behind


def part_of(tensor: Tensor) -> Part:
    """What this process holds of a tensor: all of it, or of a sharded one its rows."""
    shape = tuple(tensor.shape)
    if not is_sharded(tensor):
        return Part(tensor.detach().view(-1), shape, 0, shape)
    sharded: Any = tensor
    if [placement.is_shard(0) for placement in sharded.placements] != [True]:
        raise LocalFault(
            f"a tensor of shape {list(shape)} is placed {sharded.placements}; expected rows over one group of "
            "processes, as fully_shard(module) places them; shard without tensor parallelism"
        )
    rows = range_of_rows(shape[0], sharded.device_mesh.get_local_rank(), sharded.device_mesh.size())
    start = rows[0] * math.prod(shape[1:])
    return Part(sharded.to_local().detach().view(-1), shape, start, shape, is_sharded=True)


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a `torch.distributed.tensor.DTensor`, which costs every process a second to import."""
    return hasattr(tensor, "placements")


def range_of_rows(num_rows: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """First row of a rank's shard and the row behind its last: equal shares, the last ones shorter or empty."""
    share = -(-num_rows // num_ranks)
    return min(rank * share, num_rows), min((rank + 1) * share, num_rows)


class Portion:
    """One process's portion of all parameters.

    Args:
        parameters: name -> leaf tensor, contiguous, of any floating dtype; they must stay the same tensor objects.
        layout: which elements make up which fragment.
        ref_device: where the references live; by default with their parameters.

    Raises:
        LocalFault: a parameter of the layout is missing, has another size, is not contiguous, or is sharded otherwise
            than by rows.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], layout: FragmentLayout, ref_device: torch.device | None = None
    ) -> None:
        self.layout = layout
        self._parameters = dict(parameters)
        _check_parameters(self._parameters, layout)
        self._refs: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            local = part_of(parameter).local
            self._refs[name] = local.to(ref_device or local.device, torch.float32, copy=True)
        self._aside: dict[str, Tensor] = {}

    @property
    def is_whole(self) -> bool:
        """Whether every parameter is here entirely."""
        return not any(is_sharded(parameter) for parameter in self._parameters.values())

    @property
    def live(self) -> Mapping[str, Part]:
        """The live parameters by name."""
        return {name: part_of(parameter) for name, parameter in self._parameters.items()}

    @property
    def references(self) -> Mapping[str, Part]:
        """The points from which local work is measured: flat float32, by name."""
        return {
            name: replace(part, local=self._refs[name], shape=(math.prod(part.shape),))
            for name, part in self.live.items()
        }

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return next((part.local.device for part in self.live.values()), torch.device("cpu"))

    def num_values(self, fragment: Fragment) -> int:
        """How many values of a fragment are here."""
        return sum(place.stop - place.start for _, _, place in self.pieces(fragment))

    def pieces(self, fragment: Fragment) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """(live, reference, place in the fragment) of what is here, in the fragment's order."""
        for piece in fragment.pieces:
            part = part_of(self._parameters[piece.name])
            first, behind = max(piece.start, part.start), min(piece.start + piece.length, part.end)
            if first < behind:
                inside = slice(first - part.start, behind - part.start)
                place = piece.offset + first - piece.start
                yield part.local[inside], self._refs[piece.name][inside], slice(place, place + behind - first)

    def places(self, fragment: Fragment, rank: int, num_ranks: int) -> list[slice]:
        """Where the pieces of any rank lie in a fragment, in the order in which they are `pieces` there."""
        parts, places = self.live, []
        for piece in fragment.pieces:
            begin, end = parts[piece.name].range_of(rank, num_ranks)
            first, behind = max(piece.start, begin), min(piece.start + piece.length, end)
            if first < behind:
                place = piece.offset + first - piece.start
                places.append(slice(place, place + behind - first))
        return places

    @torch.no_grad()
    def merge(self, fragment: Fragment, kind: MergeKind, values: Tensor, merge_alpha: float) -> None:
        """Take over what the network side sent; `values` float32 [num_values] of the whole fragment, on the CPU."""
        for live, ref, place in self.pieces(fragment):
            taken = values[place]
            if kind in (MergeKind.ADD, MergeKind.REBASE):
                is_add = kind == MergeKind.ADD
                if is_add and live.dtype == torch.float32:
                    live.add_(taken.to(live.device))
                    ref.add_(taken.to(ref.device))
                    continue
                work = ref - live.to(ref.device, torch.float32)
                ref.copy_(ref + taken.to(ref.device) if is_add else taken)
                live.copy_(ref - work)
                if live.dtype != torch.float32:
                    # x rounded coarsely; taking ref from the rounded x keeps L what it was.
                    torch.add(live.to(ref.device, torch.float32), work, out=ref)
                continue
            ref.copy_(taken)
            if kind == MergeKind.BLEND:
                live.copy_(live.to(torch.float32) * merge_alpha + taken.to(live.device) * (1 - merge_alpha))
            else:
                live.copy_(taken)

    @torch.no_grad()
    def gather_work(self, fragment: Fragment, out: Tensor, side: SideStream | None = None) -> None:
        """Write what is here of L to its places in `out`, float32 [num_values] of the whole fragment on the CPU.

        With `side`, it is there once the copies that `side` was given are done; L is that of now all the same.
        """
        for live, ref, place in self.pieces(fragment):
            if side is not None:
                side.copy(ref - live.to(ref.device, torch.float32), out[place])
            elif live.device.type == ref.device.type == "cpu" and live.dtype == torch.float32:
                torch.sub(ref, live, out=out[place])
            else:
                out[place].copy_(ref - live.to(ref.device, torch.float32))

    @torch.no_grad()
    def gather_live(self, fragment: Fragment, out: Tensor) -> None:
        """The same with the live parameters."""
        for live, _, place in self.pieces(fragment):
            out[place].copy_(live)

    @torch.no_grad()
    def measure_anew(self, fragment: Fragment) -> None:
        """Local work begins here: ref := x."""
        for live, ref, _ in self.pieces(fragment):
            ref.copy_(live)

    @torch.no_grad()
    def show(self, fragment: Fragment, values: Tensor) -> None:
        """Put `values` (float32 [num_values] of the whole fragment) into the live parameters, for a measurement."""
        for live, _, place in self.pieces(fragment):
            live.copy_(values[place])

    @torch.no_grad()
    def put_aside(self) -> None:
        """Keep the live parameters until `take_back`."""
        self._aside = {name: part.local.to("cpu", copy=True) for name, part in self.live.items()}

    @torch.no_grad()
    def take_back(self) -> None:
        """Put the same bits back."""
        for name, part in self.live.items():
            part.local.copy_(self._aside[name])
        self._aside = {}


def _check_parameters(parameters: dict[str, Tensor], layout: FragmentLayout) -> None:
    covered: dict[str, int] = {}
    for fragment in layout.fragments:
        for piece in fragment.pieces:
            covered[piece.name] = covered.get(piece.name, 0) + piece.length
    for name, num_values in covered.items():
        if name not in parameters:
            raise LocalFault(f"the run averages a parameter {name!r}; this module has none of that name; use its model")
        if parameters[name].numel() != num_values:
            raise LocalFault(
                f"parameter {name!r} has {parameters[name].numel()} values; the run's has {num_values}; use its model"
            )
        if not parameters[name].is_contiguous():
            raise LocalFault(f"parameter {name!r} is not contiguous; make it so with .contiguous() before joining")
    for name in parameters.keys() - covered.keys():
        del parameters[name]
