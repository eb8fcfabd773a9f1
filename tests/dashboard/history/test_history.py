"""The history's file: restarts, kills, damage, full disks, and what is kept for how long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dashboard.credit.work_log import curve_of
from dashboard.history.database import APPLICATION_ID, SCHEMA_VERSION, Database, check_file
from dashboard.history.history import History, open_history
from dashboard.history.writing import POINT_SECONDS, Batch, load, points_between, prepare, write
from dashboard.history_facts import HistoryPoint, HistoryView
from dashboard.observe.dashboard_state import fold
from dashboard.observe.listed_peers import Look
from dht.ground.errors import LocalFault, UsageFault
from tests.kit.dashboard.history import IDS, check_raw, feed, raw_commit, usual_commit
from tests.kit.dashboard.records import NOW, PEERS, RUN_ID, empty_state, record_of


def no_warning(sentence: str) -> None:
    raise AssertionError(sentence)


@contextlib.asynccontextmanager
async def opened(path: Path | None, now: float = NOW) -> AsyncIterator[History]:
    async with open_history(path, RUN_ID, clock=lambda: now, warn=no_warning) as history:
        yield history


def essence(view: HistoryView) -> tuple[object, ...]:
    """What a restart must not change."""
    return (
        [(row.contributor_id, row.tokens_witnessed, row.rounds, row.first_at, row.rank)
         for row in view.contributors],
        [machine.uptime_seconds for row in view.contributors for machine in row.machines],
        view.points,
        view.marks,
        [(row.fragment, row.version, row.seen_at, row.contributors) for row in view.rounds],
        view.bandwidth,
        (view.num_rounds, view.tokens_witnessed, view.gaps, view.started_at),
    )  # fmt: skip


def test_a_restart_shows_the_same(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path / "run.sqlite") as history:
            state = feed(history, range(30))
            before = essence(history.view)
        async with opened(tmp_path / "run.sqlite", NOW + 6) as history:
            # The first look after the restart, two seconds after the last one before it.
            after = fold(state, Look(now=NOW + 6, num_members=3))
            history.look(after)
            history.trend.points.pop()
            seen = essence(history.view)
        assert before[0] == seen[0]
        # Of the points of ten seconds the last one is stored.
        assert seen[2][-1].at == before[2][-1].at  # type: ignore[index]
        assert seen[2][-1].tokens_per_second == pytest.approx(2000.0)  # type: ignore[index]
        assert before[3:] == seen[3:]

    asyncio.run(check())


def _write_other(path: Path, **pragmas: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE other (value)")
        for name, value in pragmas.items():
            database.execute(f"PRAGMA {name} = {value}")


def _damage(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[4096 : len(data) - 4096] = os.urandom(len(data) - 8192)
    path.write_bytes(data)


def _damage_names(path: Path) -> None:
    """What SQLite says of this file quotes bytes that are not text."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE points", b"CREATE T\x90BLE poin\xff\xfe"))


