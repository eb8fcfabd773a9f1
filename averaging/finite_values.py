"""Whether all values of an array are finite. Pure."""

from __future__ import annotations

import math

import numpy as np

from averaging.arrays import F32


def all_finite(values: F32) -> bool:
    """True when no value is NaN or infinite.

    A sum is finite only if every term is. Adding is many times as fast as looking at every value, which is left for
    sums that overflow.
    """
    # The question is what such values would warn of.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(values.sum())) or bool(np.isfinite(values).all())
