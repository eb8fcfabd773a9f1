"""Filter and order contributors for a query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dashboard.history_facts import ContributorRow, HistoryView
from dashboard.server.api_queries import ContributorsQuery
from dht.identity.speakable import speakable_name


def found_contributors(history: HistoryView, query: ContributorsQuery) -> list[ContributorRow]:
    """Return all contributors that match `query`, in its order."""
    rows = list(history.contributors)
    if search := query.search.casefold():
        if not history.searched:
            history.searched.extend(map(_searched, rows))
        rows = [row for row, text in zip(rows, history.searched, strict=True) if search in text]
    if query.sort == "tokens":
        return rows
    return sorted(rows, key=_SORT_KEYS[query.sort])


_SORT_KEYS: Final[dict[str, Callable[[ContributorRow], Any]]] = {
    "reported": lambda row: -row.milli_tokens_reported,
    "rounds": lambda row: -row.rounds,
    "first": lambda row: row.first_at,
    "last": lambda row: -row.last_at,
    "name": lambda row: (not row.name, row.name.casefold()),
}
"""The default order is by witnessed tokens, the most first."""


def _searched(row: ContributorRow) -> str:
    """Return the searchable text of a contributor, in lines."""
    parts = [row.name or speakable_name(row.contributor_id), row.contributor_id, row.country, row.team]
    for machine in row.machines:
        parts += (machine.peer_id, machine.device)
    return "\n".join(parts).casefold()
