"""Who sends what when."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from averaging.outer.fragment_schedule import effective_sync_every, fragments_due


@given(st.integers(1, 60), st.integers(1, 20))
def test_each_fragment_is_due_once_in_every_interval(sync_every, num_fragments):
    for first in (sync_every, 2 * sync_every + 1):
        due = Counter(
            fragment
            for step in range(first, first + sync_every)
            for fragment in fragments_due(step, sync_every, num_fragments)
        )
        assert due == Counter(range(num_fragments))


@given(st.integers(1, 60), st.integers(1, 20))
def test_the_load_is_spread_over_the_interval(sync_every, num_fragments):
    most = -(-num_fragments // sync_every)
    for step in range(2 * sync_every, 3 * sync_every):
        assert len(fragments_due(step, sync_every, num_fragments)) <= most


@given(st.integers(1, 100), st.integers(-3, 400))
def test_one_fragment_is_plain_local_training_with_an_interval(sync_every, step):
    expected = (0,) if step > 0 and step % sync_every == 0 else ()
    assert fragments_due(step, sync_every, 1) == expected


@given(st.integers(1, 1000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_slow_peer_sends_after_fewer_steps_and_never_later_than_a_fast_one(sync_every, own, fastest):
    steps = effective_sync_every(sync_every, own, fastest)
    assert 1 <= steps <= sync_every
    if 0 < own < fastest and steps > 1:
        assert steps / own <= sync_every / fastest * (1 + 1e-9)
    if own == 0 or own >= fastest:
        assert steps == sync_every
