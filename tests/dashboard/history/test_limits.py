"""The largest numbers that a commit can hold, and rows that nobody would write, cost neither file nor page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from averaging.signing.commit_credit import MAX_SHARE_MILLI
from averaging.wire.messages import Commit, RosterEntry, ShardResult
from dashboard.credit.credited_members import MAX_BYTES, CommitCredit, credit_of, data_parallel_bytes, payload_bytes
from dashboard.credit.work_log import curve_of
from dashboard.history import history as history_module
from dashboard.history.database import check_file
from dashboard.history.history import History, open_history
from dashboard.history.writing import Batch
from dashboard.server.handler_context import Site
from dashboard.server.live_updates import Live
from dashboard.server.page_access import read_token
from dashboard.server.routes import make_app
from dht.ground.errors import UsageFault
from dht.ground.host import PeerId
from tests.kit.dashboard.history import feed
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
    )


def test_the_largest_commits_are_kept_and_read_again(tmp_path: Path) -> None:
    path, warnings = tmp_path / "run.sqlite", []
    num_commits = 20

    async def check() -> None:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as history:
            for version in range(num_commits):
                history.add_commit(b"raw", largest(version), NOW)
            feed(history, [])
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as history:
            feed(history, [], now=NOW + 8)
            view = history.view
            assert view.num_rounds == num_commits
            assert view.contributors[0].milli_tokens_witnessed == num_commits * MAX_SHARE_MILLI
            assert view.milli_tokens_witnessed == 256 * num_commits * MAX_SHARE_MILLI
            curve = curve_of(history.ledger.logs_of(view.contributors[0]), NOW, NOW)
            assert 0 < curve[-1].tokens_witnessed <= view.contributors[0].tokens_witnessed
            assert len(await history.rounds(100, None)) == num_commits
            app = make_app(Site(Live(_state(history), "b", view), history, clock=lambda: NOW + 30))
            async with TestClient(TestServer(app)) as client:
                for place in ("/", "/metrics", "/healthz", "/api/v1/run", "/api/v1/contributors"):
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
        (spoiled("UPDATE receipts SET credit = '[[1, 2' WHERE id = 3"), "1 of receipts", 7),
        (spoiled("UPDATE receipts SET credit = '[]' WHERE id = 3"), "1 of receipts", 7),
        (spoiled("UPDATE receipts SET credit = x'ff00' WHERE id = 3"), "1 of receipts", 7),
        (spoiled("UPDATE receipts SET credit = '" + "[" * 5000 + "' WHERE id = 3"), "1 of receipts", 7),
        (spoiled("UPDATE receipts SET credit = json_set(credit, '$.version', 'x') WHERE id = 3"), "1 of receipts", 7),
        (spoiled("UPDATE points SET tokens = 'x'"), "points", 8),
        (spoiled("UPDATE points SET at = NULL"), "points", 8),
        (spoiled("INSERT INTO profiles VALUES ('Ada', '[1, 2]')"), "1 of profiles", 8),
        (spoiled("INSERT OR REPLACE INTO meta VALUES ('gaps', '[[1, 2, 3]]')"), "1 of gaps", 8),
        (spoiled("INSERT INTO meta VALUES ('samples', '[[7, 1, 2, null, [[3, 4]]]]')"), "1 of samples", 8),
        (spoiled("UPDATE meta SET value = 'x' WHERE name NOT IN ('run_id', 'gaps', 'marks')"), "", 8),
    ],
)
def test_a_bad_row_costs_itself_and_one_sentence(
    tmp_path: Path, spoil: Callable[[sqlite3.Connection], None], table: str, num_kept: int
) -> None:
    path, warnings = tmp_path / "run.sqlite", []

    async def check() -> None:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as history:
            feed(history, range(8), num_looks=40)
            feed(history, [], now=NOW + 82)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            spoil(database)
        for _ in range(2):
            warnings.clear()
            async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as history:
                feed(history, [], now=NOW + 100)
                assert history.view.num_rounds == num_kept
                assert history.view.contributors[0].milli_tokens_witnessed == num_kept * 103_000
                assert len(warnings) == bool(table)
                assert all(table in sentence for sentence in warnings)
                live = Live(_state(history), "b", history.view)
                async with TestClient(TestServer(make_app(Site(live, history)))) as client:
                    for place in (
                        "",
                        "metrics",
                        "api/v1/rounds",
                        "api/v1/points?max=5000",
                        f"c/{IDS[0]}",
                    ):
                        assert (await client.get(f"/{place}")).status == 200, place
            assert len(warnings) == bool(table)

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
    tried, is_broken = threading.Event(), [True]

    def write(database: sqlite3.Connection, batch: Batch) -> None:
        if is_broken[0]:
            tried.set()
            raise error
        real_write(database, batch)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr(history_module, "write", write)
    monkeypatch.setattr(history_module.asyncio, "sleep", sleep)

    async def check() -> None:
        path = tmp_path / "run.sqlite"
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as history:
            live = Live(watched(history), "boot", history.view)
            app = make_app(Site(live, history, clock=lambda: NOW + 5))
            async with TestClient(TestServer(app)) as client:
                assert await asyncio.to_thread(tried.wait, 60)
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
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=warnings.append) as history:
            assert history.view.num_rounds == 130

    asyncio.run(check())


def test_the_end_during_a_transaction_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = history_module.write
    began = threading.Event()

    def write(database: sqlite3.Connection, batch: Batch) -> None:
        if batch.commits and not began.is_set():
            began.set()
            time.sleep(0.3)  # the end comes meanwhile
        real_write(database, batch)

    monkeypatch.setattr(history_module, "write", write)
    monkeypatch.setattr(history_module, "WRITE_SECONDS", 0.0)

    async def check() -> None:
        path = tmp_path / "run.sqlite"
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as history:
            feed(history, range(5))
            assert await asyncio.to_thread(began.wait, 60)
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as history:
            assert history.view.num_rounds == 5

    asyncio.run(check())


# --- files ---


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.parametrize("umask", [0o022, 0])
def test_the_history_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "run.sqlite"

    async def look() -> dict[str, int]:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as history:
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
