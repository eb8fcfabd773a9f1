"""The line's rate is learned from what all lanes send together while most of them have something waiting."""

from __future__ import annotations

import pytest

from averaging.upload_rate import UploadRate

FRAME = 270_000


def send_all(meter, lanes, seconds_per_frame, frames_each, now=0.0, burst=0):
    """Lanes take turns on one line; the first `burst` frames of each go into empty buffers at once."""
    for lane in lanes:
        meter.began(lane)
    for number in range(frames_each):
        for lane in lanes:
            now += 0.0 if number < burst else seconds_per_frame
            meter.sent(lane, FRAME, now)
    for lane in lanes:
        meter.ended(lane, now)
    return now


@pytest.mark.parametrize("num_lanes", [1, 3, 15])
def test_lanes_that_share_a_line_add_up_to_its_rate(num_lanes):
    meter = UploadRate()
    send_all(meter, range(num_lanes), 0.0216, 12, burst=1)
    assert meter.bits_per_second == pytest.approx(8 * FRAME / 0.0216, rel=0.12)


def test_what_goes_into_buffers_at_once_says_nothing():
    meter = UploadRate()
    send_all(meter, range(3), 0.0, 2)
    assert meter.bits_per_second == 0.0


def test_one_slow_remote_does_not_make_the_line_slow():
    meter = UploadRate()
    now = send_all(meter, range(3), 0.0216, 12)
    fast = meter.bits_per_second
    meter.began("slow")
    for number in range(1, 10):
        meter.sent("slow", FRAME, now + number)
    meter.ended("slow", now + 9)
    assert meter.bits_per_second == fast


def test_a_line_that_became_slow_is_noticed_after_some_rounds():
    meter = UploadRate()
    now = send_all(meter, range(3), 0.0216, 12)
    for _ in range(8):
        now = send_all(meter, range(3), 0.216, 12, now)
    assert meter.bits_per_second == pytest.approx(1e7, rel=0.12)


def test_a_lane_that_breaks_ends_its_count():
    meter = UploadRate()
    meter.ended("unknown", 0.0)
    meter.sent("unknown", FRAME, 0.0)
    meter.began("a")
    meter.ended("a", 1.0)
    assert meter.bits_per_second == 0.0
