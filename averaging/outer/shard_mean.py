"""Average one shard's contributions into the encoded mean that all peers apply. Pure.

A reducer keeps the encoding errors of its broadcasts at 8 bits until its next broadcast of those values. In float32
they took a copy of the model over the number of members, and as much again while rounds are open. At 8 bits, at most
1/254 of the largest error in each block is lost for good. With an int4 broadcast that is 1/3556 of its largest value.
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
    """Result of averaging one shard: the encoded mean, the members included, and the encoding error for the next
    broadcast.

    `error` is None if nothing was lost (or the error is not kept), otherwise at 8 bits (`keep_error`). `refused` are
    the contributions refused through their senders' fault.
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
    """Combine the contributions to one shard in the given (PeerId) order, and encode the result for the broadcast.

    Args:
        contributions: (roster index, terms, encoded blocks) of each member whose work arrived, in roster order.
        carried_error: encoding errors of earlier broadcasts of these values (`Reduction.error`), which are added to
            this mean so that the sum of all broadcasts follows the sum of all means.

    Returns:
        None if no contribution counts (all beyond the staleness limit or not decodable), or if the mean exceeds the
        largest value allowed in a contribution.
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
        # Only a fault of this machine, such as a flipped bit in the carried error, produces a mean this large.
        return None
    return Reduction(encoded, combined.included, keep_error(mean, codec.block_size), combined.refused)


@cache
def _error_codec(block_size: int) -> Codec:
    return make_codec("int8", block_size)


def keep_error(error: F32, block_size: int) -> EncodedBlocks | None:
    """Return `error` (float32 [n], contiguous) encoded at 8 bits, or None if all values are zero.

    Args:
        block_size: block size of the run's codec; shards and their errors begin and end between its blocks.
    """
    return _error_codec(block_size).encode(error) if bool(error.any()) else None


def encoded_zeros(num_values: int, block_size: int) -> EncodedBlocks:
    """Return zero errors in the form of `keep_error`."""
    return _error_codec(block_size).encode(np.zeros(num_values, dtype=np.float32))


def add_error(kept: EncodedBlocks | None, mean: F32) -> None:
    """Add the stored error to `mean`: float32 [n].

    Raises:
        ValueError: `kept` has a different number of values.
    """
    if kept is not None:
        _error_codec(kept.block_size).decode_accumulate(kept, 1.0, mean)


def kept_error_num_bytes(num_values: int, block_size: int) -> int:
    """Return the bytes of an error in the form of `keep_error`."""
    return _error_codec(block_size).encoded_num_bytes(num_values)
