"""The pace finds a line's rate from acknowledgements alone, and stays there. A line here is one queue, in order."""

from __future__ import annotations

import bisect

import pytest

from averaging.line_pace import BEGINNING_BYTES_PER_SECOND, QUEUE_SECONDS, SLOWEST_BYTES_PER_SECOND, LinePace

FRAME_BYTES = 540_000
MBIT = 1e6 / 8
REMOTES = ("a", "b", "c")


class Line:
    """Rounds of frames over a line: what is written at the pace leaves at the line's rate, and is acknowledged."""

    def __init__(self, bytes_per_second, round_trip_seconds=0.03, extra_delay=None):
        self.bytes_per_second = bytes_per_second
        self.round_trip_seconds = round_trip_seconds
        self.extra_delay = extra_delay or {}
        self.way_back_seconds = 0.0
        self.clocks_apart_seconds = -1234.5
        self.now = self.free_at = 0.0
        self.longest_queue_seconds = 0.0

    def round(self, pace, num_frames=36, remotes=REMOTES):
        started, unread = self.now, []
        for remote in remotes:
            read = started + self.round_trip_seconds / 2 + self.clocks_apart_seconds
            pace.greeted(remote, started, read, started + self.round_trip_seconds)
        self.longest_queue_seconds = 0.0
        for number in range(num_frames):
            self._hear(pace, unread, until=started)
            pace.started(started)
            written = started + (FRAME_BYTES / pace.bytes_per_second if pace.bytes_per_second else 1e-4)
            self.free_at = max(max(self.free_at, started) + FRAME_BYTES / self.bytes_per_second, written)
            self.longest_queue_seconds = max(self.longest_queue_seconds, self.free_at - written)
            remote = remotes[number % len(remotes)]
            late = self.extra_delay.get(remote, 0.0) * (number + 1)
            there = self.free_at + self.round_trip_seconds / 2 + late
            back = there + self.round_trip_seconds / 2 + self.way_back_seconds
            bisect.insort(unread, (back, remote, started, written, there + self.clocks_apart_seconds))
            started = written
        self._hear(pace, unread, until=float("inf"))
        pace.rest(self.now, is_idle=True)
        self.now += 1.0

    def _hear(self, pace, unread, until):
        while unread and unread[0][0] <= until:
            heard, remote, started, written, read = unread.pop(0)
            pace.acknowledged(remote, FRAME_BYTES, started, written, read, heard)
            pace.rest(heard, is_idle=False)
            self.now = max(self.now, heard)


@pytest.mark.parametrize("mbit", [2, 20, 100, 1000])
@pytest.mark.parametrize("round_trip_seconds", [0.005, 0.03, 0.2])
def test_the_pace_fills_the_line_and_not_the_queue(mbit, round_trip_seconds):
    line, pace = Line(mbit * MBIT, round_trip_seconds), LinePace()
    for _ in range(12):
        line.round(pace, num_frames=max(12, 2 * mbit))
    for _ in range(6):
        line.round(pace, num_frames=max(12, 2 * mbit))
        assert 0.65 * line.bytes_per_second < pace.bytes_per_second < 1.3 * line.bytes_per_second
    queue_seconds = max(QUEUE_SECONDS, round_trip_seconds)
    assert line.longest_queue_seconds < max(10 * queue_seconds, 2 * FRAME_BYTES / line.bytes_per_second)


def test_a_line_that_becomes_slower_or_faster_is_followed():
    line, pace = Line(100 * MBIT), LinePace()
    for rate in (100, 30, 90):
        line.bytes_per_second = rate * MBIT
        for _ in range(24):
            line.round(pace)
        assert 0.7 * rate < pace.bytes_per_second / MBIT < 1.3 * rate


def test_acknowledgements_that_wait_behind_the_remotes_own_data_slow_nobody_down():
    line, pace = Line(20 * MBIT), LinePace()
    for number in range(20):
        line.way_back_seconds = 0.4 * (number % 2)
        line.round(pace)
    assert 0.85 < pace.bytes_per_second / line.bytes_per_second < 1.1


def test_clocks_that_drift_apart_slow_nobody_down_for_more_than_the_way_there_and_back():
    line, pace = Line(20 * MBIT), LinePace()
    for _ in range(20):
        line.clocks_apart_seconds += 0.5
        line.round(pace)
    assert 0.85 < pace.bytes_per_second / line.bytes_per_second < 1.1


def test_a_line_that_is_full_stays_nearly_full():
    line, pace = Line(20 * MBIT), LinePace()
    for _ in range(10):
        line.round(pace)
    paces = []
    for _ in range(20):
        line.round(pace)
        paces.append(pace.bytes_per_second / line.bytes_per_second)
    assert 0.85 < min(paces) <= max(paces) < 1.1


@pytest.mark.parametrize("mbit", [17, 18, 19, 20, 22, 24, 28, 33])
def test_a_pace_that_overfilled_the_line_does_not_come_back_to_it(mbit):
    """Wherever its steps fall beside the line's rate; half of a router's queue is 50 ms."""
    line, pace = Line(mbit * MBIT), LinePace()
    line.round(pace)
    pace.bytes_per_second = 15 * MBIT
    overfilled = []
    for _ in range(25):
        line.round(pace)
        overfilled.append(line.longest_queue_seconds > 0.16)
    assert sum(overfilled) <= 3


def test_who_begins_too_fast_does_not_take_its_own_queue_for_a_long_way():
    line, pace = Line(8 * MBIT), LinePace()
    assert pace.bytes_per_second > 3 * line.bytes_per_second
    for _ in range(4):
        line.round(pace)
    assert 0.75 < pace.bytes_per_second / line.bytes_per_second < 1.1


