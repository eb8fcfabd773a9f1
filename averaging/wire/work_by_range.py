"""Work that differs between ranges of values: some was averaged, the rest waits and grows. Pure.

A line that carries only part of the shards each round leaves work of several ages in the residual. Each range has
separate tokens, steps and base, so fresh work does not count as old as the oldest, and only work that is too old is
dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from averaging.wire.messages import MAX_PARTS, Work, WorkPart, parts_within

Parts = tuple[WorkPart, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Work in the form of `averaging.wire.messages.Work`; zero tokens mean no work."""

    tokens: int = 0
    steps: int = 0
    base_version: int = 0
    parts: Parts = ()

    @classmethod
    def of_parts(cls, parts: Sequence[WorkPart]) -> Waiting:
        """Combine the work in these ranges, merging ranges down to the number that a contribution may have."""
        kept = _few(parts)
        busy = [part for part in kept if part.tokens]
        if not busy:
            return cls()
        return cls(
            _token_mean(kept),
            max(part.steps for part in busy),
            min(part.base_version for part in busy),
            kept if len(kept) > 1 else (),
        )


def with_more(work: Work, num_values: int, more: Work, start: int, end: int) -> Waiting:
    """Return the sum of both works, using only the values [start, end) of `more`."""
    ends = {start, end, num_values, *(part.end for part in (*work.parts, *more.parts))}
    cuts = sorted(cut for cut in ends if 0 < cut <= num_values)
    parts = []
    begin = 0
    for cut in cuts:
        part = replace(next(part for _, part in parts_within(work, begin, cut)), end=cut)
        if start <= begin and cut <= end:
            part = _both(part, next(part for _, part in parts_within(more, begin, cut)))
        parts.append(part)
        begin = cut
    return Waiting.of_parts(parts)


def without(work: Work, num_values: int, is_gone: Callable[[WorkPart], bool]) -> tuple[Waiting, list[tuple[int, int]]]:
    """Return (the work without the parts for which `is_gone` is True, the values [start, end) of those parts)."""
    kept, gone, begin = [], [], 0
    for _, part in parts_within(work, 0, num_values):
        if part.tokens and is_gone(part):
            gone.append((begin, part.end))
            part = WorkPart(part.end, 0, 0, 0)
        kept.append(part)
        begin = part.end
    return Waiting.of_parts(kept), gone


def with_bases_up_to(work: Work, newest: int) -> Waiting:
    """Return the work with no base after `newest`."""
    parts = tuple(replace(part, base_version=min(part.base_version, newest)) for part in work.parts)
    return Waiting(work.tokens, work.steps, min(work.base_version, newest), parts)


def oldest_base(work: Work, start: int, end: int) -> int:
    """Return the version that the oldest work on values [start, end) began on."""
    bases = (part.base_version for _, part in parts_within(work, start, end) if part.tokens)
    return min(bases, default=work.base_version)


def is_whole(work: Work, num_values: int) -> bool:
    """Return whether the parts cover a fragment of `num_values` and match the totals of the work."""
    if not work.parts:
        return True
    ends = [0, *(part.end for part in work.parts)]
    busy = [part for part in work.parts if part.tokens and part.steps]
    return (
        all(before < after for before, after in itertools.pairwise(ends))
        and ends[-1] == num_values
        and len(busy) == sum(part.tokens > 0 or part.steps > 0 for part in work.parts)
        and bool(busy)
        and work.tokens == _token_mean(work.parts)
        and work.steps == max(part.steps for part in busy)
        and work.base_version == min(part.base_version for part in busy)
    )


def _both(part: WorkPart, more: WorkPart) -> WorkPart:
    """Add two works on the same values, on the older base: no guard would believe all tokens on the newer one."""
    if not (part.tokens and more.tokens):
        return part if part.tokens else replace(more, end=part.end)
    base_version = min(part.base_version, more.base_version)
    return WorkPart(part.end, part.tokens + more.tokens, part.steps + more.steps, base_version)


def _few(parts: Sequence[WorkPart]) -> Parts:
    """Merge equal neighbours, then the smallest part with a neighbour, until there are few enough."""
    found: list[WorkPart] = []
    for part in parts:
        if found and replace(found[-1], end=part.end) == part:
            found.pop()
        found.append(part)
    while len(found) > MAX_PARTS:
        sizes = [part.end - begin for part, begin in zip(found, [0, *(part.end for part in found)], strict=False)]
        at = min(range(len(found) - 1), key=lambda at: min(sizes[at], sizes[at + 1]))
        found[at : at + 2] = [_joined((sizes[at], found[at]), (sizes[at + 1], found[at + 1]))]
    return tuple(found)


def _joined(first: tuple[int, WorkPart], second: tuple[int, WorkPart]) -> WorkPart:
    """Merge two neighbours: tokens and steps are the mean over values, the base is the mean over tokens."""
    pair = (first, second)
    num_values = first[0] + second[0]
    token_values = sum(size * part.tokens for size, part in pair)
    steps = -(-sum(size * part.steps for size, part in pair) // num_values)
    bases = sum(size * part.tokens * part.base_version for size, part in pair)
    return WorkPart(second[1].end, -(-token_values // num_values), steps, bases // token_values if token_values else 0)


def _token_mean(parts: Sequence[WorkPart]) -> int:
    """Return the mean tokens over values, rounded up."""
    begins = [0, *(part.end for part in parts)]
    token_values = sum((part.end - begin) * part.tokens for part, begin in zip(parts, begins, strict=False))
    return -(-token_values // parts[-1].end)
