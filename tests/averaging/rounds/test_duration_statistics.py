"""Deadlines learned from what was seen: per link, bounded in time and memory."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.duration_statistics import (
    FEWEST_ARRIVALS,
    LINK_ARRIVALS,
    MAX_LINKS,
    MISSES_OF_ABSENT,
    LearnedDeadline,
    LearnedPace,
    LinkDeadlines,
)
from tests.kit.network.memory_networks import named

PEERS = sorted(named(number) for number in range(8))

durations = st.lists(st.floats(0, 100), max_size=60)


@given(durations, st.floats(0, 50), st.floats(0, 5), st.floats(5, 60))
def test_a_deadline_stays_between_its_bounds(seen, initial, lowest, highest):
    deadline = LearnedDeadline(initial, lowest, highest)
    for seconds in seen:
        deadline.observe(seconds)
        assert lowest <= deadline.seconds <= highest
    if len(seen) < 3:
        assert deadline.seconds == min(max(initial, lowest), highest)


@given(st.lists(st.floats(0.1, 50), min_size=3, max_size=32))
def test_a_deadline_leaves_room_above_what_is_usual(seen):
    deadline = LearnedDeadline(1.0, 0.0, 1000.0)
    for seconds in seen:
        deadline.observe(seconds)
    assert deadline.seconds >= 1.1 * statistics.median(seen) * (1 - 1e-9)
    assert sum(seconds <= deadline.seconds for seconds in seen) >= math.ceil(len(seen) / 2)


def test_one_outlier_moves_a_deadline_little_and_new_times_replace_old_ones():
    deadline = LearnedDeadline(1.0, 0.0, 1000.0)
    for _ in range(31):
        deadline.observe(2.0)
    deadline.observe(900.0)
    assert deadline.seconds == pytest.approx(2.2)
    for _ in range(32):
        deadline.observe(10.0)
    assert deadline.seconds == pytest.approx(11.0)


@given(st.lists(st.floats(0, 20), max_size=40), st.lists(st.floats(0, 20), max_size=40))
def test_every_remote_has_its_own_time_and_a_newcomer_the_groups(of_one, of_another):
    links = LinkDeadlines(10.0, 0.5, 60.0)
    group = LearnedDeadline(10.0, 0.5, 60.0)
    for peer, seen in zip(PEERS, (of_one, of_another), strict=False):
        own = LearnedDeadline(10.0, 0.5, 60.0)
        for seconds in seen:
            links.observe(peer, seconds)
            group.observe(seconds)
        for seconds in seen[-LINK_ARRIVALS:]:
            own.observe(seconds)
        if len(seen) >= FEWEST_ARRIVALS:
            assert links.allowance(peer) == own.seconds
    assert links.allowance(PEERS[5]) == group.seconds == links.seconds
    assert links.longest(PEERS) == max(map(links.allowance, PEERS))


def test_a_slow_remote_slows_nobody_else_down():
    links = LinkDeadlines(10.0, 0.5, 60.0)
    for _ in range(20):
        for peer in PEERS[:7]:
            links.observe(peer, 1.0)
        links.observe(PEERS[7], 30.0)
    assert links.allowance(PEERS[7]) == pytest.approx(33.0)
    assert set(map(links.allowance, PEERS[:7])) == {1.1}
    assert links.seconds == pytest.approx(1.1)


def test_waiting_in_vain_allows_more_time_but_not_for_ever():
    links = LinkDeadlines(10.0, 1.0, 60.0)
    for peer in PEERS[:4]:
        for _ in range(LINK_ARRIVALS):
            links.observe(peer, 2.0)
    links.missed(PEERS[6])
    links.missed(PEERS[6])
    assert links.allowance(PEERS[6]) == links.seconds  # nothing is known of it but that it is late
    links.observe(PEERS[6], 9.0)
    assert links.allowance(PEERS[6]) > 4.4
    for _ in range(MISSES_OF_ABSENT):
        assert not links.is_absent(PEERS[6])
        links.missed(PEERS[6])
    assert links.is_absent(PEERS[6])
    assert links.allowance(PEERS[6]) == links.seconds
    links.observe(PEERS[6], 9.0)
    assert not links.is_absent(PEERS[6])
    assert links.allowance(PEERS[6]) > links.seconds
    assert links.seconds == pytest.approx(2.2)  # misses teach nothing about others


def test_a_link_that_became_slow_is_learned_from_misses_alone():
    links = LinkDeadlines(10.0, 1.0, 60.0)
    for _ in range(LINK_ARRIVALS):
        links.observe(PEERS[0], 2.0)
    for _ in range(LINK_ARRIVALS // 2 + 1):
        if links.allowance(PEERS[0]) < 8.0:
            links.missed(PEERS[0])
            links.missed(PEERS[0])
        links.observe(PEERS[0], 8.0)
    assert links.allowance(PEERS[0]) >= 8.0


def test_memory_of_links_is_bounded_and_forgets_who_was_not_seen_for_longest():
    links = LinkDeadlines(10.0, 1.0, 60.0)
    for number in range(MAX_LINKS + 50):
        for _ in range(FEWEST_ARRIVALS):
            links.observe(named(number), 40.0)
        links.observe(named(0), 5.0)
    assert len(links._links) == MAX_LINKS
    assert named(0) in links._links
    assert links.allowance(named(1)) == links.seconds


def test_a_pace_is_the_median_interval():
    pace = LearnedPace()
    assert pace.seconds is None
    pace.observe(5.0)
    assert pace.seconds is None
    for now in (15.0, 25.0, 125.0, 135.0):
        pace.observe(now)
    assert pace.seconds == 10.0
