"""Open streams, private pages, and what a page does with hostile names and a broken disk."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from dashboard.history.history import History, open_history
from dashboard.observe.dashboard_state import fold
from dashboard.observe.listed_peers import Look
from dashboard.page.page import SECTIONS, TABS
from dashboard.server.handler_context import Site
from dashboard.server.live_updates import MAX_KEPT, MAX_POINTS_KEPT, Live
from dashboard.server.page_access import PageAccess, read_token
from dashboard.server.routes import make_app
from dht.ground.errors import UsageFault
from tests.kit.dashboard.records import NOW, PEERS, RUN_ID, empty_state, history_of, record_of
from tests.kit.dashboard.scene import history_of_run, state_of
from tests.kit.dashboard.serving import IDS, TOKEN, Client, in_site, raw_answer, until_tick, watched


def test_a_private_page_opens_to_its_token_only(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        for path in ("/", "/api/v1/run", "/metrics", "/events/stream", f"/c/{IDS[0]}", "/people"):
            response = await client.get(path)
            assert response.status == 401, path
            assert RUN_ID.partition(".")[0] not in await response.text()
            assert "Access-Control-Allow-Origin" not in response.headers
        for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Cookie": "x=y"}):
            assert (await client.get("/", headers=headers)).status == 401
        garbled = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: murmuration_page=\xff\r\n\r\n"
        assert (await raw_answer(client, garbled)).startswith(b"HTTP/1.1 401")
        health = await client.get("/healthz")
        assert await health.json() == {"status": "ok"}
        granted = {"Authorization": f"Bearer {TOKEN}"}
        for path in ("/", "/api/v1/run", "/metrics"):
            response = await client.get(path, headers=granted)
            assert response.status == 200
            assert "Access-Control-Allow-Origin" not in response.headers
        assert (await client.get(f"/api/v1/run?token={TOKEN}")).status == 200
        opened = await client.get(f"/?token={TOKEN}", allow_redirects=False)
        assert (opened.status, opened.headers["Location"]) == (303, "/")
        cookie = opened.headers["Set-Cookie"]
        assert TOKEN not in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert (await client.get("/")).status == 200
        away = await raw_answer(
            client, f"GET //evil.example/?token={TOKEN} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        )
        assert b"Location: //" not in away

    in_site(tmp_path, check, access=PageAccess(TOKEN))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"short", "has 5 characters"), (b"", "has 0 characters"), (b"a b c d e f g h i j k", "exactly one line"),
     (b"x" * 2000, "exactly one line"), ("ü".encode() * 20, "exactly one line"), (b"a\x00" * 20, "exactly one line")],
)  # fmt: skip
def test_token_files_that_hold_no_token(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageFault, match=sentence):
        read_token(path)
    path.write_bytes(TOKEN.encode() + b"\n")
    assert read_token(path) == TOKEN


def test_people_are_found_by_the_rules_of_the_api(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        shown = await (await client.get("/people?sort=name&limit=1")).text()
        answer = await (await client.get("/api/v1/contributors?sort=name&limit=1")).json()
        assert f"/c/{answer['contributors'][0]['contributor_id']}" in shown
        assert "Show all 4" in shown
        assert "Show all 4" in await (await client.get("/?tab=people&limit=1")).text()
        assert "No contributor has that name" in await (await client.get("/people?search=nobody")).text()
        refused = await client.get("/people?sort=share")
        assert refused.status == 400
        assert "sort" in await refused.text()

    in_site(tmp_path, check)


def test_the_address_says_which_tab_and_whom_one_looks_for(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        async def page(query: str) -> str:
            return await (await client.get(f"/{query}")).text()

        first, people = await page("?utm_source=chat&along=time"), await page("?tab=people&sort=name")
        assert 'class="figures"' in first
        assert "/c/" in first  # the top contributors
        assert '<table class="stack people">' not in first
        assert 'data-tab="people" hidden' in first
        assert '<table class="stack people">' in people
        assert 'aria-sort="ascending"' in people
        assert 'class="figures"' not in people
        assert "No contributor has that name" in await page("?tab=people&search=nobody")
        refused = await client.get("/?tab=kitchen")
        assert refused.status == 400
        assert "tab is 'kitchen'; expected one of overview, people" in await refused.text()
        # Whoever opens a tab for the first time gets all of it, and of the curves what is new.
        stream = await client.get(f"/events/stream?after={live.snapshot_id}&tab=people&whole=1")
        text = await until_tick(stream)
        stream.close()
        assert '"section":"contributors"' in text
        assert '"section":"figures"' not in text
        assert "event: points" not in text

    in_site(tmp_path, check)


def test_curves_grow_over_the_stream_and_resume_where_they_were(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        stream = await client.get("/events/stream", headers={"Last-Event-ID": live.snapshot_id})
        assert "points" not in await until_tick(stream)
        state, seen = live.state, []
        for step in range(1, 4):
            at = NOW + 2 + 2 * step
            record = record_of(PEERS[0], sequence=9 + step, now=at, tokens_per_second=1000.0 + step)
            state = fold(state, Look(now=at, num_members=3, records=[record]))
            history.look(state)
            live.publish(state, history.view)
            text = await until_tick(stream)
            seen.append(json.loads(text.partition("event: points\ndata: ")[2].partition("\n")[0]))
            last_id = text.rpartition("id: ")[2].partition("\n")[0]
            if step == 1:
                first_id = last_id
        stream.close()
        assert [points["reset"] for points in seen] == [False] * 3
        assert [points["columns"][0] for points in seen] == [[NOW + 4], [NOW + 6], [NOW + 8]]
        # A viewer that was away gets what it missed, once.
        again = await client.get("/events/stream", headers={"Last-Event-ID": first_id})
        text = await until_tick(again)
        again.close()
        missed = json.loads(text.partition("event: points\ndata: ")[2].partition("\n")[0])
        assert missed["columns"][0] == [NOW + 6, NOW + 8]
        assert live.since(live.version) == b""

    in_site(tmp_path, check)


def test_every_section_belongs_to_one_tab() -> None:
    placed = ["status", *(section for sections in TABS.values() for section in sections)]
    assert sorted(placed) == sorted(set(SECTIONS))
    assert len(placed) == len(set(placed))


def test_a_viewer_gets_what_is_in_its_tab() -> None:
    live = Live(state_of(300), "boot", history_of_run(300))
    everything, people = live.since(0), live.since(0, "people")
    assert b'"section":"contributors"' in people
    assert b'"section":"peers"' not in people
    assert b'"section":"status"' in people
    assert live.since(0, "no such tab") == everything


def test_whoever_was_away_for_long_reads_all_points_again() -> None:
    async def check() -> None:
        state = empty_state()
        live = Live(state, "boot", history_of(state))
        for step in range(MAX_POINTS_KEPT + 10):
            record = record_of(PEERS[0], sequence=step + 1, now=NOW + step, train_loss=float(step))
            state = fold(state, Look(now=NOW + step, num_members=1, records=[record]))
            live.publish(state, history_of(state))
        assert b'"reset":true' in live.since(2)
        assert b'"reset":false' in live.since(live.version - 5)
        assert live.since(live.version - 5) is live.since(live.version - 5)

    asyncio.run(check())


def test_what_viewers_claim_to_have_fills_no_memory() -> None:
    """Everybody may come back with any version, and all sections of a large run take half a megabyte."""

    async def check() -> None:
        state = empty_state()
        live = Live(state, "boot", history_of(state))
        for step in range(2 * MAX_KEPT):
            record = record_of(PEERS[0], sequence=step + 1, now=NOW + step, train_loss=float(step))
            state = fold(state, Look(now=NOW + step, num_members=1, records=[record]))
            live.publish(state, history_of(state))
        assert live.version > MAX_KEPT
        for version in range(live.version):
            assert live.since(version)
        assert len(live._events) == MAX_KEPT

    asyncio.run(check())


def test_a_history_that_cannot_be_read_is_a_503_and_the_page_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_history(tmp_path / "run.sqlite", RUN_ID, clock=lambda: NOW, warn=print) as history:
            state = watched(history)
            live = Live(state, "boot", history.view)
            async with TestClient(TestServer(make_app(Site(live, history)))) as client:
                history._database = _Broken()  # type: ignore[assignment]
                response = await client.get("/api/v1/rounds")
                assert response.status == 503
                assert "cannot be read" in (await response.json())["detail"]
                assert (await client.get("/")).status == 200
                assert (await client.get("/api/v1/contributors")).status == 200

    asyncio.run(run())


class _Broken:
    async def do(self, *work: object) -> list[object]:
        raise sqlite3.OperationalError("disk I/O error")
