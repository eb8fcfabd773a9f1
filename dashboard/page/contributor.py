"""A contributor's page and its certificate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from dashboard.history_facts import ContributorRow, ContributorView, DayOfWork
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.curves import work_curve
from dashboard.page.environment import contributor_path
from dashboard.page.page import Frame, document, round_values
from dashboard.people.ranking_words import share_words
from dht.identity.speakable import speakable_name

SECONDS_PER_DAY: Final = 86_400
MAX_WEEKS: Final = 53
MIN_WEEKS: Final = 8
"""Least number of weeks in a calendar, even for a few days."""
LEVELS: Final = 4
"""Shades of work; 0 is a day without work."""
_THURSDAY: Final = 3
"""Weekday of 1 January 1970; Monday is 0."""


def shown_name(row: ContributorRow) -> str:
    """Return the chosen name, or the one that follows from the key."""
    return row.name or speakable_name(row.contributor_id)


def render_contributor(
    state: DashboardState,
    view: ContributorView,
    frame: Frame,
    contributors: Sequence[ContributorRow] = (),
) -> str:
    """Return the page of `view`'s contributor: one person's witnessed work, and its proof.

    Args:
        contributors: contributors whose names may appear beside rounds.
    """
    values = _person(state, view) | round_values(state, view.rounds, contributors) | {"curve": work_curve(view.curve)}
    values |= {"weeks": weeks(view.days, frame.now)}
    return document("contributor.html", values, frame)


def render_certificate(state: DashboardState, view: ContributorView, frame: Frame) -> str:
    """Return a page to print: the contributor's work for the run, and the address of its proof."""
    return document("certificate.html", _person(state, view), frame)


def _person(state: DashboardState, view: ContributorView) -> dict[str, Any]:
    row = view.row
    num_ranked = max(view.num_ranked, row.rank)
    return {
        "state": state,
        "view": view,
        "row": row,
        "run": state.run_id.partition(".")[0],
        "shown_name": shown_name(row),
        "key": contributor_path(row.contributor_id).removeprefix("/c/"),
        "num_ranked": num_ranked,
        "share_words": share_words(row.share),
    }


class Square(NamedTuple):
    """One day of the calendar."""

    at: float
    """Beginning of the day (UTC) in unix seconds."""
    level: int
    work: DayOfWork | None


def weeks(days: Sequence[DayOfWork], now: float) -> list[tuple[str, list[Square]]]:
    """Return the weeks up to `now` (unix seconds), oldest first: at most a year, at least `MIN_WEEKS`.

    Each is (month, days from Monday, in the present week up to today). The month is ``Mar`` in the first week that
    begins in a new one, and otherwise empty.
    """
    worked = {one.day: one for one in days}
    today = int(now // SECONDS_PER_DAY)
    monday = today - _weekday(today)
    first_day = min((one.day for one in days), default=today)
    num_weeks = max(MIN_WEEKS, min(MAX_WEEKS, (monday - (first_day - _weekday(first_day))) // 7 + 1))
    most = max((one.milli_tokens_witnessed for one in days if one.day > today - 7 * MAX_WEEKS), default=0)
    columns = []
    before = ""
    for first in range(monday - 7 * (num_weeks - 1), monday + 1, 7):
        squares = [
            Square(float(day * SECONDS_PER_DAY), _level(worked.get(day), most), worked.get(day))
            for day in range(first, min(first + 7, today + 1))
        ]
        month = f"{datetime.fromtimestamp(first * SECONDS_PER_DAY, UTC):%b}"
        columns.append(("" if month == before else month, squares))
        before = month
    return columns


def _weekday(day: int) -> int:
    return (day + _THURSDAY) % 7


def _level(work: DayOfWork | None, most: int) -> int:
    if work is None:
        return 0
    return max(1, -(-LEVELS * work.milli_tokens_witnessed // most)) if most else 1
