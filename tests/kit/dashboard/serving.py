"""A dashboard with a past, served; for tests over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer

from dashboard.history.history import History, open_history
from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.listed_peers import Look
from dashboard.server.handler_context import Site
from dashboard.server.live_updates import Live
from dashboard.server.page_access import PageAccess
from dashboard.server.routes import make_app
from dht.identity.keys import Identity
from dht.records.profiles import Profile
from tests.kit.dashboard.history import check_raw, usual_commit
from tests.kit.dashboard.records import NOW, PEERS, RUN_ID, empty_state, history_of, record_of
from tests.kit.dashboard.scene import samples_of, scores_of

IDS = [identity.peer_id for identity in PEERS]
ADA = Identity.generate()
"""The person whose machine is the first one."""
NUM_ROUNDS = 130
TOKEN = "correct-horse-battery-staple"

Client = TestClient  # type: ignore[type-arg]


def watched(history: History, name: str = "Ada's box") -> DashboardState:
    """Two looks at a live run and its rounds; the first machine belongs to somebody with a profile."""
    state = empty_state()
    for index in range(2):
        at = NOW + 2 * index
        records = [record_of(identity, sequence=index + 1, now=at, name=name) for identity in PEERS[:3]]
        records[0] = replace(records[0], contributor_key=ADA.public_key)
        state = fold(state, Look(now=at, num_members=3, records=records, withdrawn=history.withdrawn))
        history.look(state)
    for version in range(NUM_ROUNDS):
        raw = usual_commit(version, IDS)
        history.add_commit(raw, check_raw(raw), NOW)
    history.set_missing(1, [(0, 7)])
    history.keep_samples(samples_of())
    history.show_scores(scores_of())
    return state


def hex_line(raw: bytes) -> str:
    """A stored commit as a line of a proof."""
    return json.dumps({"commit": raw.hex()})


@contextlib.asynccontextmanager
async def in_memory(
    state: DashboardState, view: HistoryView | None = None, boot_id: str = "boot", **choices: Any
) -> AsyncIterator[tuple[Live, web.Application]]:
    """A page over `state`, whose history begins now; `view` is shown in its place."""
    async with open_history(None, RUN_ID, clock=lambda: NOW, warn=print) as history:
        live = Live(state, boot_id, view or history_of(state), choices.get("base", ""))
        yield live, make_app(Site(live, history, **choices))


@contextlib.asynccontextmanager
async def serving(
    tmp_path: Path, *, access: PageAccess | None = None, profile: Profile | None = None
) -> AsyncIterator[tuple[Client, Live, History]]:
    async with open_history(tmp_path / "run.sqlite", RUN_ID, clock=lambda: NOW, warn=print) as history:
        if profile is not None:
            history.add_profile(profile)
        watched(history)
    # Opened again, so that everything is in the file and nothing waits.
    async with open_history(tmp_path / "run.sqlite", RUN_ID, clock=lambda: NOW, warn=print) as history:
        state = watched(history)
        live = Live(state, "boot", history.view)
        app = make_app(Site(live, history, clock=lambda: NOW + 5, access=access, proof_line=hex_line))
        async with TestClient(TestServer(app)) as client:
            yield client, live, history


def in_site(tmp_path: Path, check: Callable[[Client, Live, History], Awaitable[None]], **how: Any) -> None:
    async def run() -> None:
        async with serving(tmp_path, **how) as parts:
            await check(*parts)

    asyncio.run(run())


async def raw_answer(client: Client, request: bytes) -> bytes:
    """What comes back for bytes that a well-behaved client would not send."""
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer


async def until_tick(response: ClientResponse) -> str:
    """What a stream says up to the next tick."""
    text = ""
    while "event: tick" not in text:
        text += (await asyncio.wait_for(response.content.readline(), 30)).decode()
    return text


@contextlib.asynccontextmanager
async def site(
    state: DashboardState, clock: Callable[[], float] = lambda: NOW
) -> AsyncIterator[tuple[Live, TestClient]]:  # type: ignore[type-arg]
    async with in_memory(state, clock=clock) as (live, app), TestClient(TestServer(app)) as client:
        yield live, client
