"""How long a member waits for others: from its own pace and from what their lines brought."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.waits import LAST_INTERVALS, NEXT_INTERVALS, QUIET_SECONDS, QUORUM_INTERVALS, Waits
from tests.kit.network.memory_networks import named

ME, OTHER, SLOW = (named(number) for number in range(3))


def waits_of(seconds, pace=6.0, num_fragments=2):
    """With this pace, and members that always took so long."""
    waits = Waits.with_bounds(60.0, num_fragments)
    waits.own_pace.observe(0.0)
    waits.own_pace.observe(pace)
    for peer_id, each in seconds.items():
        for _ in range(8):
            for learned in (waits.offer, waits.line, waits.mean):
                learned.observe(peer_id, each)
    return waits


@given(st.floats(0.1, 1000))
def test_every_wait_stays_within_the_manifests_bound(hard_seconds):
    waits = Waits.with_bounds(hard_seconds)
    for links in (waits.offer, waits.line, waits.mean):
        assert links.seconds <= hard_seconds
        for seconds in (0.0, 10.0 * hard_seconds, 10.0 * hard_seconds, 0.0):
            links.observe(OTHER, seconds)
            assert links.allowance(OTHER) <= hard_seconds
    assert waits.result_seconds(10**9, 1e3) <= hard_seconds


@given(st.floats(1e-3, 100.0))
def test_no_wait_follows_from_a_shorter_interval_than_a_peer_may_be_quiet(pace):
    interval = max(pace, QUIET_SECONDS)
    waits = waits_of({}, pace)
    assert waits.interval_seconds == interval
    assert waits.not_before(100.0) == 100.0 + NEXT_INTERVALS * interval
    assert waits.quorum_seconds([OTHER]) == max(QUORUM_INTERVALS * interval, waits.offer.seconds)


def test_before_the_pace_is_known_nothing_is_cut_short():
    waits = Waits.with_bounds(60.0)
    assert waits.interval_seconds is None
    assert waits.not_before(100.0) == 0.0
    assert waits.quorum_seconds([OTHER]) == 60.0
    assert waits.contribution_seconds([OTHER], 0) == {OTHER: waits.line.seconds}
    assert waits.means_in_time([ME, SLOW]) == [True, True]
    assert waits.bytes_each(1e6) == waits_of({}).bytes_each(0.0) == math.inf


@pytest.mark.parametrize(("usual", "expected"), [(0.1, 1.0), (2.0, 2.2), (5.0, 4.2)])
def test_a_round_waits_for_offers_as_long_as_they_take_and_for_most_of_an_interval(usual, expected):
    waits = waits_of({OTHER: usual})
    assert waits.grace_seconds([OTHER]) == pytest.approx(expected)
    assert waits.grace_seconds([]) == 0.0


def test_one_slow_member_is_given_up_before_it_delays_the_next_round():
    seconds = waits_of({OTHER: 0.2, SLOW: 9.0}).contribution_seconds([OTHER, SLOW], 0)
    assert seconds[SLOW] == pytest.approx(6.0 / 2)
    assert seconds[OTHER] <= 1.0


def test_where_most_are_slow_rounds_take_as_long_as_they_take():
    waits = waits_of({OTHER: 9.0, SLOW: 9.5})
    assert min(waits.contribution_seconds([OTHER, SLOW], 0).values()) > 9.0
    assert waits.means_in_time([OTHER, SLOW]) == [True, True]


def test_a_pair_waits_for_each_other():
    waits = waits_of({SLOW: 9.0})
    assert waits.contribution_seconds([SLOW], 0, is_pair=True)[SLOW] > 9.0
    assert waits_of({SLOW: 30.0}).contribution_seconds([SLOW], 0, is_pair=True)[SLOW] == LAST_INTERVALS * 6.0
    assert waits.contribution_seconds([SLOW], 0)[SLOW] < 6.0
    # A newcomer that does not count yet is no pair's other half.
    assert waits_of({OTHER: 0.2, SLOW: 9.0}).contribution_seconds([OTHER, SLOW], 0, is_pair=True)[SLOW] == 3.0


def test_a_later_attempt_waits_longer():
    waits = waits_of({OTHER: 1.0}, pace=60.0)
    assert [waits.contribution_seconds([OTHER], attempt)[OTHER] for attempt in (0, 1, 9)] == pytest.approx(
        [1.1, 2.2, 5.5]
    )


def test_means_are_not_asked_of_those_that_were_seen_to_bring_them_too_late():
    assert waits_of({ME: 0.2, OTHER: 0.3, SLOW: 9.0}).means_in_time([ME, OTHER, SLOW]) == [True, True, False]


def test_a_reducer_that_waits_for_the_dead_can_still_report_in_time():
    waits = waits_of({ME: 0.01, SLOW: 9.0}, pace=60.0)
    contribution, commit = waits.plan_seconds(waits.contribution_seconds([SLOW], 0), [ME])
    assert contribution >= 9.0
    assert commit == contribution + waits.mean.allowance(ME) >= contribution + 1.0
