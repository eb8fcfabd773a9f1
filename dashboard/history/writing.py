"""Write the history's file, and load it at a start. One transaction for each batch."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import TypeAdapter

from dashboard.credit.contributor_ledger import Ledger, MachineTotals
from dashboard.credit.credited_members import CommitCredit
from dashboard.history.database import (
    APPLICATION_ID,
    MACHINE_COLUMNS,
    POINT_COLUMNS,
    SCHEMA_VERSION,
    TABLES,
    transaction,
)
from dashboard.history_facts import ChartMark, Gap, HistoryPoint, ModelSample
from dht.records.profiles import Profile

PAGE_BYTES: Final = 4096
POINT_SECONDS: Final = 10
"""The file has one point of the curves for each such interval: a megabyte a day."""

Value = TypeVar("Value")

CREDIT: Final = TypeAdapter(CommitCredit)
_POINT: Final = TypeAdapter(HistoryPoint)
_PROFILE: Final = TypeAdapter(Profile)
_LISTS: Final[dict[str, TypeAdapter[Any]]] = {
    "gaps": TypeAdapter(list[Gap]),
    "marks": TypeAdapter(list[ChartMark]),
    "samples": TypeAdapter(list[ModelSample]),
}
"""Lists that are stored whole, as JSON, under these names in `meta`."""


class StoredCommit(NamedTuple):
    """A signed commit in the history."""

    num: int
    """Its number in the file."""
    at: float
    """When it was received, in unix seconds."""
    credit: CommitCredit
    raw: bytes = b""
    """The commit itself; not loaded from the file."""
    is_new: bool = False
    """Whether its round had just closed."""


@dataclass
class Batch:
    """Rows to write in one transaction; while writing fails, it grows by less than a megabyte an hour."""

    commits: list[StoredCommit] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    """Numbers of commits to delete, because their version has too many heavier ones."""
    machines: dict[str, MachineTotals] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    points: dict[int, HistoryPoint] = field(default_factory=dict)
    """Points by their place in the file; a later point replaces the one at its place."""
    meta: dict[str, float | bytes | str] = field(default_factory=dict)

    def absorb(self, later: Batch) -> None:
        """Add the data of a later batch, since this one could not be written."""
        for name, held in vars(self).items():
            if isinstance(held, dict):
                held.update(getattr(later, name))
            else:
                held.extend(getattr(later, name))

    def add_point(self, point: HistoryPoint) -> None:
        """Add a point of the curves."""
        self.points[int(point.at // POINT_SECONDS)] = point

    def keep_list(self, name: str, values: list[Any]) -> None:
        """Replace a list of `_LISTS`."""
        self.meta[name] = _LISTS[name].dump_json(values)


@dataclass
class Loaded:
    """The content of a file from earlier sessions."""

    ledger: Ledger = field(default_factory=Ledger)
    points: list[HistoryPoint] = field(default_factory=list)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    """The lists of `_LISTS`, each oldest first."""
    meta: dict[str, Any] = field(default_factory=dict)
    commits: list[StoredCommit] = field(default_factory=list)
    """The newest ones, including those that do not count, oldest first."""
    next_commit: int = 1
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows that could not be read, by their table."""


