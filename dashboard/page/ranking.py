"""The list of people on the page, in its order, and as far as somebody searched for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dashboard.history_facts import ContributorRow, HistoryView, Period
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.environment import TEMPLATES, with_ages

MAX_CONTRIBUTORS_SHOWN: Final = 25
"""Rows on the page; search, a link and the API reach all of them."""
MAX_LISTED: Final = 75
"""Rows when somebody asks for more: some seven screens of a phone. The rest follows on further pages."""
PERIODS: Final[tuple[tuple[Period, str], ...]] = (("today", "Today"), ("week", "7 days"), ("all", "All"))


def render_people(
    state: DashboardState,
    found: Sequence[ContributorRow],
    history: HistoryView,
    *,
    by: Period = "all",
    sort: str,
    limit: int,
    offset: int = 0,
    search: str = "",
    now: float,
) -> str:
    """The ranking as far as somebody searched for it: `limit` rows of `found`, which is sorted by `sort`."""
    values = ranking_values(found, history, by, sort, limit, search, offset)
    values |= {"state": state, "num_contributors": len(history.contributors)}
    return with_ages(TEMPLATES.get_template("people.html").render(values), now)


def ranking_values(
    found: Sequence[ContributorRow],
    history: HistoryView,
    by: Period,
    sort: str,
    limit: int,
    search: str = "",
    offset: int = 0,
) -> dict[str, Any]:
    """Data of a table of contributors."""
    period_milli = sum(row.standing(by).milli_tokens_witnessed for row in history.contributors) if by != "all" else 0
    asked = {"by": by, "sort": sort, "limit": limit, "search": search, "offset": offset}
    return {"found": found, "period_milli": period_milli, **asked}
