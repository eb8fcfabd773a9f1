"""Which means of a commit look wrong to a peer that is about to apply it: a reason to look closer, no more. Pure.

A member compares a mean with what it contributed to it. When its work came too late for the round, it compares with the
latest work it has. Then it also compares how much longer than that each mean is. A member without any work compares the
lengths of the means alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from averaging.arrays import F64
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec
from averaging.outer.outer_settings import OuterRule
from averaging.outer.robust_mean import ShardContribution, combine
from averaging.wire.messages import Commit

AGAINST = -0.25
"""Cosine of a mean with this peer's work below which it is suspicious; honest ones are positive, or 0 when all is
noise.
"""
FAR_LONGER = 4.0
"""Length of a mean over that of this peer's work; a mean of honest work is shorter than most of it. Also that of one
mean over the median of the commit's.
"""
WRONG_RATIO = 0.1
"""Of the mean's length: processors may round the last bit of a sum differently, and then a few codes differ by one."""


@dataclass(frozen=True, slots=True)
class ComparedWork:
    """Work of this peer on the whole fragment, as it was encoded.

    Attributes:
        member: its number in the commit's roster; None: it is not that commit's, but from before or for the next one.
    """

    encoded: EncodedBlocks
    steps: int
    member: int | None


def suspicious(commit: Commit, means: Mapping[int, EncodedBlocks], own: ComparedWork | None, codec: Codec) -> list[int]:
    """The numbers of those `means` of a flat round (number -> what its reducer made of it) that look wrong here."""
    if own is None:
        return _far_longer_than_others({index: _length(mean, codec) for index, mean in means.items()})
    # The work of a slow machine is short beside that of others.
    excuse = max(1.0, statistics.median_low(entry.steps for entry in commit.roster) / own.steps)
    found, ratios = set(), {}
    for index, mean in means.items():
        shard = commit.shards[index]
        if own.member is None or own.member in shard.included:
            mine = own.encoded.slice_blocks(shard.start, shard.end - shard.start)
            if suspicion(mine, mean, codec, excuse):
                found.add(index)
            ratios[index] = _length(mean, codec) / (_length(mine, codec) or 1.0)
    if own.member is None:
        # Work of another time may have nothing to do with the mean; how long its parts are, it still shows.
        found.update(_far_longer_than_others(ratios))
    return sorted(found)


def suspicion(own: EncodedBlocks, mean: EncodedBlocks, codec: Codec, excuse: float = 1.0) -> bool:
    """Whether a mean points against own work on the same values, or is far longer.

    Args:
        excuse: how many times longer than this peer's work that of others usually is.
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
    """Root mean square."""
    return _norm(_decoded(blocks, codec)) / math.sqrt(max(1, blocks.num_values))


def _decoded(blocks: EncodedBlocks, codec: Codec) -> F64:
    """Values whose squares do not leave float64, whatever somebody sends."""
    values = np.empty(blocks.num_values, dtype=np.float32)
    codec.decode(blocks, values)
    return values.astype(np.float64)


def is_wrong(contributions: Sequence[ShardContribution], mean: EncodedBlocks, rule: OuterRule, codec: Codec) -> bool:
    """Whether `mean` is not what `contributions` (in roster order) give."""
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
    """Sum of products on one thread, unlike numpy's `dot`: BLAS wakes a thread for each core, and they wait busily."""
    return float(np.einsum("i,i->", first, second))


def _norm(values: F64) -> float:
    """Euclidean norm."""
    return math.sqrt(_inner_product(values, values))
