"""Dates as people read them, and times until then; all dates are UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_DAY_SECONDS: Final = 86_400.0
_NO_YEAR_SECONDS: Final = 300 * _DAY_SECONDS
"""A day of the coming months needs no year."""


def day_text(at: float) -> str:
    """Of unix seconds: ``3 March 2030``."""
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment.day} {moment:%B %Y}"


def short_day(at: float) -> str:
    """Of unix seconds: ``3 March``."""
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment.day} {moment:%B}"


def arrival_text(soonest_at: float, latest_at: float | None, now: float) -> str:
    """When a goal will be reached: ``in 3 to 5 h``, ``between 2 and 5 December``.

    Args:
        latest_at: unix seconds, as the other two; None: nobody can say.
    """
    day = short_day if max(soonest_at, latest_at or 0.0) - now < _NO_YEAR_SECONDS else day_text
    if latest_at is None and soonest_at - now > 2 * _DAY_SECONDS:
        return f"not before {day(soonest_at)}"
    if latest_at is None:
        return f"in {_hours(soonest_at - now)} at the earliest"
    if latest_at - now < 2 * _DAY_SECONDS:
        low, high = _hours(soonest_at - now), _hours(latest_at - now)
        if low == high:
            return f"in about {high}"
        number, _, unit = low.partition(" ")
        return f"in {number if high.endswith(f' {unit}') else low} to {high}"
    date, later_date = day(soonest_at), day(latest_at)
    return f"about {date}" if date == later_date else f"between {date} and {later_date}"


def until_text(until: float, now: float) -> str:
    """A date that is a goal, of unix seconds: ``until 3 March 2030, 26 h left``."""
    left = until - now
    if left <= 0:
        return f"until {day_text(until)}"
    days = f"{int(left / _DAY_SECONDS)} d" if left >= 2 * _DAY_SECONDS else _hours(left)
    return f"until {day_text(until)}, {days} left"


def _hours(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{round(seconds / 3600)} h"
