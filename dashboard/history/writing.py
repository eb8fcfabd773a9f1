"""Writes the history's file, and reads it back at a start. One transaction per batch."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from dashboard.credit.contributor_ledger import SECONDS_PER_DAY, Ledger
from dashboard.credit.credited_members import CommitCredit
from dashboard.history.database import APPLICATION_ID, SCHEMA_VERSION, TABLES, transaction
from dashboard.history.rows import (
    MARK_KINDS,
    NEWS_KINDS,
    POINT_SECONDS,
    Batch,
    Value,
    credit_of_row,
    credit_text,
    gap_of_values,
    machine_of_row,
    machine_text,
    mark_of_row,
    news_of_row,
    point_of_text,
    point_row,
    profile_of_row,
    profile_text,
    readable,
    sample_of_values,
)
from dashboard.history_facts import ChartMark, Condition, Gap, HistoryPoint, ModelSample, PeopleNews
from dashboard.observe.listed_peers import MAX_PEERS

PAGE_BYTES: Final = 4096
EVENT_SECONDS: Final = 2 * SECONDS_PER_DAY
"""Events that are not kept, such as the coming and going of peers that no commit lists, are deleted after this."""


@dataclass
class Loaded:
    """The content of a file from earlier sessions."""

    ledger: Ledger = field(default_factory=Ledger)
    points: list[HistoryPoint] = field(default_factory=list)
    people_news: list[PeopleNews] = field(default_factory=list)
    """The newest, oldest first."""
    gaps: list[Gap] = field(default_factory=list)
    samples: list[ModelSample] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    rounds: list[tuple[int, CommitCredit]] = field(default_factory=list)
    """Numbers and credits of the newest receipts, whether they count or not, oldest first."""
    marks: list[ChartMark] = field(default_factory=list)
    """Oldest first."""
    conditions: dict[str, Condition] = field(default_factory=dict)
    """Peers that were there when the last session ended."""
    next_commit: int = 1
    next_event: int = 1
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows that could not be read, by their table."""


def prepare(database: sqlite3.Connection, is_new: bool, run_id: str, now: float) -> None:
    """Sets up the connection, and makes the tables of a new file."""
    database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    database.execute("PRAGMA journal_mode = WAL")
    # A power cut may take the last second along, never the file: what was lost is fetched from members again.
    database.execute("PRAGMA synchronous = NORMAL")
    # A name that was withdrawn is gone from the file too, not only from its tables.
    database.execute("PRAGMA secure_delete = ON")
    if not is_new:
        return  # nothing is written: a page begins on a full disk too
    with transaction(database):
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in TABLES.split(";"):
            database.execute(statement)
        database.execute("INSERT INTO meta VALUES ('run_id', ?), ('created_at', ?)", (run_id, now))
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def load(database: sqlite3.Connection, num_points: int, num_rounds: int, num_marks: int, num_news: int) -> Loaded:
    """Reads everything that is held in memory, and makes the totals again from the receipts."""
    loaded = Loaded(meta=dict(database.execute("SELECT name, value FROM meta")))

    def read(query: str, make: Callable[..., Value], table: str, *values: Any) -> Iterable[Value]:
        return readable(database.execute(query, values), make, table, loaded.skipped)

    def newest_events(kinds: Iterable[str], columns: str, make: Callable[..., Value], num: int) -> list[Value]:
        query = f"SELECT {columns} FROM events WHERE kind IN {tuple(kinds)} ORDER BY id DESC LIMIT ?"
        return list(read(query, make, "events", num))[::-1]

    def whole_list(name: str, make: Callable[..., Value]) -> list[Value]:
        try:
            rows = [tuple(row) for row in json.loads(loaded.meta.get(name, "[]"))]
        except (ValueError, TypeError):
            loaded.skipped[name] += 1
            return []
        return list(readable(rows, make, name, loaded.skipped))

    ledger = loaded.ledger
    for machine in read("SELECT * FROM machines", machine_of_row, "machines"):
        ledger.machines[machine.peer_id] = machine
    for profile in read("SELECT * FROM profiles", profile_of_row, "profiles"):
        ledger.add_profile(profile)
    newest: deque[tuple[int, CommitCredit]] = deque(maxlen=num_rounds)
    for num, credit in read("SELECT id, credit FROM receipts ORDER BY id", credit_of_row, "receipts"):
        ledger.put(credit, 0.0, num)
        newest.append((num, credit))
    ledger.settle()
    loaded.rounds = list(newest)
    loaded.gaps = whole_list("gaps", gap_of_values)
    loaded.samples = whole_list("samples", sample_of_values)
    loaded.points = points_between(database, 0.0, num_points, loaded.skipped)
    loaded.people_news = newest_events(NEWS_KINDS, "at, kind, peer_id, tokens, detail", news_of_row, num_news)
    loaded.marks = newest_events(MARK_KINDS, "at, tokens, kind, peer_id", mark_of_row, num_marks)
    comings = (
        "SELECT peer_id FROM (SELECT peer_id, kind, max(id) AS id FROM events WHERE kind IN ('joined', 'returned', "
        "'left', 'silent') GROUP BY peer_id) WHERE kind IN ('joined', 'returned') ORDER BY id DESC LIMIT ?"
    )
    loaded.conditions = {peer_id: "here" for (peer_id,) in database.execute(comings, (MAX_PEERS,))}
    loaded.next_commit, loaded.next_event = (
        database.execute(f"SELECT coalesce(max(id), 0) + 1 FROM {table}").fetchone()[0]
        for table in ("receipts", "events")
    )
    return loaded


