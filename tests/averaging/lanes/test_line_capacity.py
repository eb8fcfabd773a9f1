"""The line's rate is learned from what arrives of all lanes together while most of them have something under way."""

from __future__ import annotations

import pytest

from averaging.lanes.line_capacity import UploadRate

FRAME = 270_000


def send_all(meter, lanes, seconds_per_frame, frames_each, now=0.0):
    """All frames are written at once, into buffers; on the line the lanes take turns."""
    for lane in lanes:
        meter.began(lane, now)
    for lane in lanes:
        for _ in range(frames_each):
            meter.sent(lane, FRAME, now)
        meter.ended(lane)
    started = now
    for _ in range(frames_each):
        for lane in lanes:
            now += seconds_per_frame
            meter.acknowledged(lane, FRAME, started, now)
    return now


@pytest.mark.parametrize("num_lanes", [1, 3, 15])
def test_lanes_that_share_a_line_add_up_to_its_rate(num_lanes):
    meter = UploadRate()
    send_all(meter, range(num_lanes), 0.0216, 12)
    assert meter.bits_per_second == pytest.approx(8 * FRAME / 0.0216)


def test_frames_that_go_side_by_side_and_end_together_count_for_what_arrived_meanwhile():
    meter, lanes, now = UploadRate(), range(15), 0.0
    for lane in lanes:
        meter.began(lane, now)
        meter.sent(lane, FRAME, now)
        meter.ended(lane)
    # Fifteen frames share 20 Mbit/s for 1.62 s; the last bytes of each follow each other within 0.2 s.
    for number, lane in enumerate(lanes):
        meter.acknowledged(lane, FRAME, 0.0, 1.42 + 0.2 * (number + 1) / 15)
    # What has arrived in part, of the other half, is not known.
    assert 1e7 < meter.bits_per_second <= 2e7


def test_what_is_not_read_and_what_arrives_at_once_says_nothing():
    meter = UploadRate()
    meter.began("a", 0.0)
    for _ in range(20):
        meter.sent("a", FRAME, 0.0)
    meter.ended("a")
    assert meter.bits_per_second == 0.0
    send_all(meter, range(3), 0.0, 4)
    assert meter.bits_per_second == 0.0


def test_one_slow_remote_does_not_make_the_line_slow():
    meter, now = UploadRate(), 0.0
    for lane in ("slow", "b", "c"):
        meter.began(lane, now)
        for _ in range(12):
            meter.sent(lane, FRAME, now)
        meter.ended(lane)
    for _ in range(12):
        for lane in ("b", "c"):
            now += 0.0216
            meter.acknowledged(lane, FRAME, 0.0, now)
    for number in range(12):
        meter.acknowledged("slow", FRAME, 0.0, now + number)
    assert meter.bits_per_second == pytest.approx(8 * FRAME / 0.0216)


def test_a_queue_that_is_empty_for_a_moment_changes_nothing():
    meter, now = UploadRate(), 0.0
    for lane in "ab" * 20:
        meter.began(lane, now)
        meter.sent(lane, FRAME, now)
        meter.ended(lane)
        now += 0.0001
    for lane in "ab" * 20:
        started, now = now, now + 0.0216
        meter.acknowledged(lane, FRAME, started, now)
    assert meter.bits_per_second == pytest.approx(8 * FRAME / 0.0216, rel=0.01)


def test_a_remote_that_never_acknowledges_holds_no_count_open_and_a_pause_does_not_count():
    meter = UploadRate()
    meter.began("silent", 0.0)
    meter.sent("silent", FRAME, 0.0)
    meter.ended("silent")
    now = send_all(meter, range(3), 0.0216, 12, 60.0)
    send_all(meter, range(3), 0.0216, 12, now + 60.0)
    assert meter.bits_per_second == pytest.approx(8 * FRAME / 0.0216)


def test_a_line_that_became_slow_is_noticed_after_some_rounds():
    meter = UploadRate()
    now = send_all(meter, range(3), 0.0216, 12)
    for _ in range(8):
        now = send_all(meter, range(3), 0.216, 12, now)
    assert meter.bits_per_second == pytest.approx(1e7)


def test_a_lane_that_breaks_ends_its_count():
    meter = UploadRate()
    meter.lost("unknown")
    meter.ended("unknown")
    meter.sent("unknown", FRAME, 0.0)
    meter.acknowledged("unknown", FRAME, 0.0, 0.0)
    meter.began("a", 0.0)
    for number in range(10):
        meter.sent("a", FRAME, 0.0)
        meter.acknowledged("a", FRAME, 0.1 * number - 0.1, 0.1 * number)
    meter.lost("a")
    assert meter.bits_per_second == pytest.approx(8 * FRAME / 0.1)
    meter.acknowledged("a", FRAME, 4.9, 5.0)
    assert meter.bits_per_second == pytest.approx(8 * FRAME / 0.1)