@pytest.mark.parametrize("mbit", [30, 50, 100, 200])
def test_two_rounds_find_most_of_the_line(mbit):
    line, pace = Line(mbit * MBIT), LinePace()
    for _ in range(2):
        line.round(pace, num_frames=max(36, mbit))
    assert 0.6 < pace.bytes_per_second / line.bytes_per_second < 1.1
    line.round(pace)
    assert line.longest_queue_seconds < 0.1


def test_a_queue_is_gone_after_the_next_stretch_and_the_pace_comes_back():
    line, pace = Line(50 * MBIT), LinePace()
    for _ in range(12):
        line.round(pace)
    line.free_at = line.now + 0.4
    line.round(pace)
    line.round(pace)
    assert line.longest_queue_seconds < 0.1
    assert pace.bytes_per_second > 0.85 * line.bytes_per_second


def test_one_remote_that_acknowledges_ever_later_slows_nobody_down():
    line, pace = Line(50 * MBIT, extra_delay={"a": 0.2}), LinePace()
    for _ in range(20):
        line.round(pace)
    assert pace.bytes_per_second > 0.75 * line.bytes_per_second


def test_the_only_remote_can_slow_the_pace_as_far_as_the_slowest_and_it_recovers():
    line, pace = Line(50 * MBIT, extra_delay={"a": 0.5}), LinePace()
    for _ in range(60):
        line.round(pace, num_frames=12, remotes=("a",))
    assert SLOWEST_BYTES_PER_SECOND <= pace.bytes_per_second < line.bytes_per_second / 10
    line.extra_delay = {}
    for _ in range(60):
        line.round(pace, num_frames=12, remotes=("a",))
    assert 0.7 < pace.bytes_per_second / line.bytes_per_second < 1.3


def test_a_pause_after_a_lost_acknowledgement_is_no_slow_line():
    line, pace = Line(50 * MBIT), LinePace()
    pace.started(0.0)
    pace.acknowledged("a", FRAME_BYTES, 0.0, 0.05, 7.0, 0.1)
    line.now = 3600.0
    pace.resumed(line.now)
    line.round(pace)
    assert pace.bytes_per_second > 0.8 * line.bytes_per_second


def test_one_frame_without_a_greeting_is_no_queue():
    pace = LinePace()
    pace.started(0.0)
    pace.acknowledged("a", FRAME_BYTES, 0.0, 0.05, 7.0, 0.1)
    pace.rest(0.1, is_idle=True)
    assert pace.bytes_per_second > BEGINNING_BYTES_PER_SECOND


def test_a_stretch_whose_remotes_are_all_gone_says_nothing():
    line, pace = Line(50 * MBIT), LinePace()
    for _ in range(6):
        line.round(pace)
    before = pace.bytes_per_second
    pace.started(line.now)
    for number in range(12):
        at = line.now + 0.08 * number
        pace.acknowledged("a", FRAME_BYTES, at, at + 0.01, at + 7.0, at + 0.04)
    pace.forget("a")
    assert not pace.rest(line.now + 1.0, is_idle=True)
    assert pace.bytes_per_second == before


def test_a_short_pause_does_not_end_a_stretch():
    pace = LinePace()
    pace.started(0.0)
    for number in range(8):
        now = 0.1 * number
        pace.resumed(now)
        pace.acknowledged("a", FRAME_BYTES, now, now + 0.05, now + 7.0, now + 0.08)
    assert pace.rest(0.8, is_idle=True)


def test_a_little_data_makes_the_pace_faster_and_never_slower():
    line, pace = Line(50 * MBIT), LinePace()
    for _ in range(20):
        before = pace.bytes_per_second
        line.round(pace, num_frames=2)
        assert pace.bytes_per_second >= before
    assert pace.bytes_per_second > line.bytes_per_second
    line.bytes_per_second, before = 1 * MBIT, pace.bytes_per_second
    for _ in range(20):
        line.round(pace, num_frames=2)
    assert pace.bytes_per_second == before


def test_a_little_data_brings_a_slow_pace_back():
    line, pace = Line(50 * MBIT), LinePace()
    for _ in range(12):
        line.round(pace)
    usual = pace.bytes_per_second
    pace.bytes_per_second = 5 * MBIT
    for _ in range(20):
        line.round(pace, num_frames=3)
    assert 10 * MBIT < pace.bytes_per_second < 1.05 * usual


def test_who_sends_less_than_the_pace_allows_does_not_make_it_faster():
    pace = LinePace()
    line = Line(50 * MBIT)
    for _ in range(12):
        line.round(pace)
    before, now = pace.bytes_per_second, line.now
    for _ in range(50):
        for number in range(12):
            now += 1.0
            pace.started(now)
            pace.acknowledged("abc"[number % 3], FRAME_BYTES, now, now + 0.01, now + 7.0, now + 0.04)
            pace.rest(now + 0.04, is_idle=False)
        pace.rest(now, is_idle=True)
    assert pace.bytes_per_second == before


def test_acknowledgements_of_earlier_stretches_and_of_nobody_count_for_nothing():
    pace = LinePace()
    pace.acknowledged("a", FRAME_BYTES, 0.0, 0.1, 7.0, 0.2)
    assert not pace.rest(0.3, is_idle=True)
    pace.started(5.0)
    for number in range(20):
        pace.acknowledged("a", FRAME_BYTES, 1.0, 1.1, 7.0, 5.0 + number)
    assert not pace.rest(30.0, is_idle=True)
    pace.forget("a")
    assert pace.bytes_per_second == BEGINNING_BYTES_PER_SECOND
