"""What is written into the history's file, and what is read back from it at a start. One transaction per batch."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import aiosqlite

from dashboard.credit.contributor_ledger import SECONDS_PER_HOUR, Ledger, MachineTotals
from dashboard.credit.credited_members import CommitCredit
from dashboard.credit.heaviest_commit_chains import Booking
from dashboard.history.database import APPLICATION_ID, SCHEMA_VERSION, TABLES, UPGRADES, fetch_rows
from dashboard.history.rows import (
    MARK_KINDS,
    NEWS_KINDS,
    ROUND_COLUMNS,
    Batch,
    StoredCommit,
    StoredRound,
    Value,
    gap_of_row,
    machine_of_row,
    machine_row,
    mark_of_row,
    missing_of_row,
    news_of_row,
    point_of_row,
    point_row,
    profile_of_text,
    profile_text,
    readable,
    round_of_row,
    round_row,
    sample_of_row,
    stored,
)
from dashboard.history.thinned_curves import mean_point
from dashboard.history_facts import ChartMark, Condition, Gap, HistoryPoint, MissingRounds, ModelSample, PeopleNews
from dashboard.observe.listed_peers import MAX_PEERS
from dht.ground.errors import UsageFault

PAGE_BYTES: Final = 4096
LOAD_ROWS: Final = 1000
"""Rounds read at a time at a start."""
MAX_HOUR: Final = 2**53
"""A machine's sums of one hour saturate there: 10^13 tokens; a person's machines together stay in 64 bits."""
ROLLUPS: Final = (("looks", "minutes", 60), ("minutes", "run_hours", SECONDS_PER_HOUR))
"""(table of points, table of their means, over how many seconds), the finest first."""

CheckCommit = Callable[[bytes], CommitCredit]
"""Checks a signed commit's every signature and says whom it credits; raises `PeerFault`."""

_WORK_ADD = (
    "INSERT INTO {} VALUES (?, ?, ?, ?, ?) ON CONFLICT (machine, {}) DO UPDATE SET "
    f"witnessed = min(witnessed + excluded.witnessed, {MAX_HOUR}), "
    f"reported = min(reported + excluded.reported, {MAX_HOUR}), rounds = rounds + excluded.rounds"
)


@contextlib.asynccontextmanager
async def _transaction(database: aiosqlite.Connection) -> AsyncIterator[None]:
    """All of what is written inside, or nothing."""
    try:
        await database.execute("BEGIN IMMEDIATE")
        yield
        await database.commit()
    except BaseException:  # cancelled, too: an open transaction would swallow the next one
        await database.rollback()
        raise


class MachineNums:
    """Short numbers of PeerIds, so that a hundred thousand rounds do not repeat them."""

    def __init__(self) -> None:
        self.by_id: dict[str, int] = {}
        self._ids: list[str] = [""]

    def num_of(self, peer_id: str) -> int:
        """The machine's number; the next free one for a new machine."""
        num = self.by_id.get(peer_id)
        if num is None:
            num = self.by_id[peer_id] = len(self._ids)
            self._ids.append(peer_id)
        return num

    def id_of(self, num: int) -> str:
        """Raises LookupError: the file has no such machine."""
        if not (peer_id := self._ids[num]):
            raise LookupError(f"no machine has number {num}")
        return peer_id

    def set(self, num: int, peer_id: str) -> None:
        """As the file says; numbers ascend."""
        self._ids += [""] * (num + 1 - len(self._ids))
        self._ids[num] = peer_id
        self.by_id[peer_id] = num


