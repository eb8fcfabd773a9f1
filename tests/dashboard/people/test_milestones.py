"""What was reached, on which day, and when the next thing comes."""

from __future__ import annotations

import pytest

from dashboard.history_facts import DayOfWork
from dashboard.people.milestones import next_milestone, reached

DAY = 86_400.0


def test_milestones_have_the_day_on_which_they_were_passed() -> None:
    days = [DayOfWork(100, 900_000, 8), DayOfWork(101, 300_000, 4), DayOfWork(103, 2_000_000_000, 1)]
    assert [(one.text, one.day) for one in reached(days)] == [
        ("1 million tokens", 103),
        ("100 thousand tokens", 103),
        ("10 thousand tokens", 103),
        ("2 days in a row", 101),
        ("1 thousand tokens", 101),
        ("10 rounds", 101),
        ("first round", 100),
    ]
    assert reached([]) == ()


def test_the_next_one_comes_at_the_speed_of_the_last_days() -> None:
    days = [DayOfWork(90, 600_000, 1), DayOfWork(99, 300_000, 1), DayOfWork(100, 300_000, 1)]
    found = next_milestone(1_200_000, days, 90 * DAY, 100.5 * DAY)
    # 600 tokens in the six and a half days since day 94: 800 more take 8.7.
    assert (found.tokens, found.share) == (2000, 0.6)
    assert found.at == pytest.approx((100.5 + 6.5 * 800 / 600) * DAY)


def test_a_newcomer_is_measured_by_the_time_since_it_came() -> None:
    found = next_milestone(500_000, [DayOfWork(100, 500_000, 1)], 100 * DAY, 100 * DAY + 600)
    assert found.at == pytest.approx(100 * DAY + 1200)


def test_without_speed_there_is_no_date() -> None:
    assert next_milestone(500_000, [DayOfWork(50, 500_000, 1)], 50 * DAY, 100 * DAY).at is None
    assert next_milestone(0, [], 100 * DAY, 100 * DAY).at is None
    slow = [DayOfWork(100, 1, 1)]
    assert next_milestone(5_000_000_000_000, slow, 0.0, 100.5 * DAY).at is None
