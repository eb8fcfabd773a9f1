"""Division of a fragment into shards, and their reducers. Pure.

A member that reduces the share s of a fragment sends, in encoded fragments, `1 - s` of contributions and `s * (M - 1)`
of means. With its upload rate u it finishes after (1 + s * (M - 2)) / u. The shares let the last reducer finish as
early as possible: all finish at the same time T, with `s = (u * T - 1) / (M - 2)`, and members with a rate below 1/T
only contribute. Each member receives as much as it sends, so a line whose download is at least its upload is never the
limit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from averaging.wire.messages import MAX_SHARDS, ShardPlan

MIN_SHARD_VALUES = 8192
"""Smaller shards (4 kB at 4 bits) would spend more than 3 % of their bytes on frame headers."""
MAX_SHARD_VALUES = 1 << 19
"""A quarter of a MiB at 4 bits: larger shards delay the first and the last mean, smaller ones cost more messages."""
EVEN_RATIO = 0.7
"""Rates with a larger ratio count as equal: rates are measured, and shares amplify their noise three times."""
TYPICAL_BITS_PER_SECOND = 10e6
"""Rate of a home line, assumed for members of unknown rate while most are unknown."""
MOST_OF_MEDIAN = 1.5
"""In runs with strangers, an upload rate counts up to this many medians. That gives at most twice an equal part,
because shares follow rates with three times their differences.
"""


def plan_shards(
    num_values: int,
    block_size: int,
    upload_bits_per_second: Sequence[float],
    reachable: Sequence[bool],
    most_of_median: float = math.inf,
) -> tuple[ShardPlan, ...]:
    """Divide a fragment among the members of a round, so that all lines finish at the same time.

    Args:
        num_values: size of the fragment.
        block_size: shards begin at multiples of the block size, so encoded slices need no re-encoding.
        upload_bits_per_second: for each roster member; 0 means unknown and counts as the median of the known rates. If
            most are unknown, the known ones may be low limits set by owners, so unknown rates count at least as a
            typical line.
        reachable: for each roster member; an unreachable member cannot receive shards, so it reduces nothing. If none
            is reachable, the first reduces everything, as each member could at best average alone.
        most_of_median: rates count up to this many medians.
    """
    known = [rate for rate in upload_bits_per_second if rate > 0]
    typical = statistics.median(known) if known else TYPICAL_BITS_PER_SECOND
    if 2 * len(known) <= len(upload_bits_per_second):
        typical = max(typical, TYPICAL_BITS_PER_SECOND)
    candidates = [index for index, ok in enumerate(reachable) if ok] or [0]
    rates = {index: upload_bits_per_second[index] or typical for index in candidates}
    if math.isfinite(most_of_median):
        middle = statistics.median_low(rates.values())
        rates = {index: min(rate, most_of_median * middle) for index, rate in rates.items()}
    rates = evened(rates)
    most = max(1, num_values // MIN_SHARD_VALUES)
    fastest = sorted(rates, key=lambda index: (-rates[index], index))[:most]
    shares = _shares({index: rates[index] for index in fastest}, len(reachable))
    while len(shares) > 1 and min(shares.values()) * num_values < MIN_SHARD_VALUES / 2:
        del fastest[-1]
        shares = _shares({index: rates[index] for index in fastest}, len(reachable))
    reducers = sorted(shares)
    shards: list[ShardPlan] = []
    start, passed = 0, 0.0
    longest = max(block_size, max(MAX_SHARD_VALUES, num_values // (MAX_SHARDS // 2)) // block_size * block_size)
    for position, reducer in enumerate(reducers):
        passed += shares[reducer]
        end = num_values if position == len(reducers) - 1 else round(num_values * passed / block_size) * block_size
        end = min(end, num_values)
        while start < end:
            cut = min(start + longest, end)
            shards.append(ShardPlan(start, cut, reducer))
            start = cut
    return tuple(shards)


def evened(rates: Mapping[int, float]) -> dict[int, float]:
    """Return the rates, with similar ones replaced by their median, from the fastest down."""
    found: dict[int, float] = {}
    alike: list[int] = []
    for index in sorted(rates, key=lambda index: (-rates[index], index)):
        if alike and rates[index] < EVEN_RATIO * rates[alike[0]]:
            alike = []
        alike.append(index)
        found.update(dict.fromkeys(alike, statistics.median(rates[one] for one in alike)))
    return found


def _shares(rates: Mapping[int, float], num_members: int) -> dict[int, float]:
    """Return each reducer's share of the fragment, sum 1, without members that are too slow to reduce."""
    ordered = sorted(rates, key=lambda index: (-rates[index], index))
    extra = num_members - 2
    if extra <= 0:
        # Both send one encoded fragment, whichever of them reduces.
        return _in_proportion({index: rates[index] for index in ordered if rates[index] >= rates[ordered[0]] / 50})
    total, seconds, count = 0.0, 0.0, 0
    for count, index in enumerate(ordered, 1):
        total += rates[index]
        seconds = (extra + count) / total
        if count < len(ordered) and rates[ordered[count]] * seconds <= 1.0:
            break
    return _in_proportion({index: (rates[index] * seconds - 1.0) / extra for index in ordered[:count]})


def _in_proportion(sizes: Mapping[int, float]) -> dict[int, float]:
    total = sum(sizes.values())
    return {index: size / total for index, size in sizes.items()}