@dataclass
class Loaded:
    """What a file holds of earlier sessions."""

    ledger: Ledger = field(default_factory=Ledger)
    nums: MachineNums = field(default_factory=MachineNums)
    points: list[HistoryPoint] = field(default_factory=list)
    people_news: list[PeopleNews] = field(default_factory=list)
    """The newest, oldest first."""
    gaps: list[Gap] = field(default_factory=list)
    missing: list[MissingRounds] = field(default_factory=list)
    samples: list[ModelSample] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    rounds: list[StoredRound] = field(default_factory=list)
    """The newest ones, whether they count or not, oldest first."""
    marks: list[ChartMark] = field(default_factory=list)
    """Oldest first."""
    conditions: dict[str, Condition] = field(default_factory=dict)
    """Peers that were there when the last session ended."""
    next_commit: int = 1
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows that could not be read, by their table."""


async def prepare(database: aiosqlite.Connection, *, is_new: bool, run_id: str, now: float) -> None:
    """Settings of the connection; tables, as this software has them."""
    await database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    await database.execute("PRAGMA journal_mode = WAL")
    # A power cut may take the last second along, never the file: what was lost is fetched from members again.
    await database.execute("PRAGMA synchronous = NORMAL")
    # A name that was withdrawn is gone from the file too, not only from its tables.
    await database.execute("PRAGMA secure_delete = ON")
    ((version,),) = await fetch_rows(database, "PRAGMA user_version")
    if version == SCHEMA_VERSION:
        return  # nothing is written: a page begins on a full disk too
    async with _transaction(database):
        if is_new:
            version = 1
            await database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            await _execute_all(database, TABLES)
            await database.execute("INSERT INTO meta VALUES ('run_id', ?), ('created_at', ?)", (run_id, now))
        for schema in range(version, SCHEMA_VERSION):
            await _execute_all(database, UPGRADES[schema])
        await database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


async def load(
    database: aiosqlite.Connection, num_points: int, num_rounds: int, num_marks: int, num_news: int = 0
) -> Loaded:
    """Everything that is held in memory."""
    loaded = Loaded(meta=dict(await fetch_rows(database, "SELECT name, value FROM meta")))

    async def newest(
        table: str, columns: str, condition: str, make: Callable[..., Value], num: int = -1
    ) -> list[Value]:
        """Values of the last rows, oldest first; -1: of all."""
        found = await fetch_rows(database, f"SELECT {columns} FROM {table} {condition} DESC LIMIT {num}")
        return list(readable(found[::-1], make, table, loaded.skipped))

    await _load_ledger(database, loaded, num_rounds)
    loaded.gaps = await newest("gaps", "*", "ORDER BY begin_at", gap_of_row)
    loaded.missing = await newest("missing", "*", "ORDER BY fragment DESC, first_version", missing_of_row)
    loaded.samples = await newest("samples", "*", "ORDER BY at", sample_of_row)
    loaded.points = await points_between(database, 0.0, num_points, loaded.skipped)
    of_kinds = "WHERE kind IN {} ORDER BY id"
    news, marks = (of_kinds.format(tuple(kinds)) for kinds in (NEWS_KINDS, MARK_KINDS))
    loaded.people_news = await newest("events", "at, kind, peer_id, tokens, detail", news, news_of_row, num_news)
    loaded.marks = await newest("events", "at, tokens, kind, peer_id", marks, mark_of_row, num_marks)
    comings = (
        "SELECT peer_id FROM (SELECT peer_id, kind, max(id) AS id FROM events WHERE kind IN ('joined', 'returned', "
        "'left', 'silent') GROUP BY peer_id) WHERE kind IN ('joined', 'returned') ORDER BY id DESC LIMIT ?"
    )
    loaded.conditions = {peer_id: "here" for (peer_id,) in await fetch_rows(database, comings, (MAX_PEERS,))}
    (found,) = await fetch_rows(database, "SELECT max(id) FROM commits")
    loaded.next_commit = (found[0] or 0) + 1
    return loaded


async def write(database: aiosqlite.Connection, batch: Batch, nums: MachineNums) -> None:
    """All of `batch`, or nothing.

    Raises:
        sqlite3.Error: nothing was written.
    """
    async with _transaction(database):
        await _put(database, "machines", _machine_rows(batch.machines.values(), nums))
        await _put(database, "commits", [(commit.num, commit.credit.digest, commit.raw) for commit in batch.commits])
        await _put(database, "rounds", [round_row(commit, nums.by_id) for commit in batch.commits])
        await _write_bookings(database, batch.bookings, nums)
        for table in ("commits", "rounds"):
            await database.executemany(f"DELETE FROM {table} WHERE id = ?", [(num,) for num in batch.released])
        profiles = [(profile.contributor_id, profile_text(profile), raw) for profile, raw in batch.profiles]
        await _put(database, "profiles", profiles)
        events = [
            (None, one.at, one.kind, one.peer_id, stored(one.tokens), json.dumps(one.detail), int(one.is_kept))
            for one in batch.events
        ]
        await _put(database, "events", events)
        await _put(database, "looks", map(point_row, batch.looks))
        for fine, coarse, seconds in ROLLUPS:
            await _roll_up(database, fine, coarse, seconds, {int(look.at // seconds) for look in batch.looks})
        await _put(database, "gaps", map(astuple, batch.gaps))
        for table, rows in batch.whole.items():
            await database.execute(f"DELETE FROM {table}")
            await _put(database, table, rows)
        await _put(database, "meta", batch.meta.items())


async def _put(database: aiosqlite.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Write rows, each in the place of one with the same key."""
    found = list(rows)
    if found:
        marks = ", ".join("?" * len(found[0]))
        await database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", found)


