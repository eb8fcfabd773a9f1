"""Choice of the shards that a slow line can send to the reducers in time. Pure.

Bytes that arrive after the end of a round would only delay the next one. A line that is too slow for whole
contributions therefore sends some of the shards, those with the oldest work. Work in the others waits for the next
round.
"""

from __future__ import annotations

from collections.abc import Sequence


def chosen_shards(
    version: int, sizes: Sequence[int], bases: Sequence[int], bytes_each: float, left: float
) -> tuple[set[int], float]:
    """Return the positions in `sizes` (bytes of each shard) to send now: the oldest work first, then in turn.

    Args:
        bases: for each shard, the version that its oldest work began on.
        bytes_each: bytes that the line can send for one contribution, see `Waits.bytes_each`.
        left: remaining time of the line, in bytes, after the previous contribution to the fragment.

    Returns:
        (positions, remaining time of the line).
    """
    if sum(sizes) <= bytes_each:
        return set(range(len(sizes))), 0.0
    left = min(left, max(sizes)) + bytes_each
    chosen = set()
    for position in sorted(range(len(sizes)), key=lambda at: (bases[at], (at - version) % len(sizes))):
        if sizes[position] > left:
            break
        left -= sizes[position]
        chosen.add(position)
    return chosen, left
