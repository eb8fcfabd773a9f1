"""Who sends what when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from averaging.outer.fragment_schedule import SendSchedule, effective_sync_every


def due_after(schedule: SendSchedule, intervals: Iterable[int]) -> list[tuple[int, ...]]:
    """What is due after each of as many steps as there are intervals."""
    return [schedule.after_step(sync_every) for sync_every in intervals]


@given(st.integers(1, 60), st.integers(1, 20))
def test_each_fragment_is_due_once_in_every_interval(sync_every, num_fragments):
    due = due_after(SendSchedule(sync_every, num_fragments), [sync_every] * 3 * sync_every)
    for first in (sync_every - 1, 2 * sync_every):
        counts = Counter(fragment for step in due[first : first + sync_every] for fragment in step)
        assert counts == Counter(range(num_fragments))


@given(st.integers(1, 60), st.integers(1, 20))
def test_the_load_is_spread_over_the_interval(sync_every, num_fragments):
    due = due_after(SendSchedule(sync_every, num_fragments), [sync_every] * 3 * sync_every)
    assert max(len(fragments) for fragments in due) <= -(-num_fragments // sync_every)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 200))
def test_a_later_session_goes_on_where_the_earlier_one_was(sync_every, num_fragments, inner_step):
    whole = due_after(SendSchedule(sync_every, num_fragments), [sync_every] * (inner_step + 60))
    rest = due_after(SendSchedule(sync_every, num_fragments, inner_step), [sync_every] * 60)
    assert rest == whole[inner_step:]


@given(st.integers(2, 60), st.integers(1, 8), st.lists(st.integers(0, 1), min_size=400, max_size=400))
def test_an_interval_that_flickers_moves_no_send_by_more_than_the_flicker(sync_every, num_fragments, less):
    intervals = [sync_every - one for one in less]
    due = due_after(SendSchedule(sync_every, num_fragments), intervals)
    for fragment in range(num_fragments):
        at = [step for step, fragments in enumerate(due) if fragment in fragments]
        assert all(sync_every - 2 <= later - earlier <= sync_every + 1 for earlier, later in pairwise(at))


@given(st.integers(1, 1000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_slow_peer_sends_after_fewer_steps_and_never_later_than_a_fast_one(sync_every, own, fastest):
    steps = effective_sync_every(sync_every, own, fastest)
    assert 1 <= steps <= sync_every
    if 0 < own < fastest and steps > 1:
        assert steps / own <= sync_every / fastest * (1 + 1e-9)
    if own == 0 or own >= fastest:
        assert steps == sync_every
