"""Mapping between parameters and fragments, whose elements are averaged together. Pure.

A fragment is a flat float32 vector that consists of pieces of parameters, in the module's order. Fragments by layers
follow Streaming DiLoCo (arXiv 2501.18512, section 2.2: whole transformer layers travel together). Balanced fragments
divide the flat parameter vector of any module into equal parts.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Cut = Literal["layers", "balanced"]
BUFFER_BITS_RATIO = 8
"""Bits of a buffer's value, which is sent whole, over those of a parameter's value at the usual 4 bits."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` consecutive elements of the flattened parameter `name`, from `start` on, at `offset` in the fragment."""

    name: str
    start: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fixed subset of the parameters: `num_values` float32 values."""

    index: int
    num_values: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class FragmentLayout:
    """All fragments of a model. They are disjoint and together cover each element once.

    `digest` (32 bytes) changes with each name, shape, order or division, so equal digests mean equal layouts.
    """

    fragments: tuple[Fragment, ...]
    digest: bytes

    @property
    def num_values(self) -> int:
        return sum(fragment.num_values for fragment in self.fragments)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each fragment."""
        return tuple(fragment.num_values for fragment in self.fragments)


def build_layout(
    parameter_shapes: Sequence[tuple[str, tuple[int, ...]]], num_fragments: int, by: Cut = "layers"
) -> FragmentLayout:
    """Divide named parameters into `num_fragments` fragments.

    Args:
        parameter_shapes: (name, shape) in the module's own order, each parameter once.
        num_fragments: from 1 to the number of elements; need not divide it.
        by: "layers" keeps whole layers together (a layer is everything under the first number in the names, e.g.
            ``blocks.3``; parameters without a number are separate layers). "balanced" divides anywhere into equal
            sizes. With fewer layers than fragments, "layers" divides like "balanced".

    Raises:
        ValueError: no parameters, a name twice, an unknown `by`, or more fragments than elements.
    """
    sizes = [(name, math.prod(shape)) for name, shape in parameter_shapes if math.prod(shape) > 0]
    total = sum(size for _, size in sizes)
    if len({name for name, _ in sizes}) != len(sizes):
        raise ValueError("a parameter name appears twice; expected each name once")
    if not 1 <= num_fragments <= total:
        raise ValueError(f"num_fragments={num_fragments} does not fit {total} elements; expected 1..{total}")
    if by not in ("layers", "balanced"):
        raise ValueError(f"fragments by {by!r}; expected 'layers' or 'balanced'")
    groups = _layer_sizes(sizes)
    if by == "layers" and len(groups) >= num_fragments:
        lengths = _partition(groups, num_fragments)
    else:
        cuts = [total * k // num_fragments for k in range(num_fragments + 1)]
        lengths = [b - a for a, b in itertools.pairwise(cuts)]
    fragments = tuple(_cut(sizes, lengths))
    described = repr([(name, tuple(shape)) for name, shape in parameter_shapes]) + repr(lengths)
    return FragmentLayout(fragments, hashlib.sha256(described.encode()).digest())


def averages_few_buffers(num_buffer_values: int, num_parameters: int) -> bool:
    """Return whether a new run averages its model's buffers by default: if there are some, and few.

    Sending as many bits for buffers as for all parameters is too much for a default.
    """
    return 0 < num_buffer_values * BUFFER_BITS_RATIO <= num_parameters


def with_buffers(layout: FragmentLayout, buffer_shapes: Sequence[tuple[str, tuple[int, ...]]]) -> FragmentLayout:
    """Return the layout with one more fragment at the end, which holds the module's buffers.

    Args:
        buffer_shapes: (name, shape) in the module's own order; if empty, the layout is returned unchanged.
    """
    sizes = [(name, math.prod(shape)) for name, shape in buffer_shapes if math.prod(shape) > 0]
    num_values = sum(size for _, size in sizes)
    if not num_values:
        return layout
    offsets = itertools.accumulate((size for _, size in sizes), initial=0)
    pieces = tuple(Piece(name, 0, size, offset) for (name, size), offset in zip(sizes, offsets, strict=False))
    described = layout.digest + repr([(name, tuple(shape)) for name, shape in buffer_shapes]).encode()
    last = Fragment(len(layout.fragments), num_values, pieces)
    return FragmentLayout((*layout.fragments, last), hashlib.sha256(described).digest())


def _layer_sizes(sizes: Sequence[tuple[str, int]]) -> list[int]:
    def layer_of(name: str) -> str:
        parts = name.split(".")
        for position, part in enumerate(parts):
            if part.isdigit():
                return ".".join(parts[: position + 1])
        return name

    grouped = itertools.groupby(sizes, key=lambda item: layer_of(item[0]))
    return [sum(size for _, size in items) for _, items in grouped]


def _partition(groups: Sequence[int], num_parts: int) -> list[int]:
    """Divide `groups` into contiguous non-empty parts whose largest sum is as small as possible."""

    def parts_for(limit: int) -> list[int] | None:
        parts: list[int] = []
        for position, size in enumerate(groups):
            left = len(groups) - position
            must_open = num_parts - len(parts) >= left
            if parts and parts[-1] + size <= limit and not must_open:
                parts[-1] += size
            else:
                parts.append(size)
        return parts if len(parts) <= num_parts else None

    low, high = max(groups), sum(groups)
    while low < high:
        middle = (low + high) // 2
        if parts_for(middle) is None:
            low = middle + 1
        else:
            high = middle
    parts = parts_for(low)
    assert parts is not None
    return parts


def _cut(sizes: Sequence[tuple[str, int]], lengths: Sequence[int]) -> Iterator[Fragment]:
    remaining = iter(sizes)
    name, size, start = "", 0, 0
    for index, length in enumerate(lengths):
        pieces: list[Piece] = []
        filled = 0
        while filled < length:
            if start == size:
                name, size = next(remaining)
                start = 0
            taken = min(size - start, length - filled)
            pieces.append(Piece(name, start, taken, filled))
            start += taken
            filled += taken
        yield Fragment(index, length, tuple(pieces))
