"""The list of people on the page, in its order or from a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dashboard.history_facts import ContributorRow, HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.environment import TEMPLATES, with_ages

MAX_CONTRIBUTORS_SHOWN: Final = 25
"""Rows on the page; the search, a link and the API reach all contributors."""
MAX_LISTED: Final = 75
"""Rows on request: some seven screens of a phone. Further pages show the rest."""


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
    """Return the ranking of search results: `limit` rows of `found`, which is sorted by `sort`."""
    values = {"state": state, "num_contributors": len(history.contributors), "found": found}
    values |= {"sort": sort, "limit": limit, "offset": offset, "search": search}
    return with_ages(TEMPLATES.get_template("people.html").render(values), now)
