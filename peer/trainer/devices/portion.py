"""The portion of the parameters in one process, and elementwise operations on it, fragment by fragment.

A single or data-parallel process holds whole parameters. A sharded one (FSDP2, `torch.distributed.fsdp.fully_shard`)
holds some rows of each, a contiguous range of the flattened parameter, and needs no other ranges for the operations
here. For each element there is one float32 reference, `ref`: the point from which local work is measured; see
`peer.trainer.loop.mailbox_link`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from averaging.outer.fragment_layout import Fragment, FragmentLayout
from dht.ground.errors import LocalFault, UsageFault
from peer.mailbox.slots import MergeKind
from peer.trainer.devices.at_once import Change, at_once
from peer.trainer.devices.side_stream import SideStream

ROUNDED = (torch.bfloat16, torch.float16)
"""Types that store x only rounded."""
CARRIED = (torch.float32, torch.float64, *ROUNDED)
"""Types of parameters that can be averaged. A fragment's values are sent as float32, to which float64 is rounded."""
LOCAL_SHARE = 0.5
"""Mode streaming: weight of the live values when they are blended with an anchor, as in arXiv 2501.18512."""

Beside = Callable[[Tensor], Sequence[Tensor]]
"""Returns the flat copies of a parameter's values that an optimizer keeps."""


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a flattened tensor from `start`; its values are in `local` (flat; a view of the trained tensor)."""

    local: Tensor
    shape: tuple[int, ...]
    """Shape of the complete tensor."""
    start: int
    divided: tuple[int, ...]
    """Shape of the parameter whose rows are divided among the ranks; it has as many elements as `shape`."""
    is_sharded: bool = False

    @property
    def end(self) -> int:
        return self.start + self.local.numel()

    def range_of(self, rank: int, num_ranks: int) -> tuple[int, int]:
        """Return where the range of a rank begins and ends in the flattened tensor.

        A rank's range is its rows; for an unsharded tensor, all of it for rank 0 and an empty range for other ranks.
        """
        if not self.is_sharded:
            return (0, self.local.numel()) if rank == 0 else (0, 0)
        row = math.prod(self.divided[1:])
        first, behind = range_of_rows(self.divided[0], rank, num_ranks)
        return row * first, row * behind


def part_of(tensor: Tensor) -> Part:
    """Return the part of a tensor in this process: all of it, or the rows of a sharded tensor."""
    shape = tuple(tensor.shape)
    if not is_sharded(tensor):
        return Part(tensor.detach().view(-1), shape, 0, shape)
    sharded: Any = tensor
    if [placement.is_shard(0) for placement in sharded.placements] != [True]:
        raise LocalFault(
            f"a tensor of shape {list(shape)} has the placements {sharded.placements}; expected rows over one group of "
            "processes, as from fully_shard(module); shard without tensor parallelism"
        )
    rows = range_of_rows(shape[0], sharded.device_mesh.get_local_rank(), sharded.device_mesh.size())
    start = rows[0] * math.prod(shape[1:])
    return Part(sharded.to_local().detach().view(-1), shape, start, shape, is_sharded=True)


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a `torch.distributed.tensor.DTensor`. Importing that class takes each process a
    second.
    """
    return hasattr(tensor, "placements")


