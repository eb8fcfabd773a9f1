"""Check whether all values of an array are finite. Pure."""

from __future__ import annotations

import math

import numpy as np

from averaging.arrays import F32


def all_finite(values: F32) -> bool:
    """Return whether no value is NaN or infinite.

    A sum is finite only if all terms are. Adding is many times as fast as testing each value, which is only needed if
    the sum overflows.
    """
    # numpy would warn about exactly the values that are sought.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(values.sum())) or bool(np.isfinite(values).all())
