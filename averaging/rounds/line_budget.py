"""How much of a contribution a slow line brings to the reducers in time. Pure.

Bytes that cannot arrive before the round is over would only delay the next round's. So a line that is too slow for
whole contributions carries some of the shards, those whose work is oldest. Work in the rest waits for the next round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONTRIBUTING_OF_PACE = 0.7
"""Of the time between two own sends, all fragments together; the rest is the leaders' and the means'."""


def bytes_each(bits_per_second: float, pace_seconds: float | None, num_fragments: int) -> float:
    """What a line takes for one contribution while all fragments' are sent in turn; infinite when that is not known."""
    if bits_per_second <= 0 or pace_seconds is None:
        return math.inf
    return CONTRIBUTING_OF_PACE * pace_seconds * bits_per_second / 8 / num_fragments


@dataclass
class LineBudget:
    """What is left of the line's time, in bytes, for one fragment."""

    _left: float = 0.0

    def chosen(self, version: int, sizes: Sequence[int], bases: Sequence[int], bytes_each: float) -> set[int]:
        """Positions in `sizes` (bytes of each shard) of those to send now: the oldest work first, then in turn.

        Args:
            bases: per shard the version that its oldest work began on.
            bytes_each: see the function.
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