def _as_newer(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def _as_older(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 4")


def _as_other_run(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE meta SET value = 'other.aaaaaaaaaaaaaaaaaaaa' WHERE name = 'run_id'")


BAD_FILES: list[tuple[Callable[[Path], object], str, int]] = [
    (lambda path: path.write_bytes(b"hello, this is text\n" * 9), "not a database .*give another with --db", 2),
    (lambda path: path.write_bytes(b"SQLite format 3\0" + b"x" * 5000), "damaged .*was not changed", 1),
    (_write_other, "another program", 2),
    (lambda path: _write_other(path, application_id=APPLICATION_ID), "damaged", 1),
    (_damage, "damaged .*move it away", 1),
    (_damage_names, "damaged .*move it away", 1),
    (_as_newer, f"schema {SCHEMA_VERSION + 1}, written by newer software", 1),
    (_as_older, "schema 4 of earlier software; .*was not changed; move it away or give another file", 1),
    (_as_other_run, f"to run other.* expected {RUN_ID}", 2),
]


@pytest.mark.parametrize(
    ("spoil", "sentence", "exit_code"),
    BAD_FILES,
    ids=["text", "no database", "another program", "same mark", "damaged", "names", "newer", "older", "another run"],
)
def test_a_file_that_cannot_be_used_is_named_and_left_alone(
    tmp_path: Path, spoil: Callable[[Path], object], sentence: str, exit_code: int
) -> None:
    path = tmp_path / "run.sqlite"

    async def make() -> None:
        async with opened(path) as history:
            feed(history, range(40))

    if spoil in (_damage, _damage_names, _as_newer, _as_older, _as_other_run):
        asyncio.run(make())
    spoil(path)
    before = path.read_bytes()

    async def check() -> None:
        async with opened(path):
            raise AssertionError("opened")

    with pytest.raises(LocalFault, match=sentence) as caught:
        asyncio.run(check())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == exit_code
    assert path.read_bytes() == before


def test_places_where_no_file_can_be(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        async with opened(path):
            raise AssertionError("opened")

    with pytest.raises(UsageFault, match="is a folder"):
        asyncio.run(check(tmp_path))
    with pytest.raises(UsageFault, match="does not exist; create it"):
        asyncio.run(check(tmp_path / "nowhere" / "run.sqlite"))


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path / "run.sqlite"):
            with pytest.raises(UsageFault, match="in use by another dashboard"):
                async with opened(tmp_path / "run.sqlite"):
                    raise AssertionError("opened twice")
        async with opened(tmp_path / "run.sqlite") as history:
            assert history.view.num_rounds == 0

    asyncio.run(check())


def test_a_full_disk_costs_one_warning_and_no_commit(tmp_path: Path) -> None:
    warnings: list[str] = []

    async def check() -> None:
        path = tmp_path / "run.sqlite"
        database = Database(path)
        await database.do(prepare, True, RUN_ID, NOW)
        history = History(database, await database.do(load, 10, 10), path, NOW, warnings.append)
        pages = await database.do(_pragma, "page_count")
        await database.do(_pragma, f"max_page_count = {pages}")
        feed(history, range(300), num_looks=8)
        for _ in range(3):
            await history.flush()
        assert len(warnings) == 1
        assert "full" in warnings[0]
        assert str(path) in warnings[0]
        assert "full" in history.view.problem
        # The page goes on from memory.
        assert history.view.num_rounds == 300
        assert not (await database.do(load, 10, 10)).ledger.num_rounds
        await database.do(_pragma, "max_page_count = 1000000")
        await history.flush()
        assert len(warnings) == 2
        assert not history.view.problem
        loaded = await database.do(load, 10, 10)
        assert loaded.ledger.num_rounds == 300
        assert loaded.points[-1] == history.view.points[-1]
        await database.close()

    asyncio.run(check())


def test_the_time_between_two_runs_of_the_dashboard_is_a_gap(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path / "run.sqlite") as history:
            feed(history, range(3))
        for pause, num_gaps in ((10.0, 0), (500.0, 1)):
            async with opened(tmp_path / "run.sqlite", NOW + pause) as history:
                feed(history, [], now=NOW + pause)
                assert len(history.view.gaps) == num_gaps
        assert history.view.gaps[0].begin_at == NOW + 14
        assert history.view.gaps[0].end_at == NOW + 500

    asyncio.run(check())


KILLED = """
import asyncio, sys
from pathlib import Path
from dashboard.history.history import open_history
from tests.kit.dashboard.history import feed
from tests.kit.dashboard.history import check_raw, usual_commit
from tests.kit.dashboard.records import NOW

async def live(path, run_id, peers):
    async with open_history(path, run_id, clock=lambda: NOW, warn=print) as history:
        version = 0
        while True:
            for _ in range(20):
                raw = usual_commit(version, peers)
                history.add_commit(raw, check_raw(raw), NOW)
                version += 1
            feed(history, [], num_looks=1)
            print(version, flush=True)
            await asyncio.sleep(0.05)

asyncio.run(live(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
"""


def test_a_killed_dashboard_loses_at_most_its_last_transaction(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    command = [sys.executable, "-c", KILLED, str(path), RUN_ID, *IDS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert process.stdout is not None
    try:
        while not _num_rounds(path):
            assert process.stdout.readline()
        shown = int(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    kept = _num_rounds(path)

    async def check() -> None:
        async with opened(path) as history:
            # Whole transactions: the rounds, their proofs and the totals are of one moment.
            assert 0 < history.view.num_rounds == kept
            assert kept <= shown + 20 * 60
            row = history.view.contributor(IDS[0])
            assert row is not None
            assert row.tokens_witnessed == 100.0 * kept
            assert len([raw async for raw in history.proof(history.ledger.logs_of(row))]) == kept
            assert history.ledger.absent(0, kept) == []
            # What was lost is what members are asked for again.
            feed(history, range(kept - 3, shown))
            assert history.view.num_rounds == max(shown, kept)

    asyncio.run(check())


def _num_rounds(path: Path) -> int:
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as database:
        try:
            return int(database.execute("SELECT count(*) FROM receipts").fetchone()[0])
        except sqlite3.OperationalError:
            return 0  # its tables are not made yet


def _pragma(database: sqlite3.Connection, text: str) -> int:
    return int(database.execute(f"PRAGMA {text}").fetchone()[0])


def test_points_are_bounded_and_span_the_whole_history() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        prepare(database, True, RUN_ID, NOW)
        times = [NOW + POINT_SECONDS * index for index in range(5000) if not 1000 < index < 2000]
        points_in = [HistoryPoint(at, int(at - NOW), 1, 3.0, None, 2, 3, 1.0, 2.0) for at in times]
        batch = Batch()
        for point in points_in:
            batch.add_point(point)
        for _ in range(2):
            write(database, batch)
        for max_points in (2, 50, 300, 10_000):
            points = points_between(database, 0.0, max_points)
            assert 2 <= len(points) <= max_points + 2
            assert points[-1] == points_in[-1]
            assert points[0] == points_in[0]
            assert [point.at for point in points] == sorted({point.at for point in points})
        assert len(points_between(database, 0.0, 10_000)) == len(times)
        assert points_between(database, times[-3], 100) == points_in[-3:]


def test_questions_to_the_file(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path / "run.sqlite") as history:
            feed(history, range(50))
            raw = raw_commit(1, 0, [(IDS[2], 5, True)])
            history.add_commit(raw, check_raw(raw), NOW)
            await asyncio.sleep(0)
        async with opened(tmp_path / "run.sqlite") as history:
            first = await history.rounds(20, None)
            second = await history.rounds(40, first[-1][0])
            assert [facts.version for _, facts in first + second][1:] == list(range(49, -1, -1))
            row = history.view.contributor(IDS[2])
            assert row is not None
            logs = history.ledger.logs_of(row)
            assert [facts.fragment for facts in await history.rounds_of(logs, 3)] == [1, 0, 0]
            curve = curve_of(logs, row.first_at, NOW)
            assert curve[-1].tokens_witnessed == row.tokens_witnessed
            assert curve[-1].rounds == 51
            # From nothing when the person came, to now; nothing later, and nothing of an hour that has not been.
            assert (curve[0].at, curve[0].tokens_witnessed, curve[0].tokens_reported) == (row.first_at, 0, 0)
            assert max(point.at for point in curve) <= NOW
            assert [raw async for raw in history.proof(logs)][-1] == raw

    asyncio.run(check())


def test_a_restart_with_nobody_there_keeps_the_result(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path / "run.sqlite") as history:
            feed(history, range(3))
            before = history.view.points[-1]
            assert before.tokens > 0
        async with opened(tmp_path / "run.sqlite", NOW + 10) as history:
            state = replace(empty_state(NOW + 10), view=history.stored_view)
            history.look(fold(state, Look(now=NOW + 12, num_members=0)))
            after = history.view.points[-1]
            assert after.at == NOW + 12
            kept = (before.tokens, before.rounds, before.validation_loss)
            assert (after.tokens, after.rounds, after.validation_loss) == kept
            assert (after.num_trainers, after.train_loss) == (0, None)

    asyncio.run(check())


def test_the_run_record_outlives_a_restart(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path / "run.sqlite") as history:
            assert history.stored_run_record is None
            history.keep_run_record(b"signed")
        async with opened(tmp_path / "run.sqlite") as history:
            assert history.stored_run_record == b"signed"

    asyncio.run(check())


def test_marks_tell_who_came_and_went_while_the_page_watched(tmp_path: Path) -> None:
    def look(history: History, now: float, *ages: float | None) -> None:
        """Each of the first peers is here and started so long ago, or is not here."""
        records = [
            record_of(PEERS[index], sequence=int(now), now=now, started_at=now - age)
            for index, age in enumerate(ages)
            if age is not None
        ]
        state = empty_state(NOW)
        history.look(fold(state, Look(now=now, num_members=2, records=records)))

    async def check() -> None:
        raw = usual_commit(0, IDS[:3])
        async with opened(tmp_path / "run.sqlite") as history:
            history.add_commit(raw, check_raw(raw), NOW)
            history.view  # noqa: B018 (books the commit)
            look(history, NOW + 2, 60, None)
            assert history.view.marks == ()
            # One starts, and one that no commit lists.
            look(history, NOW + 10, 60, 5, None, 3)
            look(history, NOW + 12, None, 7)
            look(history, NOW + 20, 60, 7)
            told = [("join", IDS[1]), ("leave", IDS[0]), ("join", IDS[0])]
            assert [(mark.kind, mark.peer_id) for mark in history.view.marks] == told
        async with opened(tmp_path / "run.sqlite", NOW + 40) as history:
            look(history, NOW + 40, 60, 60)
            assert [(mark.kind, mark.peer_id) for mark in history.view.marks] == told

    asyncio.run(check())


def test_a_history_that_another_program_holds_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"

    async def make() -> None:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print):
            pass

    asyncio.run(make())
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UsageFault, match=r"cannot be opened .*locked.*close the other program"):
            check_file(path, RUN_ID, wait_seconds=0.0)
