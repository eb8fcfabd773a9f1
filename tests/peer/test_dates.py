"""When something will be, in words that page, panel and lines share."""

from __future__ import annotations

import pytest

from peer.dates import arrival_text, until_text

NOW = 1_900_000_000.0
"""17 March 2030."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


@pytest.mark.parametrize(
    ("soonest", "latest", "told"),
    [
        (20.0, 20.0, "in about 20 s"),
        (5 * MINUTE, 10 * MINUTE, "in 5 to 10 min"),
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


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (5 * DAY, "until 22 March 2030, 5 d left"),
        (26 * HOUR, "until 18 March 2030, 26 h left"),
        (50.0, "until 17 March 2030, 50 s left"),
        (-DAY, "until 16 March 2030"),
    ],
)
def test_a_date_is_a_goal_with_the_time_that_is_left(left: float, told: str) -> None:
    assert until_text(NOW + left, NOW) == told
