"""Where the blocks of an inner step begin when each peer draws for itself: a pure function of seed, PeerId and step."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from peer.trainer.data.context_blocks import Groups


def block_positions(
    seed: int, peer_id: str, inner_step: int, batch_size: int, num_tokens_available: int, context: int
) -> NDArray[np.int64]:
    """Where the blocks of one inner step begin: int64 [batch_size], each in 0..num_tokens_available - context - 1.

    Philox, a counter-based generator (Salmon et al., SC 2011), keyed by (seed, PeerId) with the step as counter. It is
    the same on every machine, any step at once, with nothing to store. The library numpy guarantees the raw stream in
    every version.

    Raises:
        ValueError: fewer tokens than one block of context + 1.
    """
    num_starts = num_tokens_available - context
    if num_starts < 1:
        raise ValueError(f"{num_tokens_available} tokens; expected at least {context + 1}")
    key = int.from_bytes(hashlib.sha256(f"{seed}|{peer_id}".encode()).digest()[:16], "little")
    raw = np.random.Philox(key=key, counter=inner_step << 64).random_raw(batch_size)
    return np.asarray(raw % np.uint64(num_starts), np.int64)


def random_positions(
    seed: int, peer_id: str, inner_step: int, batch_size: int, groups: Groups, context: int
) -> NDArray[np.int64]:
    """`block_positions` in all groups that are here, as if they were one sequence.

    Raises:
        ValueError: none of them has a block of context + 1.
    """
    ranges = [found for group in range(groups.num_groups) if (found := groups.group_range(group)) is not None]
    ranges = [(first, length - context) for first, length in ranges if length > context]
    ends = np.cumsum([num_starts for _, num_starts in ranges], dtype=np.int64)
    drawn = block_positions(seed, peer_id, inner_step, batch_size, int(ends[-1]) + context if ranges else 0, context)
    index = np.searchsorted(ends, drawn, side="right")
    firsts = np.array([first for first, _ in ranges], np.int64)
    sizes = np.array([num_starts for _, num_starts in ranges], np.int64)
    return firsts[index] + drawn - (ends[index] - sizes[index])
