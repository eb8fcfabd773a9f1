"""`HistoryReader`: the questions to the history that a page of the past needs, each bounded."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dashboard.credit.contributor_ledger import Ledger
from dashboard.credit.work_log import WorkLog, numbers_of
from dashboard.history.database import Database
from dashboard.history.rows import credit_of_row, readable, round_facts_of, whole
from dashboard.history.writing import points_between
from dashboard.history_facts import HistoryPoint, RoundFacts

PROOF_PAGE: Final = 200
"""Signed commits read at a time while a proof is sent: well below a megabyte for usual swarms."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """One line of the list of events; `number` grows. `fragment` and `version` are those of a commit."""

    number: int
    at: float
    kind: str
    peer_id: str
    tokens: int
    fragment: int | None
    version: int | None


class HistoryReader:
    """Reads what the file has; `ledger` says what of it counts."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self._database = database
        self._ledger = ledger

    async def rounds(self, limit: int, before: int | None) -> list[tuple[int, RoundFacts]]:
        """Returns (number, round) of rounds that count, newest first; `before` a number that an earlier answer gave."""
        found: list[tuple[int, RoundFacts]] = []
        counted = self._ledger.counting.rounds
        first = before if before is not None else 1 << 62
        query = "SELECT id, credit FROM receipts WHERE id < ? ORDER BY id DESC LIMIT ?"
        while len(found) < limit and (rows := await self._database.do(_rows, query, (first, limit))):
            first = rows[-1][0]
            found += _facts(row for row in rows if row[0] in counted)
        return found[:limit]

    async def rounds_of(self, logs: Sequence[WorkLog], limit: int) -> list[RoundFacts]:
        """Returns the newest rounds in these logs, newest first."""
        rows = await self._numbered("credit", numbers_of(logs)[-limit:])
        return [facts for _, facts in _facts(rows)][::-1]

    async def proof(self, logs: Sequence[WorkLog]) -> AsyncIterator[bytes]:
        """Yields every counted signed commit in these logs, oldest first."""
        numbers = numbers_of(logs)
        for begin in range(0, len(numbers), PROOF_PAGE):
            for _, raw in await self._numbered("raw", numbers[begin : begin + PROOF_PAGE]):
                yield raw

    async def events(self, after: int, limit: int) -> list[EventRow]:
        """Returns what happened after event number `after`, oldest first."""
        query = "SELECT id, at, kind, peer_id, tokens, detail FROM events WHERE id > ? ORDER BY id LIMIT ?"
        return list(readable(await self._database.do(_rows, query, (after, limit)), _event_of_row))

    async def points(self, begin_at: float, max_points: int) -> list[HistoryPoint]:
        """Returns about `max_points` of the run since `begin_at`, oldest first."""
        return await self._database.do(points_between, begin_at, max_points)

    async def _numbered(self, column: str, numbers: Sequence[int]) -> list[tuple[Any, ...]]:
        marks = ", ".join("?" * len(numbers))
        query = f"SELECT id, {column} FROM receipts WHERE id IN ({marks}) ORDER BY id"
        return await self._database.do(_rows, query, tuple(numbers))


def _rows(database: sqlite3.Connection, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return database.execute(query, values).fetchall()


def _facts(rows: Iterable[tuple[Any, ...]]) -> list[tuple[int, RoundFacts]]:
    return [(num, round_facts_of(credit, credit.at or 0.0)) for num, credit in readable(rows, credit_of_row)]


def _event_of_row(number: int, at: float, kind: str, peer_id: str, tokens: int, detail: str) -> EventRow:
    place = dict(json.loads(detail))
    fragment, version = (whole(place[name]) if name in place else None for name in ("fragment", "version"))
    return EventRow(number, float(at), str(kind), str(peer_id), int(tokens), fragment, version)
