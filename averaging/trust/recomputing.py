"""Whether a mean is what its contributions give. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from averaging.arrays import length
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec
from averaging.outer.combine import ShardContribution, combine
from averaging.outer.outer_step import OuterRule

WRONG_RATIO = 0.1
"""Of the mean's length: processors may round the last bit of a sum differently, and then a few codes differ by one."""
WRONG_RATIO_BY_CHANCE = 0.5
"""Where codes are rounded by chance, which follows from the last bits."""


def is_wrong(contributions: Sequence[ShardContribution], mean: EncodedBlocks, rule: OuterRule, codec: Codec) -> bool:
    """Whether `mean` is not what `contributions` (in roster order) give."""
    combined = combine(contributions, rule, codec, mean.num_values)
    claimed, right = (np.empty(mean.num_values, dtype=np.float32) for _ in range(2))
    codec.decode(mean, claimed)
    try:
        codec.decode(codec.encode(combined.values), right)
    except ValueError:
        return True
    most = WRONG_RATIO_BY_CHANCE if codec.rounding == "stochastic" else WRONG_RATIO
    expected = right.astype(np.float64)
    return not length(claimed - expected) <= most * length(expected) + 1e-30
