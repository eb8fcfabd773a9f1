"""Errors of broadcasts by range of values: what a dense array would hold, in less memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from averaging.fragment.broadcast_errors import MOST_OF_AVERAGED, BroadcastErrors
from averaging.outer.shard_mean import add_error, keep_error

BLOCK, NUM_VALUES = 16, 500
CUTS = st.lists(st.integers(0, NUM_VALUES // BLOCK), min_size=2, max_size=2, unique=True).map(sorted)


def place_of(cut: list[int]) -> tuple[int, int]:
    """Values between two blocks; the fragment's last block is a short one."""
    start, end = (BLOCK * block for block in cut)
    return start, NUM_VALUES if end == BLOCK * (NUM_VALUES // BLOCK) else end


def values_of(errors: BroadcastErrors, start: int, end: int) -> np.ndarray:
    found = np.zeros(end - start, dtype=np.float32)
    add_error(errors.within(start, end), found)
    return found


@given(st.lists(st.tuples(CUTS, st.booleans()), min_size=1, max_size=8), CUTS)
def test_a_new_shard_takes_the_errors_of_all_its_values(puts: list[tuple[list[int], bool]], asked: list[int]) -> None:
    errors, expected = BroadcastErrors(), np.zeros(NUM_VALUES, dtype=np.float32)
    for number, (cut, is_lossy) in enumerate(puts):
        start, end = place_of(cut)
        lost = np.random.default_rng(number).standard_normal(end - start, dtype=np.float32) * is_lossy
        kept = keep_error(lost, BLOCK)
        errors.put(start, end, kept)
        expected[start:end] = 0.0
        add_error(kept, expected[start:end])
    start, end = place_of(asked)
    assert np.array_equal(values_of(errors, start, end), expected[start:end])
    assert np.array_equal(values_of(errors, 0, NUM_VALUES), expected)


def test_ranges_that_move_round_after_round_keep_no_more_than_the_limit() -> None:
    errors, size = BroadcastErrors(), 64
    for number in range(100):
        start = BLOCK * (7 * number % ((NUM_VALUES - size) // BLOCK))
        errors.put(start, start + size, keep_error(np.full(size, 1.0 + number, dtype=np.float32), BLOCK))
        errors.limit(size)
        assert errors.num_values <= MOST_OF_AVERAGED * size
        held = sum(len(part.error.codes) for part in errors._parts)
        assert held == errors.num_values, "a part holds on to the memory of what it was cut from"
        assert np.allclose(values_of(errors, start, start + size), 1.0 + number, rtol=0.01)
