"""Which contributors a query asks for, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dashboard.history_facts import ContributorRow, HistoryView
from dashboard.server.api_queries import ContributorsQuery
from dht.identity.speakable import speakable_name


def found_contributors(history: HistoryView, query: ContributorsQuery) -> list[ContributorRow]:
    """All that `query` searches for, in its order."""
    rows = [row for row in history.contributors if not query.search or _matches(row, query.search.casefold())]
    if query.by != "all":
        rows = [row for row in rows if row.standing(query.by).rank]
    if query.sort == "tokens":
        return rows if query.by == "all" else sorted(rows, key=lambda row: row.standing(query.by).rank)
    return sorted(rows, key=_SORT_KEYS[query.sort])


_SORT_KEYS: Final[dict[str, Callable[[ContributorRow], Any]]] = {
    "reported": lambda row: -row.milli_reported,
    "rounds": lambda row: -row.rounds,
    "first": lambda row: row.first_at,
    "last": lambda row: -row.last_at,
    "streak": lambda row: -row.streak_days,
    "name": lambda row: (not row.name, row.name.casefold()),
}
"""Rows come by witnessed tokens, the most first."""


def _matches(row: ContributorRow, search: str) -> bool:
    texts = [row.name or speakable_name(row.contributor_id), row.contributor_id, row.country, row.team]
    texts += [text for machine in row.machines for text in (machine.peer_id, machine.device)]
    return any(search in text.casefold() for text in texts)
