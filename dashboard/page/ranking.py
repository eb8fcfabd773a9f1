"""The list of people on the page, in its order, and as far as somebody searched for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dashboard.history_facts import ContributorRow, HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.environment import TEMPLATES, with_ages

MAX_CONTRIBUTORS_SHOWN: Final = 25
"""Rows on the page; search, a link and the API reach all of them."""
MAX_LISTED: Final = 75
"""Rows when somebody asks for more: some seven screens of a phone. The rest follows on further pages."""


def render_people(
    state: DashboardState,
    found: Sequence[ContributorRow],
    history: HistoryView,
    *,
    sort: str,
    limit: int,
    offset: int = 0,
    search: str = "",
    now: float,
) -> str:
    """The ranking as far as somebody searched for it: `limit` rows of `found`, which is sorted by `sort`."""
    values = {"state": state, "num_contributors": len(history.contributors), "found": found}
    values |= {"sort": sort, "limit": limit, "offset": offset, "search": search}
    return with_ages(TEMPLATES.get_template("people.html").render(values), now)
