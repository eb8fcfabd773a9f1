"""Encoding errors of a reducer's committed broadcasts, by range of values. Pure.

Each round divides the fragment anew, by its members and the measured rates of their lines. Errors are therefore stored
by range, and a new shard takes the errors that overlap it. Shards and errors both begin and end between blocks of the
run's codec.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from averaging.codec.blocks import SCALE_BYTES, EncodedBlocks
from averaging.outer.shard_mean import encoded_zeros

MOST_OF_AVERAGED = 2
"""Errors are kept for this many times the values that this peer averaged in the last round. That is its new range, and
an old one of the same size, which returns to it when a new member leaves again."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Errors of values [start, end)."""

    start: int
    end: int
    error: EncodedBlocks

    def between(self, start: int, end: int) -> _Part:
        """Return a copy of the part inside [start, end)."""
        start, end = max(start, self.start), min(end, self.end)
        blocks = self.error.slice_blocks(start - self.start, end - start)
        return _Part(start, end, replace(blocks, scales=bytes(blocks.scales), codes=bytes(blocks.codes)))


@dataclass
class BroadcastErrors:
    """Errors of one fragment, each in the form that `averaging.outer.shard_mean.keep_error` returns. The ranges do not
    overlap.
    """

    _parts: list[_Part] = field(default_factory=list)
    """In the order of the calls of `put`."""

    @property
    def num_values(self) -> int:
        return sum(part.end - part.start for part in self._parts)

    def within(self, start: int, end: int) -> EncodedBlocks | None:
        """Return the errors of values [start, end), zero where unknown, or None if no error in the range is known."""
        parts = [part for part in self._parts if part.start < end and start < part.end]
        if not parts:
            return None
        if len(parts) == 1 and (parts[0].start, parts[0].end) == (start, end):
            return parts[0].error
        found = encoded_zeros(end - start, parts[0].error.block_size)
        scales, codes = bytearray(found.scales), bytearray(found.codes)
        for part in (part.between(start, end) for part in parts):
            at_code = part.start - start
            at_scale = at_code // found.block_size * SCALE_BYTES
            scales[at_scale : at_scale + len(part.error.scales)] = part.error.scales
            codes[at_code : at_code + len(part.error.codes)] = part.error.codes
        return replace(found, scales=bytes(scales), codes=bytes(codes))

    def put(self, start: int, end: int, error: EncodedBlocks | None) -> None:
        """Replace the errors of values [start, end). None: nothing was lost there."""
        kept: list[_Part] = []
        for part in self._parts:
            if part.end <= start or end <= part.start:
                kept.append(part)
                continue
            kept += [part.between(part.start, start)] if part.start < start else []
            kept += [part.between(end, part.end)] if end < part.end else []
        self._parts = kept if error is None else [*kept, _Part(start, end, error)]

    def limit(self, num_averaged: int) -> None:
        """Forget the oldest errors beyond the limit for a peer that averaged `num_averaged` values in its last
        round.
        """
        while self.num_values > MOST_OF_AVERAGED * num_averaged:
            del self._parts[0]

    def clear(self) -> None:
        self._parts.clear()