def write(database: sqlite3.Connection, batch: Batch) -> None:
    """Writes all of `batch`, or nothing; written twice it is as written once.

    Raises:
        sqlite3.Error: nothing was written.
    """
    rows: dict[str, list[tuple[Any, ...]]] = {
        "receipts": [(one.num, one.seen_at, credit_text(one.credit, one.seen_at), one.raw) for one in batch.commits],
        "machines": [(machine.peer_id, machine_text(machine)) for machine in batch.machines.values()],
        "profiles": [(profile.contributor_id, profile_text(profile)) for profile in batch.profiles],
        "events": [
            (one.number, one.at, one.kind, one.peer_id, one.tokens, json.dumps(one.detail), int(one.is_kept))
            for one in batch.events
        ],
        "points": [point_row(point) for point in batch.points],
        "meta": list(batch.meta.items()),
    }
    with transaction(database):
        for table, values in rows.items():
            if values:
                marks = ", ".join("?" * len(values[0]))
                database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)
        database.executemany("DELETE FROM receipts WHERE id = ?", [(num,) for num in batch.released])


def forget_old(database: sqlite3.Connection, now: float) -> None:
    """Deletes events that are not kept for longer, at `now` (unix seconds)."""
    database.execute("DELETE FROM events WHERE at < ? AND NOT is_kept", (now - EVENT_SECONDS,))


def points_between(
    database: sqlite3.Connection, begin_at: float, max_points: int, skipped: Counter[str] | None = None
) -> list[HistoryPoint]:
    """Returns about `max_points` since `begin_at`, evenly chosen, oldest first, the newest among them.

    Points that cannot be read are counted in `skipped`.
    """
    first, last = database.execute("SELECT min(place), max(place) FROM points").fetchone()
    if first is None:
        return []
    place = max(first, int(begin_at // POINT_SECONDS))
    step = max(1, -(-(last - place + 1) // max_points))
    texts: list[tuple[str]] = []
    query = "SELECT place, point FROM points WHERE place >= ? ORDER BY place LIMIT 1"
    while found := database.execute(query, (place,)).fetchone():
        texts.append(found[1:])
        if found[0] == last:
            break
        # The next one, or the last of all.
        place = min(last, max(place + step, found[0] + 1))
    return list(readable(texts, point_of_text, "points", skipped))
