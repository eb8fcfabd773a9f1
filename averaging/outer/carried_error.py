"""What a reducer's broadcasts lost in encoding, kept at 8 bits until the next broadcast of the same values. Pure.

Float32 took a copy of the model over the number of members, and as much again while rounds are open. At 8 bits at most
1/254 of the largest error in each block is lost for good: with an int4 broadcast 1/3556 of its largest value.
"""

from __future__ import annotations

from functools import cache

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec, make_codec


@cache
def _codec() -> Codec:
    return make_codec("int8")


def keep_error(error: F32) -> EncodedBlocks | None:
    """`error` (float32 [n], contiguous) at 8 bits; None when every value is zero."""
    return _codec().encode(error) if bool(error.any()) else None


def add_error(kept: EncodedBlocks | None, mean: F32) -> None:
    """mean = mean + the error that was kept. mean: float32 [n].

    Raises:
        ValueError: another number of values.
    """
    if kept is not None:
        _codec().decode_accumulate(kept, 1.0, mean)


def kept_error_num_bytes(num_values: int) -> int:
    """Bytes of an error that is kept."""
    return _codec().encoded_num_bytes(num_values)
