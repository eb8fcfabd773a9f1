"""`HistoryReader`: bounded queries to the history, for pages of the past."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

from dashboard.credit.contributor_ledger import Ledger
from dashboard.credit.credited_members import round_facts_of
from dashboard.credit.work_log import WorkLog, numbers_of
from dashboard.history.database import Database
from dashboard.history.writing import commit_of_row, points_between, readable
from dashboard.history_facts import HistoryPoint, RoundFacts

PROOF_PAGE: Final = 200
"""Signed commits read at a time while a proof is sent: well below a megabyte for typical swarms."""


class HistoryReader:
    """Reads the file; `ledger` decides which rows count."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self._database = database
        self._ledger = ledger

    async def rounds(self, limit: int, before: int | None) -> list[tuple[int, RoundFacts]]:
        """Return (number, round) of counted rounds, newest first; `before`: a number from an earlier answer."""
        found: list[tuple[int, RoundFacts]] = []
        counted = self._ledger.counting.rounds
        first = before if before is not None else 1 << 62
        query = "SELECT id, seen_at, credit FROM receipts WHERE id < ? ORDER BY id DESC LIMIT ?"
        while len(found) < limit and (rows := await self._database.do(_rows, query, (first, limit))):
            first = rows[-1][0]
            found += _facts(row for row in rows if row[0] in counted)
        return found[:limit]

    async def rounds_of(self, logs: Sequence[WorkLog], limit: int) -> list[RoundFacts]:
        """Return the newest rounds in these logs, newest first."""
        rows = await self._numbered("id, seen_at, credit", numbers_of(logs)[-limit:])
        return [facts for _, facts in _facts(rows)][::-1]

    async def proof(self, logs: Sequence[WorkLog]) -> AsyncIterator[bytes]:
        """Yield all counted signed commits in these logs, oldest first."""
        numbers = numbers_of(logs)
        for begin in range(0, len(numbers), PROOF_PAGE):
            for (raw,) in await self._numbered("raw", numbers[begin : begin + PROOF_PAGE]):
                yield raw

    async def points(self, begin_at: float, max_points: int) -> list[HistoryPoint]:
        """Return about `max_points` points of the run since `begin_at`, oldest first."""
        return await self._database.do(points_between, begin_at, max_points)

    async def _numbered(self, columns: str, numbers: Sequence[int]) -> list[tuple[Any, ...]]:
        marks = ", ".join("?" * len(numbers))
        query = f"SELECT {columns} FROM receipts WHERE id IN ({marks}) ORDER BY id"
        return await self._database.do(_rows, query, tuple(numbers))


def _rows(database: sqlite3.Connection, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return database.execute(query, values).fetchall()


def _facts(rows: Iterable[tuple[Any, ...]]) -> list[tuple[int, RoundFacts]]:
    return [(one.num, round_facts_of(one.credit, one.at)) for one in readable(rows, commit_of_row)]
