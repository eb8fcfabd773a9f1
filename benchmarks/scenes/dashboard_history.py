"""A made-up run for `bench_dashboard`: many peers, many rounds, and what a day of watching adds to the file."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from averaging.signing.commit_credit import MachineShare
from averaging.wire.frames import encode
from averaging.wire.messages import Commit, RosterEntry, ShardResult
from dashboard.credit.credited_members import CommitCredit
from dashboard.history.history import open_history
from dashboard.history.writing import POINT_SECONDS, Batch, write
from dashboard.history_facts import HistoryPoint
from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.listed_peers import Look
from dht.ground.host import PeerId
from tests.kit.dashboard.records import NOW, PEERS, RUN_ID, empty_state, record_of

MEMBERS = 16
"""Per round: a quorum of a large swarm."""
FRAGMENTS = 8
ROUND_SECONDS = 26.0
"""Between two rounds of the whole run: a hundred thousand take thirty days."""
DAY = 86_400
_LETTERS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def peer_ids(count: int) -> list[PeerId]:
    """Ids of the usual length; the keys behind them do not exist."""
    chance = random.Random(7)
    return [PeerId("12D3KooW" + "".join(chance.choices(_LETTERS, k=44))) for _ in range(count)]


def full_state(num_peers: int, now: float) -> DashboardState:
    """All of them live, `FRAGMENTS` fragments each."""
    model = record_of(PEERS[0], now=now)
    records = [
        replace(
            model,
            peer_id=peer_id,
            name=f"volunteer {index}" if index % 3 else "",
            expires_at=now + 100,
            tokens=10**7 // (index + 1),
            versions=tuple(1000 - (index % 5 == 0) for _ in range(FRAGMENTS)),
            digests=(b"d" * 8,) * FRAGMENTS,
            lineage_tokens=tuple(10**9 - (index % 5 == 0) for _ in range(FRAGMENTS)),
        )
        for index, peer_id in enumerate(peer_ids(num_peers))
    ]
    return fold(empty_state(now), Look(now=now, num_members=3, records=records))


class Rounds:
    """Commits as large as real ones; who they credit is drawn by chance."""

    def __init__(self, ids: list[PeerId], end_at: float, num_rounds: int) -> None:
        self._ids = ids
        self._chance = random.Random(11)
        self._begin_at = end_at - num_rounds * ROUND_SECONDS

    def at(self, number: int) -> float:
        return self._begin_at + number * ROUND_SECONDS

    def commit(self, number: int) -> tuple[bytes, CommitCredit]:
        fragment, version = number % FRAGMENTS, number // FRAGMENTS
        chosen = sorted(self._chance.sample(self._ids, MEMBERS))
        roster = tuple(RosterEntry(peer_id, 65_536, 64, version, number) for peer_id in chosen)
        everybody = tuple(range(MEMBERS))
        shards = tuple(
            ShardResult(1000 * index, 1000 * (index + 1), index, self._chance.randbytes(16), everybody)
            for index in range(MEMBERS)
        )
        raw = encode(Commit(fragment, version, 0, chosen[0], self._chance.randbytes(16), roster, shards))
        raw += self._chance.randbytes(64 * (1 + MEMBERS))
        shares = tuple(MachineShare(peer_id, 65_536_000 // FRAGMENTS, True) for peer_id in chosen)
        digest = hashlib.sha256(raw).digest()
        credit = CommitCredit(*(fragment, version, digest, b"", chosen[0], MEMBERS * 65_536, shares))
        return raw, credit


async def fill(path: Path, num_peers: int, num_rounds: int) -> dict[str, Any]:
    """Write the history as the gatherer would; returns sizes."""
    rounds = Rounds(peer_ids(num_peers), NOW, num_rounds)
    async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as history:
        num_raw = 0
        for number in range(num_rounds):
            raw, credit = rounds.commit(number)
            num_raw += len(raw)
            while not history.has_room:  # noqa: ASYNC110 (what the writing task did sets no event)
                await asyncio.sleep(0.1)
            history.add_commit(raw, credit, rounds.at(number))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        begin_at = NOW - num_rounds * ROUND_SECONDS
        times = range(0, int(num_rounds * ROUND_SECONDS), POINT_SECONDS)
        write(database, _batch(begin_at, times))
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {
        "database_mb": round(_size(path) / 1e6, 1),
        "signed_commit_bytes": num_raw // num_rounds,
        "database_bytes_per_round": _size(path) // num_rounds,
    }


async def growth() -> dict[str, float]:
    """Bytes that a day of watching adds beside the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print):
            pass
        before = _size(path)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            times = range(0, DAY, POINT_SECONDS)
            write(database, _batch(NOW, times))
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return {"points_mb_per_day": round((_size(path) - before) / 1e6, 2)}


def _size(path: Path) -> int:
    return path.stat().st_size


def _batch(begin_at: float, times: range) -> Batch:
    batch = Batch()
    for seconds in times:
        batch.add_point(_point(begin_at + seconds, seconds))
    return batch


def _point(at: float, index: int) -> HistoryPoint:
    noise = random.Random(index).random()
    return HistoryPoint(at, 65_536 * index, index, 3.0 + noise, 2.9 + noise, 900, 1000, 1e6 * noise, 2e8 * noise)
