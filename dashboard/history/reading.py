"""Questions to the history's file that a page of the past needs, each bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiosqlite

from dashboard.credit.contributor_ledger import SECONDS_PER_HOUR
from dashboard.history.database import fetch_rows
from dashboard.history.rows import ROUND_COLUMNS, readable, round_facts_of, round_of_row, whole
from dashboard.history.writing import points_between
from dashboard.history_facts import HistoryPoint, RoundFacts, WorkPoint

MAX_CURVE_POINTS: Final = 500
MAX_LED: Final = 2000
"""Rounds that are looked at for who signed; some milliseconds."""
FIRST_DAY_SECONDS: Final = 86_400
"""For this long a contributor's work is told by the minute."""
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
    """Reads beside the one that writes."""

    def __init__(self, database: aiosqlite.Connection, peer_id_of: Callable[[int], str]) -> None:
        self._database = database
        self._peer_id_of = peer_id_of

    async def rounds(self, limit: int, before: int | None) -> list[tuple[int, RoundFacts]]:
        """(number, round), newest first; `before` a number that an earlier answer gave."""
        query = f"SELECT {ROUND_COLUMNS} FROM rounds WHERE is_counted = 1 AND id < ? ORDER BY id DESC LIMIT ?"
        first = before if before is not None else 1 << 62
        return self._round_facts(await fetch_rows(self._database, query, (first, limit)))

    async def rounds_of(self, machines: Sequence[int], limit: int) -> list[RoundFacts]:
        """Newest rounds that one of the machines was planned in, newest first."""
        query = (
            f"SELECT {ROUND_COLUMNS} FROM rounds WHERE id IN (SELECT DISTINCT round FROM credits WHERE "
            f"{_is_of(machines)} ORDER BY round DESC LIMIT ?) ORDER BY id DESC"
        )
        return [facts for _, facts in self._round_facts(await fetch_rows(self._database, query, (limit,)))]

    async def leaders(self, machines: Sequence[int]) -> set[str]:
        """PeerIds of those that led and signed the newest rounds of these machines, at most `MAX_LED` of them."""
        query = (
            f"SELECT DISTINCT leader FROM rounds WHERE is_counted AND id IN (SELECT round FROM credits WHERE "
            f"{_is_of(machines)} ORDER BY round DESC LIMIT ?)"
        )
        return {str(leader) for (leader,) in await fetch_rows(self._database, query, (MAX_LED,))}

    async def curve(self, machines: Sequence[int], first_at: float, now: float) -> list[WorkPoint]:
        """Work over time. It is nothing at `first_at`, then the totals at the end of each minute, or after a day of
        each hour, up to `now`. There are at most about `MAX_CURVE_POINTS`, evenly chosen, the first and the last among
        them.
        """
        is_new = now - first_at <= FIRST_DAY_SECONDS
        table, place, seconds = ("work_minutes", "minute", 60) if is_new else ("hours", "hour", SECONDS_PER_HOUR)
        query = (
            f"SELECT {place}, sum(witnessed), sum(reported), sum(rounds) FROM {table} WHERE {_is_of(machines)} "
            f"GROUP BY {place} ORDER BY {place}"
        )
        witnessed = reported = rounds = 0
        points: list[WorkPoint] = []
        for at, more_witnessed, more_reported, more_rounds in await fetch_rows(self._database, query):
            if not points:
                points.append(WorkPoint(first_at if first_at < (at + 1) * seconds else at * seconds, 0, 0, 0))
            elif points[-1].at < at * seconds < now:
                # Without work in between the line is level up to here.
                points.append(WorkPoint(at * seconds, witnessed, reported, rounds))
            witnessed, reported, rounds = witnessed + more_witnessed, reported + more_reported, rounds + more_rounds
            points.append(WorkPoint(min((at + 1) * seconds, now), witnessed, reported, rounds))
        if points and points[-1].at < now:
            points.append(WorkPoint(now, witnessed, reported, rounds))
        step = -(-len(points) // MAX_CURVE_POINTS) or 1
        return points[:1] + points[1:][::-1][::step][::-1]

    async def proof(self, machines: Sequence[int]) -> AsyncIterator[bytes]:
        """Every counted signed commit that names one of the machines, oldest first."""
        query = (
            f"SELECT DISTINCT id, raw FROM credits JOIN commits ON round = id WHERE {_is_of(machines)} AND id > ? "
            "ORDER BY id LIMIT ?"
        )
        after = 0
        while rows := await fetch_rows(self._database, query, (after, PROOF_PAGE)):
            for after, raw in rows:  # noqa: B007 (the next page begins after the last row)
                yield raw

    async def events(self, after: int, limit: int) -> list[EventRow]:
        """What happened after event number `after`, oldest first."""
        query = "SELECT id, at, kind, peer_id, tokens, detail FROM events WHERE id > ? ORDER BY id LIMIT ?"
        return list(readable(await fetch_rows(self._database, query, (after, limit)), _event_of_row))

    async def points(self, begin_at: float, max_points: int) -> list[HistoryPoint]:
        """About `max_points` of the run since `begin_at`, oldest first."""
        return await points_between(self._database, begin_at, max_points)

    def _round_facts(self, rows: list[tuple[Any, ...]]) -> list[tuple[int, RoundFacts]]:
        def facts_of(*row: Any) -> tuple[int, RoundFacts]:
            round_ = round_of_row(row, b"", self._peer_id_of)
            return round_.num, round_facts_of(round_.credit, float(row[3]))

        return list(readable(rows, facts_of))


def _is_of(machines: Sequence[int]) -> str:
    """The condition that a row is of one of these machines."""
    return f"machine IN ({', '.join(map(str, machines))})"


def _event_of_row(number: int, at: float, kind: str, peer_id: str, tokens: int, detail: str) -> EventRow:
    place = dict(json.loads(detail))
    fragment, version = (whole(place[name]) if name in place else None for name in ("fragment", "version"))
    return EventRow(number, float(at), str(kind), str(peer_id), int(tokens), fragment, version)
