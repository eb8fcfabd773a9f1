"""How one shard's contributions become the encoded mean that everybody applies. Pure.

What a reducer's broadcasts lost in encoding is kept at 8 bits until its next broadcast of those values. Float32 took
a copy of the model over the number of members, and as much again while rounds are open. At 8 bits at most 1/254 of the
largest error in each block is lost for good. With an int4 broadcast that is 1/3556 of its largest value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec, make_codec
from averaging.outer.outer_settings import OuterRule
from averaging.outer.robust_mean import LARGEST_VALUE, RefusedMember, ShardContribution, combine


@dataclass(frozen=True, slots=True)
class Reduction:
    """The outcome of averaging one shard: the encoded mean, who is in it, and the codec's error for the next time.

    `error` is None when nothing was lost (or nobody wants to know), else at 8 bits (`keep_error`).
    `refused` are the contributions that were left out through their senders' fault.
    """

    encoded: EncodedBlocks
    included: tuple[int, ...]
    error: EncodedBlocks | None
    refused: tuple[RefusedMember, ...] = ()


def reduce_shard(
    contributions: Sequence[ShardContribution],
    rule: OuterRule,
    codec: Codec,
    num_values: int,
    carried_error: EncodedBlocks | None,
) -> Reduction | None:
    """The contributions to one shard combined as the rule says, in the given (PeerId) order, encoded for the broadcast.

    Args:
        contributions: (roster index, terms, encoded blocks) of each member whose work arrived, in roster order.
        carried_error: what earlier broadcasts of these values lost in encoding (`Reduction.error`); it is added to
            this mean, so that the sum of all broadcasts follows the sum of all means.

    Returns:
        None when no contribution counts (all beyond the staleness limit or not decodable), or when the mean is larger
        than any contribution may be.
    """
    combined = combine(contributions, rule, codec, num_values)
    if not combined.included:
        return None
    mean = combined.values
    add_error(carried_error, mean)
    try:
        encoded = codec.encode_with_residual(mean)
    except ValueError:
        return None
    if codec.largest(encoded) > LARGEST_VALUE:
        # Only a fault of this machine makes such a mean: a flipped bit in what was carried, for instance.
        return None
    return Reduction(encoded, combined.included, keep_error(mean, codec.block_size), combined.refused)


@cache
def _error_codec(block_size: int) -> Codec:
    return make_codec("int8", block_size)


def keep_error(error: F32, block_size: int) -> EncodedBlocks | None:
    """`error` (float32 [n], contiguous) at 8 bits; None when every value is zero.

    Args:
        block_size: of the run's codec: shards are cut between its blocks, and so are their errors.
    """
    return _error_codec(block_size).encode(error) if bool(error.any()) else None


def encoded_zeros(num_values: int, block_size: int) -> EncodedBlocks:
    """Errors of zero, in the form of `keep_error`."""
    return _error_codec(block_size).encode(np.zeros(num_values, dtype=np.float32))


def add_error(kept: EncodedBlocks | None, mean: F32) -> None:
    """mean = mean + the error that was kept. mean: float32 [n].

    Raises:
        ValueError: another number of values.
    """
    if kept is not None:
        _error_codec(kept.block_size).decode_accumulate(kept, 1.0, mean)


def kept_error_num_bytes(num_values: int, block_size: int) -> int:
    return _error_codec(block_size).encoded_num_bytes(num_values)