async def points_between(
    database: aiosqlite.Connection, begin_at: float, max_points: int, skipped: Counter[str] | None = None
) -> list[HistoryPoint]:
    """About `max_points` since `begin_at`, oldest first: looks when they are few enough, else minutes or hours.

    Times whose finer points are gone are told by the coarser ones; points that cannot be read are counted in `skipped`.
    """
    points: list[HistoryPoint] = []
    for table, seconds in (("run_hours", SECONDS_PER_HOUR), ("minutes", 60), ("looks", 0)):
        (found,) = await fetch_rows(database, f"SELECT count(*), min(at) FROM {table} WHERE at >= ?", (begin_at,))
        count, first_at = found
        if not count or (points and count > 20 * max_points):
            break
        step = math.ceil(count / max_points)
        query = (
            f"SELECT at, point FROM (SELECT at, point, row_number() OVER (ORDER BY at) AS place FROM {table} "
            "WHERE at >= ?) WHERE (place - 1) % ? = 0 OR place = ? ORDER BY at"
        )
        found_points = await fetch_rows(database, query, (begin_at, step, count))
        finer = list(readable(found_points, point_of_row, table, skipped))
        points = [point for point in points if point.at <= first_at]
        # A mean stands at the beginning of its minute or hour in the file, and says how far the run was at the end.
        points += [replace(point, at=point.at + seconds) for point in finer]
    return points


async def rebuild(database: aiosqlite.Connection, check: CheckCommit) -> int:
    """Make all credit again from the signed commits, and the means from looks and minutes; returns the commits.

    What only this dashboard saw (uptime, devices, when a machine was first heard) stays as it is.

    Raises:
        PeerFault: a stored commit does not pass its check; nothing is changed.
    """
    loaded = Loaded()
    await _load_machines(database, loaded)
    ledger, nums = loaded.ledger, loaded.nums
    async with _transaction(database):
        seen = dict(await fetch_rows(database, "SELECT id, seen_at FROM rounds"))
        await database.execute("DELETE FROM rounds")
        count = 0
        async with database.execute("SELECT id, raw FROM commits ORDER BY id") as cursor:
            async for num, raw in cursor:
                credit = check(raw)
                seen_at = float(seen.get(num, 0.0))
                ledger.put(credit, seen_at, num)
                await _put(database, "rounds", [round_row(StoredCommit(num, b"", credit, seen_at), nums.by_id)])
                count += 1
        ledger.settle()
        await _write_credit_again(database, ledger, nums)
        for fine, coarse, seconds in ROLLUPS:
            query = f"SELECT DISTINCT CAST(at / {seconds} AS INTEGER) FROM {fine} WHERE typeof(at) = 'real' ORDER BY 1"
            # The oldest may have lost some of its points to retention; its mean was made while they were there.
            _, *places = await fetch_rows(database, query) or [()]
            await _roll_up(database, fine, coarse, seconds, [place for (place,) in places])
    return count


async def _write_credit_again(database: aiosqlite.Connection, ledger: Ledger, nums: MachineNums) -> None:
    """Everything that follows from which commits count."""
    await _put(database, "machines", _machine_rows(ledger.machines.values(), nums))
    for table in ("credits", "hours", "work_minutes"):
        await database.execute(f"DELETE FROM {table}")
    await database.execute("UPDATE rounds SET is_counted = 0 WHERE is_counted")
    await _write_bookings(database, ledger.counting.counted(), nums)


async def _execute_all(database: aiosqlite.Connection, statements: str) -> None:
    for statement in statements.split(";"):
        if statement.strip():
            await database.execute(statement)


