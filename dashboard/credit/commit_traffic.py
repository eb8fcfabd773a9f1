"""What a commit says about bytes: those its round moved, and those plain data-parallel training would have. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from averaging.wire.messages import Commit

BYTES_PER_GRADIENT: Final = 4
"""Plain data-parallel training sends float32 gradients."""
MAX_BYTES: Final = 2**53
"""Of one commit, 9 petabytes: whoever claims more steps than that gets this, and sums over a history stay exact."""


def payload_bytes(commit: Commit, encoded_num_bytes: Callable[[int], int]) -> int:
    """Bytes of encoded values that went from member to member.

    Each member that is in a shard sent its part to the shard's reducer, and the reducer sent the mean to everybody.

    Args:
        encoded_num_bytes: bytes of so many encoded values, as the manifest's codec writes them.
    """
    total = 0
    for shard in commit.shards:
        if shard.digest:
            num_sent = sum(member != shard.reducer for member in shard.included) + len(commit.roster) - 1
            total += num_sent * encoded_num_bytes(shard.end - shard.start)
    return min(total, MAX_BYTES)


def data_parallel_bytes(commit: Commit, fragment_size: int) -> int:
    """Bytes that a ring all-reduce at every inner step would have uploaded for this part of the model.

    With M members, each uploads 2 (M - 1) / M times the gradients at every step (Patarasuk and Yuan,
    doi:10.1016/j.jpdc.2008.09.002).
    """
    included = {index for shard in commit.shards for index in shard.included}
    if not included:
        return 0
    num_steps = sum(commit.roster[index].steps for index in included)
    total = round(2 * (len(included) - 1) / len(included) * num_steps * BYTES_PER_GRADIENT * fragment_size)
    return min(total, MAX_BYTES)
