"""The largest numbers that a commit can hold, and rows that nobody would write, cost neither file nor page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from aiohttp.test_utils import TestClient, TestServer

from averaging.signing.commit_credit import MAX_SHARE_MILLI
from averaging.wire.messages import Commit, RosterEntry, ShardResult
from dashboard.credit.credited_members import MAX_BYTES, CommitCredit, credit_of, data_parallel_bytes, payload_bytes
from dashboard.history import history as history_module
from dashboard.history.database import check_file
from dashboard.history.history import History, open_history
from dashboard.history.rows import Batch
from dashboard.history.writing import MachineNums
from dashboard.page_access import read_token
from dashboard.server.handler_context import Site
from dashboard.server.live_updates import Live
from dashboard.server.routes import make_app
from dht.ground.errors import UsageFault
from dht.ground.host import PeerId
from tests.kit.dashboard.history import check_raw, feed, raw_commit, usual_commit
from tests.kit.dashboard.records import NOW, RUN_ID
from tests.kit.dashboard.serving import IDS, watched

CROWD = [PeerId(f"12D3KooW{number:03}") for number in range(256)]


def largest(version: int, size: int = 2**40) -> CommitCredit:
    """256 members with as many tokens and steps as a frame could hold; all are witnessed."""
    roster = tuple(RosterEntry(peer_id, 2**50, 2**31, 2**53, 2**53) for peer_id in CROWD)
    shards = (ShardResult(0, size, 255, b"d" * 16, tuple(range(256))),)
    commit = Commit(0, version, 0, CROWD[0], bytes([version]) * 16, roster, shards)
    return replace(
        credit_of(commit, size),
        payload_bytes=payload_bytes(commit, lambda count: 2 * count),
        data_parallel_bytes=data_parallel_bytes(commit, size),
        at=NOW,
    )


def test_the_largest_commits_are_kept_and_read_again(tmp_path: Path) -> None:
    path, warnings = tmp_path / "run.sqlite", []
    num_commits = 20

    async def check() -> None:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as (history, _):
            for version in range(num_commits):
                history.add_commit(b"raw", largest(version), NOW)
            feed(history, [])
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as (history, reader):
            feed(history, [], now=NOW + 8)
            view = history.view
            assert view.num_rounds == num_commits
            assert view.contributors[0].milli_witnessed == num_commits * MAX_SHARE_MILLI
            assert view.milli_witnessed == 256 * num_commits * MAX_SHARE_MILLI
            curve = await reader.curve(history.machine_nums(view.contributors[0]), NOW, NOW)
            assert 0 < curve[-1].milli_witnessed <= view.contributors[0].milli_witnessed
            assert len(await reader.rounds(100, None)) == num_commits
            app = make_app(Site(Live(_state(history), "b", view), history, reader, clock=lambda: NOW + 30))
            async with TestClient(TestServer(app)) as client:
                for place in ("/", "/metrics", "/healthz", "/api/v1/run", "/api/v1/contributors", "/api/v1/export.csv"):
                    assert (await client.get(place)).status == 200, place
        assert warnings == []

    asyncio.run(check())


def _state(history: History) -> Any:
    return feed(history, [], now=NOW + 20)


def test_bytes_of_a_commit_saturate() -> None:
    assert largest(0).data_parallel_bytes == MAX_BYTES
    assert largest(0).payload_bytes == 510 * 2**41
    assert largest(0, 2**44).payload_bytes == MAX_BYTES


def spoiled(*statements: str) -> Callable[[sqlite3.Connection], None]:
    def spoil(database: sqlite3.Connection) -> None:
        for statement in statements:
            database.execute(statement)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "table", "num_kept"),
    [
        (spoiled("UPDATE rounds SET payload_bytes = 9223372036854775807"), "", 8),
        (spoiled("UPDATE hours SET witnessed = 9223372036854775807, rounds = 9223372036854775807"), "", 8),
        (spoiled("UPDATE rounds SET tokens = 9.5e18, data_parallel_bytes = 1e300 WHERE version = 3"), "", 8),
        (spoiled("UPDATE rounds SET members = '[[1, 2' WHERE version = 3"), "1 of rounds", 7),
        (spoiled("UPDATE rounds SET members = '[[77, 1, 1, 1]]' WHERE version = 3"), "1 of rounds", 7),
        (spoiled("UPDATE rounds SET members = '" + "[" * 5000 + "' WHERE version = 3"), "1 of rounds", 7),
        (spoiled("UPDATE rounds SET version = 'x' WHERE version = 3"), "1 of rounds", 7),
        (spoiled("UPDATE rounds SET at = 'noon' WHERE version = 3"), "1 of rounds", 7),
        (spoiled("UPDATE machines SET witnessed = 9.5e18, first_at = 'x'"), "", 8),
        (spoiled("UPDATE looks SET point = '[1]'"), "looks", 8),
        (spoiled("UPDATE minutes SET point = 'null'", "UPDATE run_hours SET point = '{}'"), "minutes", 8),
        (spoiled("INSERT INTO profiles VALUES ('Ada', '[1, 2]', x'')"), "1 of profiles", 8),
        (spoiled("INSERT INTO gaps VALUES ('x', 'y', 'z')"), "1 of gaps", 8),
        (spoiled("INSERT INTO missing VALUES (0, 'x', 9)"), "1 of missing", 8),
        (spoiled("INSERT INTO samples VALUES (7, '[1, 2, null, [[3, 4]]]')"), "1 of samples", 8),
        (spoiled("UPDATE events SET tokens = 'x', at = 'y' WHERE kind != 'committed'"), "events", 8),
        (spoiled("UPDATE meta SET value = 'x' WHERE name != 'run_id'"), "", 8),
    ],
)
def test_a_bad_row_costs_itself_and_one_sentence(
    tmp_path: Path, spoil: Callable[[sqlite3.Connection], None], table: str, num_kept: int
) -> None:
    path, warnings = tmp_path / "run.sqlite", []

    async def check() -> None:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as (history, _):
            feed(history, range(8), num_looks=40)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            spoil(database)
        for _ in range(2):
            warnings.clear()
            async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as (history, reader):
                feed(history, [], now=NOW + 100)
                assert history.view.num_rounds == num_kept
                assert history.view.contributors[0].milli_witnessed == num_kept * 103_000
                assert len(warnings) == bool(table)
                assert all(table in sentence for sentence in warnings)
                live = Live(_state(history), "b", history.view)
                async with TestClient(TestServer(make_app(Site(live, history, reader)))) as client:
                    for place in (
                        "",
                        "metrics",
                        "api/v1/rounds",
                        "api/v1/events",
                        "api/v1/points?max=5000",
                        f"c/{IDS[0]}",
                    ):
                        assert (await client.get(f"/{place}")).status == 200, place
            assert len(warnings) == bool(table)

    asyncio.run(check())


def test_a_file_of_the_first_schema_is_read_by_the_one_rule(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    # Of two commits of version 2 the old rule counted the one with more tokens, whoever had witnessed them.
    unwitnessed, witnessed = (raw_commit(0, 2, [(IDS[0], tokens, tokens == 200)], at=NOW) for tokens in (400, 200))

    async def make() -> None:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as (history, _):
            for raw in (usual_commit(0, IDS), unwitnessed):
                history.add_commit(raw, check_raw(raw), NOW)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("DROP TABLE work_minutes")
            database.execute("DROP TABLE samples")
            database.execute("DROP INDEX rounds_version")
            database.execute("ALTER TABLE rounds DROP COLUMN previous")
            database.execute("ALTER TABLE rounds DROP COLUMN standing")
            database.execute("CREATE UNIQUE INDEX rounds_version ON rounds (fragment, version) WHERE is_counted")
            database.execute("PRAGMA user_version = 1")
            (num,) = database.execute("SELECT max(id) + 1 FROM commits").fetchone()
            database.execute("INSERT INTO commits VALUES (?, ?, ?)", (num, check_raw(witnessed).digest, witnessed))
            members = json.dumps([[1, 200_000, 200_000, 1]])
            row = (num, 0, 2, NOW, NOW, IDS[0], 200, 0, 2, None, "[]", members, 0, 0, 0)
            database.execute(f"INSERT INTO rounds VALUES ({', '.join('?' * 15)})", row)

    async def check() -> None:
        for _ in range(2):
            async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as (history, reader):
                row = history.view.contributor(IDS[0])
                assert row is not None
                assert (row.milli_witnessed, row.milli_reported) == (300_000, 300_000)
                nums = history.machine_nums(row)
                assert [raw async for raw in reader.proof(nums)][-1] == witnessed
                assert (await reader.curve(nums, row.first_at, NOW))[-1].milli_reported == 300_000

    asyncio.run(make())
    asyncio.run(check())


@pytest.mark.parametrize(
    "error",
    [
        OverflowError("Python int too large to convert to SQLite INTEGER"),
        sqlite3.OperationalError("database or disk is full"),
        ValueError("no active connection"),
        KeyError("peer"),
    ],
    ids=["overflow", "full disk", "connection gone", "a fault of ours"],
)
def test_whatever_stops_the_writing_is_told_shown_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    warnings: list[str] = []
    real_write = history_module.write
    waits: list[float] = []
    tried, is_broken = asyncio.Event(), [True]

    async def write(database: aiosqlite.Connection, batch: Batch, nums: MachineNums) -> None:
        if is_broken[0]:
            tried.set()
            raise error
        await real_write(database, batch, nums)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr(history_module, "write", write)
    monkeypatch.setattr(history_module.asyncio, "sleep", sleep)

    async def check() -> None:
        path = tmp_path / "run.sqlite"
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as (history, reader):
            live = Live(watched(history), "boot", history.view)
            app = make_app(Site(live, history, reader, clock=lambda: NOW + 5))
            async with TestClient(TestServer(app)) as client:
                await tried.wait()
                while len(waits) < 12:
                    await real_sleep(0)
                response = await client.get("/healthz")
                assert response.status == 503
                assert (await response.json())["status"] == "history not written"
                assert (await client.get("/")).status == 200
                assert len(warnings) == 1
                assert str(error) in warnings[0]
                assert waits[1:8] == [2, 4, 8, 16, 32, 60, 60]
                is_broken[0] = False
                while history.problem:
                    await real_sleep(0)
                assert (await client.get("/healthz")).status == 200
        assert len(warnings) == 2
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as (history, _):
            assert history.view.num_rounds == 130

    asyncio.run(check())


def test_the_end_during_a_transaction_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = history_module.write
    is_first, began = [True], asyncio.Event()

    async def write(database: aiosqlite.Connection, batch: Batch, nums: MachineNums) -> None:
        if is_first[0]:
            is_first[0] = False
            began.set()
            await asyncio.Event().wait()
        await real_write(database, batch, nums)

    monkeypatch.setattr(history_module, "write", write)
    monkeypatch.setattr(history_module, "WRITE_SECONDS", 0.0)

    async def check() -> None:
        path = tmp_path / "run.sqlite"
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as (history, _):
            feed(history, range(5))
            await began.wait()
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as (history, _):
            assert history.view.num_rounds == 5

    asyncio.run(check())


# --- files ---


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.parametrize("umask", [0o022, 0])
def test_the_history_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "run.sqlite"

    async def look() -> dict[str, int]:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as (history, _):
            feed(history, range(3))
            await asyncio.sleep(0)
            found = modes(tmp_path)
        return found | modes(tmp_path)

    before = os.umask(umask)
    try:
        assert set(asyncio.run(look()).values()) == {0o600}
        # One that an older version made.
        for one in tmp_path.iterdir():
            one.chmod(0o644)
        found = asyncio.run(look())
    finally:
        os.umask(before)
    assert set(found.values()) == {0o600}
    assert {"run.sqlite", "run.sqlite-wal", "run.sqlite.lock"} <= set(found)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o604])
def test_a_token_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text("correct-horse-battery-staple")
    path.chmod(mode)
    with pytest.raises(UsageFault, match=f"has mode {mode:04o}, .* run: chmod 600 {path}"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == "correct-horse-battery-staple"


def test_a_pipe_is_neither_a_token_nor_a_history(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    with pytest.raises(UsageFault, match="pipe"):
        read_token(path)
    with pytest.raises(UsageFault, match="pipe"):
        check_file(path, RUN_ID)
