"""Which member reduces which shard of a fragment. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from averaging.messages import MAX_SHARDS, ShardPlan

MIN_SHARD_VALUES = 8192
"""Smaller shards (4 kB at 4 bits) would spend more than 3 % of their bytes on frame headers."""
MAX_SHARD_VALUES = 1 << 20
"""Larger shards (half a MiB at 4 bits) would delay the reducer's first result for no gain."""


def plan_shards(
    num_values: int, block_size: int, upload_bits_per_second: Sequence[float], reachable: Sequence[bool]
) -> tuple[ShardPlan, ...]:
    """Divide a fragment among the members of a round, in proportion to their upload rate.

    Args:
        num_values: size of the fragment.
        block_size: shards begin at multiples of it, so that encoded slices need no re-encoding.
        upload_bits_per_second: per roster member; 0 means unknown and counts as the median of the known ones.
        reachable: per roster member; nobody can send shards to an unreachable one, so it reduces nothing (unless
            nobody is reachable: then every member could at best average alone, and the first reduces all).
    """
    known = [rate for rate in upload_bits_per_second if rate > 0]
    typical = statistics.median(known) if known else 1.0
    candidates = [index for index, ok in enumerate(reachable) if ok] or [0]
    # A very slow line gets nothing rather than a shard that everyone waits for.
    rates = {index: upload_bits_per_second[index] or typical for index in candidates}
    rates = {index: rate for index, rate in rates.items() if rate >= max(rates.values()) / 50}
    most = max(1, num_values // MIN_SHARD_VALUES)
    reducers = sorted(sorted(rates, key=lambda index: (-rates[index], index))[:most])
    total_rate = sum(rates[index] for index in reducers)
    shards: list[ShardPlan] = []
    start, passed = 0, 0.0
    longest = max(block_size, max(MAX_SHARD_VALUES, num_values // (MAX_SHARDS // 2)) // block_size * block_size)
    for position, reducer in enumerate(reducers):
        passed += rates[reducer]
        exact = num_values * passed / total_rate
        end = num_values if position == len(reducers) - 1 else round(exact / block_size) * block_size
        end = min(end, num_values)
        while start < end:
            cut = min(start + longest, end)
            shards.append(ShardPlan(start, cut, reducer))
            start = cut
    return tuple(shards)