def prepare(database: sqlite3.Connection, is_new: bool, run_id: str, now: float) -> None:
    """Set up the connection, and create the tables of a new file."""
    database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    database.execute("PRAGMA journal_mode = WAL")
    # A power cut may lose the last second but not the file; lost data is fetched from members again.
    database.execute("PRAGMA synchronous = NORMAL")
    # Also removes a withdrawn name from the file's bytes, not only from its tables.
    database.execute("PRAGMA secure_delete = ON")
    if not is_new:
        return  # nothing is written, so a page also starts with a full disk
    with transaction(database):
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in TABLES.split(";"):
            database.execute(statement)
        database.execute("INSERT INTO meta VALUES ('run_id', ?), ('created_at', ?)", (run_id, now))
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def load(database: sqlite3.Connection, num_points: int, num_rounds: int) -> Loaded:
    """Load all data held in memory, and recompute the totals from the receipts."""
    loaded = Loaded(meta=dict(database.execute("SELECT name, value FROM meta")))
    ledger, skipped = loaded.ledger, loaded.skipped
    for row in database.execute(f"SELECT {', '.join(MACHINE_COLUMNS)} FROM machines"):
        ledger.machines[row[0]] = MachineTotals(*row)
    texts = database.execute("SELECT facts FROM profiles")
    for profile in readable(texts, _PROFILE.validate_json, "profiles", skipped):
        ledger.add_profile(profile)
    receipts = database.execute("SELECT id, seen_at, credit FROM receipts ORDER BY id")
    for commit in readable(receipts, commit_of_row, "receipts", skipped):
        ledger.put(commit.credit, commit.at, commit.num)
        loaded.commits.append(commit)
        del loaded.commits[:-num_rounds]
    (loaded.next_commit,) = database.execute("SELECT coalesce(max(id), 0) + 1 FROM receipts").fetchone()
    ledger.settle()
    for name, values in _LISTS.items():
        stored = [(loaded.meta[name],)] if name in loaded.meta else []
        loaded.lists[name] = next(readable(stored, values.validate_json, name, skipped), [])
    loaded.points = points_between(database, 0.0, num_points, skipped)
    return loaded


def write(database: sqlite3.Connection, batch: Batch) -> None:
    """Write all of `batch`, or nothing. Writing it twice has the same result.

    Raises:
        sqlite3.Error: nothing was written.
    """
    rows: dict[str, list[tuple[Any, ...]]] = {
        "receipts": [(one.num, one.at, CREDIT.dump_json(one.credit).decode(), one.raw) for one in batch.commits],
        "machines": list(map(attrgetter(*MACHINE_COLUMNS), batch.machines.values())),
        "profiles": [(key, _PROFILE.dump_json(profile).decode()) for key, profile in batch.profiles.items()],
        "points": [(place, *astuple(point)) for place, point in batch.points.items()],
        "meta": list(batch.meta.items()),
    }
    with transaction(database):
        for table, values in rows.items():
            if values:
                marks = ", ".join("?" * len(values[0]))
                database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)
        database.executemany("DELETE FROM receipts WHERE id = ?", [(num,) for num in batch.released])


def readable(
    rows: Iterable[tuple[Any, ...]], make: Callable[..., Value], table: str = "", skipped: Counter[str] | None = None
) -> Iterator[Value]:
    """Yield `make(*row)` for readable rows; `skipped` counts the others by table."""
    for row in rows:
        try:
            value = make(*row)
        except (ValueError, TypeError):
            if skipped is not None:
                skipped[table] += 1
            continue
        yield value


def commit_of_row(num: int, seen_at: float, text: Any) -> StoredCommit:
    """Return a row of the receipts."""
    return StoredCommit(num, seen_at, CREDIT.validate_json(text))


def points_between(
    database: sqlite3.Connection, begin_at: float, max_points: int, skipped: Counter[str] | None = None
) -> list[HistoryPoint]:
    """Return about `max_points` points since `begin_at`, evenly chosen, oldest first, including the newest.

    `skipped` counts unreadable points.
    """
    first, last = database.execute("SELECT min(place), max(place) FROM points").fetchone()
    if first is None:
        return []
    place = max(first, int(begin_at // POINT_SECONDS))
    step = max(1, -(-(last - place + 1) // max_points))
    rows: list[tuple[dict[str, Any]]] = []
    query = "SELECT * FROM points WHERE place >= ? ORDER BY place LIMIT 1"
    while row := database.execute(query, (place,)).fetchone():
        rows.append((dict(zip(POINT_COLUMNS, row[1:], strict=True)),))
        if row[0] == last:
            break
        # The next point, or the last of all.
        place = min(last, max(place + step, row[0] + 1))
    return list(readable(rows, _POINT.validate_python, "points", skipped))
