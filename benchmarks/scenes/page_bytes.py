"""What the page costs a visitor's line: the first view, and an hour of an open tab."""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from aiohttp.test_utils import TestClient, TestServer

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.listed_peers import Look
from dashboard.page.page import TABS
from tests.kit.dashboard.records import NOW
from tests.kit.dashboard.scene import ROUNDS, SPEED, history_of_run, points_of, rounds_of, state_of
from tests.kit.dashboard.serving import in_memory

LOOK_SECONDS: Final = 2.0
RECORD_LOOKS: Final = 5
"""A peer writes a record every ten seconds."""
ROUND_LOOKS: Final = 3
GZIP: Final = {"Accept-Encoding": "gzip"}


async def measure_bytes(num_people: int, num_looks: int) -> dict[str, Any]:
    """Bytes on the wire, without the heads of HTTP."""
    history = replace(history_of_run(num_people), points=points_of(number=1000))
    state = state_of(num_people)
    async with (
        in_memory(state, history, clock=lambda: NOW + 3) as (live, app),
        TestClient(TestServer(app), auto_decompress=False) as client,
    ):

        async def size(path: str) -> int:
            async with client.get(path, headers=GZIP) as answer:
                assert answer.status == 200, path
                return len(await answer.read())

        pages = {tab: await size(f"/?tab={tab}") for tab in TABS}
        async with client.get("/", headers={"Accept-Encoding": "identity"}) as answer:
            assets = re.findall(r'(?:href|src)="(/assets/[^"]+\.(?:js|css|svg))"', await answer.text())
        shared = {path.rpartition(".")[2]: await size(path) for path in dict.fromkeys(assets)}
        shared["points"] = await size("/api/v1/points?x=time&digits=4&max=180")
        sent = dict.fromkeys(TABS, 0)
        versions = live.version
        for newer, past in itertools.islice(_looks(state, history), num_looks):
            live.publish(newer, past)
            tick = _compressed(f"event: tick\ndata: {json.dumps(newer.now)}\n\n".encode())
            for tab in TABS:
                sent[tab] += _compressed(live.since(versions, tab)) + tick
            versions = live.version
    hours = num_looks * LOOK_SECONDS / 3600
    return {
        "people": num_people,
        "shared_bytes": shared,
        "first_view_bytes": {tab: size + sum(shared.values()) for tab, size in pages.items()},
        "hour_mb": {tab: round(num_bytes / hours / 1e6, 2) for tab, num_bytes in sent.items()},
    }


def _compressed(events: bytes) -> int:
    """Returns the length of a piece of a gzip stream, as a reverse proxy sends it, or a little more."""
    return len(zlib.compress(events, wbits=-zlib.MAX_WBITS))


def _looks(state: DashboardState, history: HistoryView) -> Iterator[tuple[DashboardState, HistoryView]]:
    people = list(history.contributors)
    for look in itertools.count(1):
        now = NOW + LOOK_SECONDS * look
        records = [
            replace(
                row.record,
                sequence=row.record.sequence + look,
                expires_at=now + 100,
                tokens=row.record.tokens + 8192 * (look // RECORD_LOOKS),
                tokens_per_second=row.record.tokens_per_second * (1 + 0.01 * ((look * 7 + place) % 9)),
                train_loss=1.6 + 0.01 * ((look * 5 + place) % 13),
            )
            for place, row in enumerate(state.peers)
            if place % RECORD_LOOKS == look % RECORD_LOOKS
        ]
        state = fold(state, Look(now=now, num_members=9, records=records))
        if look % ROUND_LOOKS == 0:
            for member in range(8):
                place = (look * 8 + member * 37) % len(people)
                row = people[place]
                people[place] = replace(
                    row, milli_tokens_witnessed=row.milli_tokens_witnessed + 10_000_000, last_at=now
                )
        newest = replace(
            history.points[-1],
            at=now,
            tokens=history.points[-1].tokens + round(LOOK_SECONDS * SPEED),
            rounds=ROUNDS + look // 3,
        )
        history = replace(
            history,
            now=now,
            contributors=tuple(people),
            rounds=rounds_of(now=now - LOOK_SECONDS * (look % ROUND_LOOKS)),
            points=(*history.points[-400:], newest),
            num_rounds=ROUNDS + look // ROUND_LOOKS,
            milli_tokens_witnessed=sum(row.milli_tokens_witnessed for row in people),
        )
        yield state, history