def range_of_rows(num_rows: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Return (first row, row after the last) of a rank's shard; shares are equal, except that the last are shorter or
    empty.
    """
    share = -(-num_rows // num_ranks)
    return min(rank * share, num_rows), min((rank + 1) * share, num_rows)


@dataclass(frozen=True, slots=True)
class HeldPiece:
    """Consecutive values: live, reference, rounding error (None: exact), and their place in the fragment.

    A parameter of fewer bits than float32 stores x rounded: 1e-4 added to 0.5 in bfloat16 is still 0.5. So `error`
    keeps the rounding error, with x = live + error in float32, and merges accumulate in it. The optimizer's own steps
    change the live values, and are measured exactly.

    Attributes:
        beside: copies of these values that the optimizer keeps.
    """

    live: Tensor
    ref: Tensor
    error: Tensor | None
    place: slice
    beside: tuple[Tensor, ...] = ()

    def exact(self) -> Tensor:
        """Return x in the reference's type and on its device; the result may be a view of the live values."""
        live = self.live.to(self.ref.device, self.ref.dtype)
        return live if self.error is None else live.add_(self.error)  # a copy, because its type differs

    def putting(self, values: Tensor) -> list[Change]:
        """Return the changes that set x to `values`, which are on the reference's device."""
        changes: list[Change] = [partial(self.live.copy_, values)]
        if self.error is not None:
            rounded = values.to(self.live.dtype).to(torch.float32)
            changes.append(partial(self.error.copy_, torch.sub(values, rounded, out=rounded)))
        return changes

    def measuring_anew(self) -> list[Change]:
        """Return the changes that set ref to x."""
        changes: list[Change] = [partial(self.ref.copy_, self.live)]
        if self.error is not None:
            changes.append(partial(self.ref.add_, self.error))
        return changes


class Portion:
    """The portion of all parameters in one process.

    Args:
        parameters: name -> leaf tensor, contiguous, of a dtype in `CARRIED`; must stay the same tensor objects.
        layout: the division of the parameters into fragments.
        ref_device: device of the references and errors; None: the device of each parameter.

    Raises:
        LocalFault: a parameter of the layout is missing, has a different size, has a dtype that cannot be averaged, is
            not contiguous, or is sharded other than by rows.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], layout: FragmentLayout, ref_device: torch.device | None = None
    ) -> None:
        self.layout = layout
        self._parameters = dict(parameters)
        _check_parameters(self._parameters, layout)
        self._refs: dict[str, Tensor] = {}
        self._errors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            local = part_of(parameter).local
            dtype = torch.float64 if local.dtype == torch.float64 else torch.float32
            self._refs[name] = ref = local.to(ref_device or local.device, dtype, copy=True)
            if local.dtype in ROUNDED:
                self._errors[name] = torch.zeros_like(ref)
        self.find_copies: Callable[[], Beside] = lambda: _nothing_beside
        """Called before each merge to find the copies that change with the parameters."""
        self._aside: dict[str, Tensor] = {}
        self._merged = (0, 0)
        """Number of a message, and how many of its pieces are merged."""

    @property
    def live(self) -> Mapping[str, Part]:
        """The live parameters by name."""
        return {name: part_of(parameter) for name, parameter in self._parameters.items()}

    @property
    def references(self) -> Mapping[str, Part]:
        """The points from which local work is measured, by name: flat, float32 (float64 for float64 parameters)."""
        return self._beside(self._refs)

    @property
    def errors(self) -> Mapping[str, Part]:
        """The rounding errors by name, flat float32; only for parameters of fewer bits."""
        return self._beside(self._errors)

    def _beside(self, values: Mapping[str, Tensor]) -> dict[str, Part]:
        return {
            name: replace(part, local=values[name], shape=(math.prod(part.shape),))
            for name, part in self.live.items()
            if name in values
        }

    @property
    def device(self) -> torch.device:
        """The device on which this process trains."""
        return next((part.local.device for part in self.live.values()), torch.device("cpu"))

    def pieces(self, fragment: Fragment, beside: Beside | None = None) -> Iterator[HeldPiece]:
        """Yield the pieces of a fragment in this process, in order, each with its copies from `beside`."""
        beside = beside or _nothing_beside
        for piece in fragment.pieces:
            part = part_of(self._parameters[piece.name])
            first, behind = max(piece.start, part.start), min(piece.start + piece.length, part.end)
            if first < behind:
                inside = slice(first - part.start, behind - part.start)
                place = piece.offset + first - piece.start
                error = self._errors.get(piece.name)
                yield HeldPiece(
                    part.local[inside],
                    self._refs[piece.name][inside],
                    None if error is None else error[inside],
                    slice(place, place + behind - first),
                    tuple(copy[inside] for copy in beside(self._parameters[piece.name])),
                )

    def places(self, fragment: Fragment, rank: int, num_ranks: int) -> list[slice]:
        """Return the places of a rank's pieces in a fragment, in the order of `pieces` on that rank."""
        parts, places = self.live, []
        for piece in fragment.pieces:
            begin, end = parts[piece.name].range_of(rank, num_ranks)
            first, behind = max(piece.start, begin), min(piece.start + piece.length, end)
            if first < behind:
                place = piece.offset + first - piece.start
                places.append(slice(place, place + behind - first))
        return places

    @torch.no_grad()
    def merge(self, fragment: Fragment, kind: MergeKind, values: Tensor, message: int = 0) -> None:
        """Merge values from the network process: `values`, float32 [num_values] of the complete fragment, on the CPU.

        After an exception each piece is either unchanged or merged. Another call with the same `message` (a number
        above 0) merges only the missing pieces.
        """
        merged = self._merged[1] if message and self._merged[0] == message else 0
        for number, piece in enumerate(self.pieces(fragment, self.find_copies()), 1):
            if number > merged:
                changes = _merging(piece, kind, values[piece.place])
                at_once([*changes, partial(setattr, self, "_merged", (message, number))])

    @torch.no_grad()
    def gather_work(self, fragment: Fragment, out: Tensor, side: SideStream | None = None) -> None:
        """Write this process's part of L to its places in `out`, float32 [num_values] of the fragment on the CPU.

        With `side`, the values arrive when the stream's copies have finished; they are the L at the time of this call.
        """
        for piece in self.pieces(fragment):
            live, ref, place = piece.live, piece.ref, piece.place
            if side is not None:
                side.copy((ref - piece.exact()).float(), out[place])
            elif live.device.type == ref.device.type == "cpu" and live.dtype == torch.float32:
                torch.sub(ref, live, out=out[place])
            else:
                out[place].copy_(ref - piece.exact())

    @torch.no_grad()
    def gather_live(self, fragment: Fragment, out: Tensor) -> None:
        """Write this process's part of x to its places in `out`; otherwise as `gather_work`."""
        for piece in self.pieces(fragment):
            out[piece.place].copy_(piece.exact())

    @torch.no_grad()
    def measuring_anew(self, fragment: Fragment) -> list[Change]:
        """Return the changes that set ref to x, so that local work starts again from zero."""
        return [change for piece in self.pieces(fragment) for change in piece.measuring_anew()]

    @torch.no_grad()
    def show(self, fragment: Fragment, values: Tensor) -> None:
        """Copy `values` (float32 [num_values] of the fragment) into the live parameters, for a measurement."""
        for piece in self.pieces(fragment):
            piece.live.copy_(values[piece.place])

    @torch.no_grad()
    def put_aside(self) -> None:
        """Save the live parameters until `take_back`."""
        self._aside = {name: part.local.to("cpu", copy=True) for name, part in self.live.items()}

    @torch.no_grad()
    def take_back(self) -> None:
        """Restore the saved live parameters exactly, if any are saved."""
        if self._aside:
            changes: list[Change] = [partial(part.local.copy_, self._aside[name]) for name, part in self.live.items()]
            at_once([*changes, partial(setattr, self, "_aside", {})])


def _merging(piece: HeldPiece, kind: MergeKind, values: Tensor) -> list[Change]:
    """Return the changes that a message of this kind makes to a piece."""
    live, ref, taken = piece.live, piece.ref, values.to(piece.ref.device)
    if kind == MergeKind.ADD:
        changes: list[Change] = [partial(ref.add_, taken), *_moving(piece.beside, taken)]
        if live.dtype == torch.float32:
            return [partial(live.add_, values.to(live.device)), *changes]
        return [*piece.putting(piece.exact() + taken), *changes]
    if kind == MergeKind.REBASE:
        work = ref - piece.exact()
        moved = torch.sub(taken.to(ref.dtype), work, out=work)
    elif kind == MergeKind.BLEND:
        moved = piece.exact() * LOCAL_SHARE + taken * (1 - LOCAL_SHARE)
    else:
        moved = taken
    copies = _moving(piece.beside, moved - piece.exact()) if piece.beside else []
    return [*piece.putting(moved), partial(ref.copy_, taken), *copies]


def _nothing_beside(parameter: Tensor) -> Sequence[Tensor]:
    return ()


def _moving(copies: Sequence[Tensor], change: Tensor) -> list[Change]:
    return [partial(copy.add_, change.to(copy.device)) for copy in copies]


def _check_parameters(parameters: dict[str, Tensor], layout: FragmentLayout) -> None:
    covered: dict[str, int] = {}
    for fragment in layout.fragments:
        for piece in fragment.pieces:
            covered[piece.name] = covered.get(piece.name, 0) + piece.length
    for name, num_values in covered.items():
        if name not in parameters:
            raise LocalFault(
                f"this module has no parameter {name!r}; expected all parameters that the run averages; use the run's "
                "model"
            )
        if parameters[name].numel() != num_values:
            raise LocalFault(
                f"parameter {name!r} has {parameters[name].numel()} values; expected {num_values}, as in the run; use "
                "the run's model"
            )
        if parameters[name].dtype not in CARRIED:
            got, *names = (str(dtype).removeprefix("torch.") for dtype in (parameters[name].dtype, *CARRIED))
            raise UsageFault(
                f"parameter {name!r} is {got}, which cannot be averaged; "
                f"expected {', '.join(names)}; convert it, or register it as a buffer, which is not averaged"
            )
        if parameters[name].is_meta:
            raise UsageFault(
                f"parameter {name!r} is on the meta device and has no values; expected values; create the module on a "
                "real device"
            )
        if not parameters[name].is_contiguous():
            raise LocalFault(f"parameter {name!r} is not contiguous; make it so with .contiguous() before joining")
    for name in parameters.keys() - covered.keys():
        del parameters[name]
