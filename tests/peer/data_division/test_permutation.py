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


@given(size=st.integers(1, 2**60), key=st.integers(0, 2**64 - 1), data=st.data())
def test_any_place_at_once(size: int, key: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    found = permuted(places, size, key)
    assert ((found >= 0) & (found < size)).all()
    assert found.tolist() == [permuted(np.array([place]), size, key)[0] for place in places]


def test_it_never_changes_with_a_release() -> None:
    assert permuted(np.arange(8), 1000, mixed_key(1, 2, 3)).tolist() == NEVER_CHANGES


def test_neighbours_go_anywhere_and_keys_differ() -> None:
    size = 100_000
    found = permuted(np.arange(size), size, 1)
    steps = np.abs(np.diff(found))
    assert 0.3 < steps.mean() / size < 0.37  # a third, as of independent draws
    assert abs(np.corrcoef(np.arange(size), found)[0, 1]) < 0.02
    assert np.mean(found == permuted(np.arange(size), size, 2)) < 0.001


NEVER_CHANGES = [849, 201, 952, 392, 492, 643, 73, 125]
