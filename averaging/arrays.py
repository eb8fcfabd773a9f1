"""Types of the arrays that values, scales and codes travel in; whether values are finite, and their length. Pure."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]


def all_finite(values: F32) -> bool:
    """True when no value is NaN or infinite.

    A sum is finite only if every term is. Adding is many times as fast as looking at every value, which is left for
    sums that overflow.
    """
    # The question is what such values would warn of.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(values.sum())) or bool(np.isfinite(values).all())


def inner_product(first: F64, second: F64) -> float:
    """Sum of products on one thread, unlike numpy's `dot`: BLAS wakes a thread for each core, and they wait busily."""
    return float(np.einsum("i,i->", first, second))


def length(values: F64) -> float:
    """Euclidean norm."""
    return math.sqrt(inner_product(values, values))
