"""Numbers, shares and times as page, panel, lines and status write them."""

from __future__ import annotations

import pytest

from dht.ground.quantities import (
    arrival_text,
    bytes_text,
    clock_text,
    count_text,
    date_text,
    loss_text,
    moment_text,
    seconds_text,
    share_text,
    short_time,
    state_text,
)

NOW = 1_900_000_000.0
"""17 March 2030."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


@pytest.mark.parametrize(
    ("soonest", "latest", "told"),
    [
        (20.0, 20.0, "in about 20 s"),
        (5 * MINUTE, 10 * MINUTE, "in 5 min to 10 min"),
        (80 * MINUTE, 5 * HOUR, "in 80 min to 5 h"),
        (3 * HOUR, None, "in 3 h at the earliest"),
        (5 * DAY, 5 * DAY + HOUR, "about 22 March"),
        (5 * DAY, 8 * DAY, "between 22 March and 25 March"),
        (5 * DAY, None, "not before 22 March"),
        (400 * DAY, 400 * DAY, "about 21 April 2031"),
        (5 * DAY, 400 * DAY, "between 22 March 2030 and 21 April 2031"),
    ],
)
def test_a_goal_is_as_near_in_words_as_it_is(soonest: float, latest: float | None, told: str) -> None:
    assert arrival_text(NOW + soonest, None if latest is None else NOW + latest, NOW) == told


@pytest.mark.parametrize("at", [float(2**53 - 1), 1e300])
def test_a_moment_after_all_calendars_is_the_last_one_of_them(at: float) -> None:
    assert date_text(at) == "31 December 9999, 00:00 UTC"
    assert moment_text(at, DAY) == "00:00"
    assert clock_text(at).endswith(":00")


@pytest.mark.parametrize(
    ("count", "told"),
    [
        *[(0, "0"), (9_999, "9999"), (10_000, "10.0 k"), (14_000.0, "14.0 k"), (140_000, "140 k"), (999_600, "1.00 M")],
        *[(12.345, "12.3"), (3.5, "3.50"), (4_600.5, "4.60 k"), (-1_234_567, "-1.23 M"), (float("nan"), "unknown")],
    ],
)
def test_a_number_has_three_digits_so_that_a_column_is_even(count: float, told: str) -> None:
    assert count_text(count) == told


def test_units_and_states_have_one_form() -> None:
    assert [bytes_text(size) for size in (0, 512, 1_500, 450e6)] == ["0 B", "512 B", "1.50 kB", "450 MB"]
    assert [loss_text(loss) for loss in (1.93, None, float("nan"), 12_345.0)] == ["1.930", "–", "–", "1.23e+04"]
    assert loss_text(1.7314, "nats per byte") == "1.731 nats per byte"
    assert [seconds_text(seconds) for seconds in (0.35, 75, 7_260, 180_000)] == [
        *("0.35 s", "1 min 15 s", "2 h 1 min", "2 d 2 h")
    ]
    assert [short_time(seconds) for seconds in (-1.0, 59.0, 75.0, 93_600.0, 180_000.0)] == [
        *("0 s", "59 s", "1 min", "26 h", "2 d")
    ]
    assert [state_text(state) for state in ("training", "serving", "late", "silent", "left")] == [
        *("training", "paused", "unresponsive", "unresponsive", "left")
    ]
    assert state_text("serving", "seed") == "serving"


@pytest.mark.parametrize(
    ("share", "told"), [(0.0, "0%"), (1e-5, "<0.1%"), (0.1234, "12.3%"), (7020 / 7021, "99.9%"), (1.0, "100%")]
)
def test_shares_never_round_to_nothing_or_too_much(share: float, told: str) -> None:
    assert share_text(share) == told
