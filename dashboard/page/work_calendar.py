"""Days of work as weeks, as a calendar shows them: a column per week, Monday on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from dashboard.history_facts import DayOfWork

SECONDS_PER_DAY: Final = 86_400
MAX_WEEKS: Final = 53
MIN_WEEKS: Final = 8
"""A calendar of a few days is still one."""
LEVELS: Final = 4
"""Shades of work; 0 is a day without any."""
_THURSDAY: Final = 3
"""1 January 1970 was one; Monday is 0."""


class Square(NamedTuple):
    """One day."""

    at: float
    """Unix seconds of its beginning (UTC)."""
    level: int
    work: DayOfWork | None


@dataclass(frozen=True, slots=True)
class Week:
    """A column."""

    month: str
    """``Mar`` in the first week that begins in another month than the one before; else empty."""
    squares: tuple[Square, ...]
    """From Monday; of the present week up to today."""


def weeks(days: Sequence[DayOfWork], now: float) -> tuple[Week, ...]:
    """The weeks up to `now` (unix seconds), oldest first: at most a year, at least `MIN_WEEKS`."""
    worked = {one.day: one for one in days}
    today = int(now // SECONDS_PER_DAY)
    monday = today - _weekday(today)
    first_day = min((one.day for one in days), default=today)
    num_weeks = max(MIN_WEEKS, min(MAX_WEEKS, (monday - (first_day - _weekday(first_day))) // 7 + 1))
    most = max((one.milli_witnessed for one in days if one.day > today - 7 * MAX_WEEKS), default=0)
    columns = []
    before = ""
    for first in range(monday - 7 * (num_weeks - 1), monday + 1, 7):
        squares = tuple(
            Square(float(day * SECONDS_PER_DAY), _level(worked.get(day), most), worked.get(day))
            for day in range(first, min(first + 7, today + 1))
        )
        month = f"{datetime.fromtimestamp(first * SECONDS_PER_DAY, UTC):%b}"
        columns.append(Week("" if month == before else month, squares))
        before = month
    return tuple(columns)


def _weekday(day: int) -> int:
    return (day + _THURSDAY) % 7


def _level(work: DayOfWork | None, most: int) -> int:
    if work is None:
        return 0
    return max(1, -(-LEVELS * work.milli_witnessed // most)) if most else 1
