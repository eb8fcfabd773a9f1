"""Days of work as weeks."""

from __future__ import annotations

from dashboard.history_facts import DayOfWork
from dashboard.page.contributor import MAX_WEEKS, MIN_WEEKS, weeks

DAY = 86_400.0
SUNDAY = 20_000 // 7 * 7 + 3
"""Day 3 was a Sunday."""


def test_a_week_begins_on_monday_and_ends_today() -> None:
    columns = weeks([DayOfWork(SUNDAY, 500, 2), DayOfWork(SUNDAY + 2, 1000, 4)], (SUNDAY + 2) * DAY + 5)
    assert len(columns) == MIN_WEEKS
    assert [square.at for square in columns[-2][1]] == [(SUNDAY - 6 + weekday) * DAY for weekday in range(7)]
    assert columns[-2][1][6].work == DayOfWork(SUNDAY, 500, 2)
    assert [square.level for square in columns[-1][1]] == [0, 4]
    assert columns[-2][1][6].level == 2
    assert columns[-1][1][-1].at == (SUNDAY + 2) * DAY


def test_a_calendar_is_a_year_at_most_and_names_its_months() -> None:
    columns = weeks([DayOfWork(SUNDAY - 900, 1, 1)], SUNDAY * DAY)
    assert len(columns) == MAX_WEEKS
    assert 12 <= sum(bool(month) for month, _ in columns) <= 13


def test_work_that_nobody_witnessed_is_work() -> None:
    columns = weeks([DayOfWork(SUNDAY, 0, 3)], SUNDAY * DAY)
    assert columns[-1][1][-1].level == 1
