"""How much of a contribution a slow line brings to the reducers in time. Pure.

Bytes that cannot arrive before the round is over would only delay the next round's. So a line that is too slow for
whole contributions carries some of the shards, those whose work is oldest. Work in the rest waits for the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class LineBudget:
    """What is left of the line's time, in bytes, for one fragment."""

    _left: float = 0.0

    def chosen(self, version: int, sizes: Sequence[int], bases: Sequence[int], bytes_each: float) -> set[int]:
        """Positions in `sizes` (bytes of each shard) of those to send now: the oldest work first, then in turn.

        Args:
            bases: per shard the version that its oldest work began on.
            bytes_each: what the line takes for one contribution, see `Waits.bytes_each`.
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