async def run_record(database: aiosqlite.Connection, path: Path | None) -> bytes:
    """The run record that is kept with the history.

    Raises:
        UsageFault: there is none, so nothing can be checked.
    """
    found = await fetch_rows(database, "SELECT value FROM meta WHERE name = 'run_record'")
    if not found:
        raise UsageFault(
            f"the history {path or 'in memory'} has no run record yet, so its commits cannot be checked; run the "
            "dashboard without rebuilding first, until it has found the run"
        )
    return bytes(found[0][0])


async def _roll_up(database: aiosqlite.Connection, fine: str, coarse: str, seconds: int, places: Iterable[int]) -> None:
    """Write the means of these minutes or hours (counted from 1970), from the points that the file has of them."""
    query = f"SELECT at, point FROM {fine} WHERE at >= ? AND at < ? ORDER BY at"
    for place in places:
        begin_at = float(place * seconds)
        points = list(readable(await fetch_rows(database, query, (begin_at, begin_at + seconds)), point_of_row))
        if points:
            await _put(database, coarse, [point_row(replace(mean_point(points), at=begin_at))])


async def _write_bookings(database: aiosqlite.Connection, bookings: Iterable[Booking], nums: MachineNums) -> None:
    for booking in bookings:
        num, sign = booking.receipt.num, booking.sign
        shares = {nums.by_id[one.peer_id]: one for one in booking.shares if one.peer_id in nums.by_id}
        if sign < 0:
            await database.execute("DELETE FROM credits WHERE round = ?", (num,))
        else:
            await _put(database, "credits", [(machine, num) for machine in shares])
        is_counted = 0 if sign < 0 else 1 if booking.is_first else 2
        await database.execute("UPDATE rounds SET is_counted = ? WHERE id = ?", (is_counted, num))
        for table, place, seconds in (("hours", "hour", SECONDS_PER_HOUR), ("work_minutes", "minute", 60)):
            at = int(booking.receipt.at // seconds)
            work = [
                (machine, at, sign * one.milli_witnessed, sign * one.milli_tokens, sign * bool(one.milli_tokens))
                for machine, one in shares.items()
            ]
            await database.executemany(_WORK_ADD.format(table, place), work)


def _machine_rows(machines: Iterable[MachineTotals], nums: MachineNums) -> list[tuple[Any, ...]]:
    return [machine_row(nums.num_of(machine.peer_id), machine) for machine in machines]


async def _load_machines(database: aiosqlite.Connection, loaded: Loaded) -> None:
    rows = await fetch_rows(database, "SELECT * FROM machines ORDER BY num")
    for num, machine in readable(rows, machine_of_row, "machines", loaded.skipped):
        loaded.ledger.machines[machine.peer_id] = machine
        loaded.nums.set(num, machine.peer_id)


async def _load_ledger(database: aiosqlite.Connection, loaded: Loaded, num_rounds: int) -> None:
    await _load_machines(database, loaded)
    ledger = loaded.ledger
    profiles = await fetch_rows(database, "SELECT contributor_id, facts FROM profiles")
    for profile in readable(profiles, profile_of_text, "profiles", loaded.skipped):
        ledger.add_profile(profile)
    is_counted: dict[int, int] = {}
    newest: deque[StoredRound] = deque(maxlen=num_rounds)

    def take(digest: bytes, *row: Any) -> StoredRound:
        return round_of_row(row, digest, loaded.nums.id_of)

    query = (
        f"SELECT digest, {', '.join('rounds.' + name for name in ROUND_COLUMNS.split(', '))} FROM rounds JOIN commits "
        "USING (id) ORDER BY id"
    )
    async with database.execute(query) as cursor:
        while rows := await cursor.fetchmany(LOAD_ROWS):
            for round_ in readable(map(tuple, rows), take, "rounds", loaded.skipped):
                is_counted[round_.num] = round_.is_counted
                ledger.put(round_.credit, 0.0, round_.num)
                newest.append(round_)
    ledger.settle()
    marks = ledger.counting.marks()
    loaded.rounds = [replace(one, is_counted=marks.get(one.num, 0)) for one in newest]
    if marks != {num: mark for num, mark in is_counted.items() if mark}:
        # Another rule made it (schema 1), or some of its rows cannot be read any more.
        async with _transaction(database):
            await _write_credit_again(database, ledger, loaded.nums)
