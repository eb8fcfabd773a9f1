"""Choice of the shards that a slow line can send to the reducers in time. Pure.

Bytes that arrive after the end of a round would only delay the next one. A line that is too slow for whole
contributions therefore sends some of the shards, those with the oldest work. Work in the others waits for the next
round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class LineBudget:
    """Remaining time of the line, in bytes, for one fragment."""

    _left: float = 0.0

    def chosen(self, version: int, sizes: Sequence[int], bases: Sequence[int], bytes_each: float) -> set[int]:
        """Return the positions in `sizes` (bytes of each shard) to send now: the oldest work first, then in turn.

        Args:
            bases: for each shard, the version that its oldest work began on.
            bytes_each: bytes that the line can send for one contribution, see `Waits.bytes_each`.
        """
        if sum(sizes) <= bytes_each:
            self._left = 0.0
            return set(range(len(sizes)))
        left = min(self._left, max(sizes)) + bytes_each
        found = set()
        for position in sorted(range(len(sizes)), key=lambda at: (bases[at], (at - version) % len(sizes))):
            if sizes[position] > left:
                break
            left -= sizes[position]
            found.add(position)
        self._left = left
        return found
