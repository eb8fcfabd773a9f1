"""Whether a mean is what its contributions give, and whether it looks wrong to one of its contributors. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from averaging.codec import Codec
from averaging.encoded import EncodedBlocks
from averaging.outer import OuterRule
from averaging.robust import ShardContribution, combine

WRONG_RATIO = 0.1
"""Of the mean's length: processors may round the last bit of a sum differently, and then a few codes differ by one."""
WRONG_RATIO_BY_CHANCE = 0.5
"""Where codes are rounded by chance, which follows from the last bits."""
AGAINST = -0.25
"""Cosine of a mean with the own work below which it is suspicious; honest ones are positive, or 0 when all is noise."""
FAR_LONGER = 4.0
"""Length of a mean over that of the own work; a mean of honest work is shorter than most of it."""


def suspicion(own: EncodedBlocks, mean: EncodedBlocks, codec: Codec, excuse: float = 1.0) -> bool:
    """Whether a mean looks wrong to one of its contributors; a reason to look closer, and nothing else.

    Args:
        excuse: how many times longer than the own work that of others usually is.
    """
    mine, theirs = torch.empty(own.num_values), torch.empty(mean.num_values)
    codec.decode(own, mine)
    codec.decode(mean, theirs)
    mine_norm, theirs_norm = float(mine.norm()), float(theirs.norm())
    if not mine_norm or not theirs_norm:
        return False
    cosine = float(torch.dot(mine, theirs)) / mine_norm / theirs_norm
    return cosine < AGAINST or theirs_norm > FAR_LONGER * excuse * mine_norm


def is_wrong(contributions: Sequence[ShardContribution], mean: EncodedBlocks, rule: OuterRule, codec: Codec) -> bool:
    """Whether `mean` is not what `contributions` (in roster order) give."""
    combined = combine(contributions, rule, codec, mean.num_values)
    claimed, right = torch.empty(mean.num_values), torch.empty(mean.num_values)
    codec.decode(mean, claimed)
    try:
        codec.decode(codec.encode(combined.values), right)
    except ValueError:
        return True
    most = WRONG_RATIO_BY_CHANCE if codec.rounding == "stochastic" else WRONG_RATIO
    off = float((claimed.double() - right.double()).norm())
    return not off <= most * float(right.double().norm()) + 1e-30
