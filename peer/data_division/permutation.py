"""A permutation of 0..size-1 by a key: a Feistel network (Luby and Rackoff, 1988) with cycle walking (Black and
Rogaway, CT-RSA 2002). The image of each place is computed directly, without a stored table. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NUM_ROUNDS = 6
"""Three rounds are pseudorandom with good round functions. The round functions here are cheap, so there are more."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The increment of splitmix64."""

U64 = NDArray[np.uint64]


def mixed(values: U64) -> U64:
    """Mix values with the finaliser of splitmix64 (Steele et al., 2014).

    Every bit of the result depends on every bit of the value.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def mixed_key(*parts: int) -> int:
    """Return a 64-bit key for a sequence of numbers."""
    found = np.zeros(1, np.uint64)
    for part in parts:
        found = mixed(found + _GOLDEN + np.array([part & (2**64 - 1)], np.uint64))
    return int(found[0])


def permuted(places: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Return the image of each place under the permutation of 0..size-1 by `key`: int64 [len(places)].

    Args:
        places: places in 0..size-1; `size` is at most 2^62.
        key: 64 bits.
    """
    if size <= 1:
        return np.zeros(len(places), np.int64)
    half = np.uint64(((size - 1).bit_length() + 1) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = mixed(np.arange(1, _NUM_ROUNDS + 1, dtype=np.uint64) * _GOLDEN + np.uint64(key & (2**64 - 1)))
    found = places.astype(np.uint64)
    outside = np.ones(len(found), bool)
    # The network permutes a power of 4, at most 4 times as large. Results outside the range are permuted again.
    while outside.any():
        left, right = found[outside] >> half, found[outside] & mask
        for round_key in keys:
            left, right = right, left ^ (mixed(right ^ round_key) & mask)
        found[outside] = (left << half) | right
        outside = found >= np.uint64(size)
    return found.astype(np.int64)
