"""Norms of float64 arrays, on one thread. Pure."""

from __future__ import annotations

import math

import numpy as np

from averaging.arrays import F64


def inner_product(first: F64, second: F64) -> float:
    """Sum of products on one thread, unlike numpy's `dot`: BLAS wakes a thread for each core, and they wait busily."""
    return float(np.einsum("i,i->", first, second))


def length(values: F64) -> float:
    """Euclidean norm."""
    return math.sqrt(inner_product(values, values))
