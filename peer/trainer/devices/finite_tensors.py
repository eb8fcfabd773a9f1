"""Whether all values of a tensor are finite, as `averaging/finite_values.py` says it of arrays."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def all_finite(values: Tensor) -> bool:
    """True when no value is NaN or infinite. values: any floating dtype, shape and device.

    A sum is finite only if every term is. Adding is many times as fast as looking at every value, which is left for
    sums that overflow.
    """
    return math.isfinite(float(values.detach().sum())) or bool(torch.isfinite(values).all())
