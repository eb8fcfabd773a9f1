"""Detection of suspicious means before a commit is applied, and checks of audited means. Pure.

A member compares a mean with its own contribution. If its work was too late for the round, it compares with its latest
work, and also compares how many times longer than that each mean is. A member without work compares only the lengths of
the means. A suspicious mean is a reason for an audit, not a proof.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from averaging.arrays import F64
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import Sent
from averaging.outer.robust_mean import ShardContribution, combine
from averaging.wire.messages import Commit

AGAINST = -0.25
"""A mean whose cosine with this peer's work is below this value is suspicious. Honest cosines are positive, or 0 if all
is noise.
"""
FAR_LONGER = 4.0
"""Suspicious ratio of the lengths of a mean and this peer's work, or of one mean and the median of the commit's means.
A mean of honest work is shorter than most of that work.
"""
WRONG_RATIO = 0.1
"""Allowed error as a share of the mean's length: processors may round the last bit of a sum differently, which changes
a few codes by one."""


def suspicious(
    commit: Commit, means: Mapping[int, EncodedBlocks], own: Sent | None, member: int | None, codec: Codec
) -> list[int]:
    """Return the shard numbers of those `means` (number -> the reducer's mean) that look wrong here.

    Args:
        own: this peer's work.
        member: its number in the commit's roster; None: the work belongs to an earlier or later commit.
    """
    if own is None:
        return _far_longer_than_others({index: _length(mean, codec) for index, mean in means.items()})
    # A slow machine's work is shorter than that of others.
    excuse = max(1.0, statistics.median_low(entry.steps for entry in commit.roster) / own.steps)
    found, ratios = set(), {}
    for index, mean in means.items():
        shard = commit.shards[index]
        if member is None or member in shard.included:
            mine = own.encoded.slice_blocks(shard.start, shard.end - shard.start)
            if suspicion(mine, mean, codec, excuse):
                found.add(index)
            ratios[index] = _length(mean, codec) / (_length(mine, codec) or 1.0)
    if member is None:
        # Work from another time may be unrelated to the mean, but the lengths of its parts are still comparable.
        found.update(_far_longer_than_others(ratios))
    return sorted(found)


def suspicion(own: EncodedBlocks, mean: EncodedBlocks, codec: Codec, excuse: float = 1.0) -> bool:
    """Return whether a mean points against own work on the same values, or is far longer.

    Args:
        excuse: typical ratio of the lengths of other peers' work and this peer's.
    """
    mine, theirs = _decoded(own, codec), _decoded(mean, codec)
    mine_norm, theirs_norm = _norm(mine), _norm(theirs)
    if not mine_norm or not theirs_norm:
        return False
    cosine = _inner_product(mine, theirs) / mine_norm / theirs_norm
    return cosine < AGAINST or theirs_norm > FAR_LONGER * excuse * mine_norm


def _far_longer_than_others(lengths: Mapping[int, float]) -> list[int]:
    usual = statistics.median_low(lengths.values()) if lengths else 0.0
    return sorted(index for index, length in lengths.items() if length > FAR_LONGER * usual)


def _length(blocks: EncodedBlocks, codec: Codec) -> float:
    """Return the root mean square."""
    return _norm(_decoded(blocks, codec)) / math.sqrt(max(1, blocks.num_values))


def _decoded(blocks: EncodedBlocks, codec: Codec) -> F64:
    """Return the values as float64, so that the squares of any sent values do not overflow."""
    values = np.empty(blocks.num_values, dtype=np.float32)
    codec.decode(blocks, values)
    return values.astype(np.float64)


def is_wrong(contributions: Sequence[ShardContribution], mean: EncodedBlocks, rule: OuterRule, codec: Codec) -> bool:
    """Return whether `mean` does not match `contributions` (in roster order)."""
    combined = combine(contributions, rule, codec, mean.num_values)
    claimed, right = (np.empty(mean.num_values, dtype=np.float32) for _ in range(2))
    codec.decode(mean, claimed)
    try:
        codec.decode(codec.encode(combined.values), right)
    except ValueError:
        return True
    expected = right.astype(np.float64)
    return not _norm(claimed - expected) <= WRONG_RATIO * _norm(expected) + 1e-30


def _inner_product(first: F64, second: F64) -> float:
    """Return the inner product, computed on one thread. numpy's `dot` wakes a BLAS thread for each core, and these wait
    busily.
    """
    return float(np.einsum("i,i->", first, second))


def _norm(values: F64) -> float:
    """Return the Euclidean norm."""
    return math.sqrt(_inner_product(values, values))
