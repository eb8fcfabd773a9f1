"""Which member reduces what: all values once, block by block, as much as each line can carry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.shard_plan import MAX_SHARD_VALUES, MIN_SHARD_VALUES, plan_shards
from averaging.wire.messages import MAX_SHARDS

rates = st.floats(0, 1e9).map(lambda rate: 0.0 if rate < 1 else rate)
members = st.lists(st.tuples(rates, st.booleans()), min_size=1, max_size=256)
block_sizes = st.sampled_from([16, 64, 128, 4096])


def values_of(shards, num_members):
    given_to = [0] * num_members
    for shard in shards:
        given_to[shard.reducer] += shard.end - shard.start
    return given_to


@given(st.integers(1, 3_000_000_000), block_sizes, members)
def test_shards_cover_every_value_once_and_begin_on_blocks(num_values, block_size, lines):
    upload, reachable = zip(*lines, strict=True)
    shards = plan_shards(num_values, block_size, upload, reachable)
    position = 0
    for shard in shards:
        assert shard.start == position < shard.end
        assert shard.start % block_size == 0
        assert 0 <= shard.reducer < len(lines)
        position = shard.end
    assert position == num_values
    assert 1 <= len(shards) <= MAX_SHARDS
    if any(reachable):
        assert all(reachable[shard.reducer] for shard in shards)


@given(st.integers(1, 64 * MAX_SHARD_VALUES), members)
def test_no_shard_is_too_large_and_few_members_reduce_small_fragments(num_values, lines):
    upload, reachable = zip(*lines, strict=True)
    shards = plan_shards(num_values, 128, upload, reachable)
    assert max(shard.end - shard.start for shard in shards) <= MAX_SHARD_VALUES
    assert len({shard.reducer for shard in shards}) <= max(1, num_values // MIN_SHARD_VALUES)


def seconds_of(upload, given_to):
    """When each line has sent its contribution and its means, in encoded fragments per bit and second."""
    others, total = len(upload) - 1, sum(given_to)
    return [(1 + (others - 1) * values / total) / rate for rate, values in zip(upload, given_to, strict=True)]


@given(st.lists(st.sampled_from([1e6, 2e6, 5e6, 2e7, 5e7]), min_size=3, max_size=32), st.integers(10**7, 5 * 10**7))
def test_all_reducers_are_done_at_once_and_the_others_later_anyway(upload, num_values):
    given_to = values_of(plan_shards(num_values, 128, upload, [True] * len(upload)), len(upload))
    seconds = seconds_of(upload, given_to)
    reducing = [taken for taken, values in zip(seconds, given_to, strict=True) if values]
    # Shares are rounded to blocks, and none is made for less than a small shard.
    slack = 2 * len(upload) * MIN_SHARD_VALUES / num_values * max(reducing)
    assert max(reducing) - min(reducing) <= slack
    assert all(taken >= max(reducing) - slack for taken, values in zip(seconds, given_to, strict=True) if not values)


@given(st.lists(st.floats(7.1e6, 1e7), min_size=2, max_size=16), st.integers(10**6, 10**7))
def test_lines_that_measure_alike_get_equal_shares(upload, num_values):
    given_to = values_of(plan_shards(num_values, 128, upload, [True] * len(upload)), len(upload))
    assert max(given_to) - min(given_to) <= 256


def test_a_slow_line_among_fast_ones_contributes_and_reduces_nothing():
    given_to = values_of(plan_shards(25_000_000, 128, [20e6, 60e6, 100e6, 100e6], [True] * 4), 4)
    assert given_to[0] == 0
    assert 0 < given_to[1] < given_to[2] / 3


@given(st.integers(1, 5_000_000), st.lists(st.floats(1e6, 1e8), min_size=1, max_size=9))
def test_a_line_fifty_times_slower_reduces_nothing(num_values, upload):
    slow = max(upload) / 51
    given_to = values_of(plan_shards(num_values, 128, [*upload, slow], [True] * (len(upload) + 1)), len(upload) + 1)
    assert given_to[-1] == 0


def test_a_tiny_fragment_goes_to_the_fastest_line():
    assert [(shard.start, shard.end, shard.reducer) for shard in plan_shards(5, 128, [1e6, 9e6, 3e6], [True] * 3)] == [
        (0, 5, 1)
    ]


def test_unknown_rates_count_as_the_median():
    given_to = values_of(plan_shards(7_000_000, 128, [0.0, 1e6, 2e6, 4e6], [True] * 4), 4)
    assert abs(given_to[0] - given_to[2]) <= 128
    even = values_of(plan_shards(4_000_000, 128, [0.0] * 4, [True] * 4), 4)
    assert max(even) - min(even) <= 128


def test_when_nobody_is_reachable_the_first_averages_alone():
    shards = plan_shards(1_000_000, 128, [1e6, 5e6], [False, False])
    assert {shard.reducer for shard in shards} == {0}
