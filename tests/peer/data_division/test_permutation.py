"""The permutation of an epoch's blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peer.data_division.permutation import mixed_key, permuted


@given(size=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_every_place_once(size: int, key: int) -> None:
    found = permuted(np.arange(size), size, key)
    assert np.array_equal(np.sort(found), np.arange(size))


def test_it_never_changes_with_a_release() -> None:
    assert permuted(np.arange(8), 1000, mixed_key(1, 2, 3)).tolist() == NEVER_CHANGES


NEVER_CHANGES = [849, 201, 952, 392, 492, 643, 73, 125]
