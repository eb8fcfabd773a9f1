"""Several runs behind one address: each has its own pages, and an index has a card for each."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from dashboard.page.assets import load_assets
from dashboard.page.page import Frame, rooted
from dashboard.server.connection_bound import ConnectionBound
from dashboard.server.live_updates import Live
from dashboard.server.page_access import PageAccess
from dashboard.several_runs.index import RunCard, make_index, render_index, run_path
from dashboard.several_runs.run_list import read_run_list
from dht.ground.errors import UsageFault
from peer.observe.run_page import ask_page
from tests.kit.dashboard.records import HOSTILE_NAME, NOW, RUN_ID
from tests.kit.dashboard.scene import history_of_run, peer_id_of, state_of
from tests.kit.dashboard.serving import TOKEN, Client, in_memory, until_tick

OTHER = f"other.{RUN_ID.partition('.')[2]}"
GONE = f"gone.{RUN_ID.partition('.')[2]}"


def in_index(
    check: Callable[[Client, list[Live]], Awaitable[None]], access: PageAccess | None = None, **shared: Any
) -> None:
    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            apps, lives = [], []
            for run_id in (RUN_ID, OTHER):
                state, base = replace(state_of(), run_id=run_id), run_path(run_id)
                choices: dict[str, Any] = {"base": base, "clock": lambda: NOW + 3, "access": access, **shared}
                live, app = await stack.enter_async_context(in_memory(state, history_of_run(), **choices))
                apps.append(app)
                lives.append(live)
            root = make_index(apps, {GONE: f"its history is damaged {HOSTILE_NAME}"})
            await check(await stack.enter_async_context(TestClient(TestServer(root))), lives)

    asyncio.run(run())


def test_streams_are_counted_over_all_runs() -> None:
    """Counted for each run, streams would take every connection, and no other visitor got a page."""

    async def check(client: Client, lives: list[Live]) -> None:
        paths = [f"{run_path(run_id)}/events/stream" for run_id in (RUN_ID, OTHER)]
        async with client.get(paths[0]) as first, client.get(paths[1]) as second:
            assert (first.status, second.status) == (200, 503)

    in_index(check, bound=ConnectionBound(2))


def test_each_run_has_a_card_and_pages_of_its_own() -> None:
    async def check(client: Client, lives: list[Live]) -> None:
        index = await (await client.get("/")).text()
        for words in ("tinybytes", "other", "gone", "its history is damaged", "tokens learned by"):
            assert words in index
        assert HOSTILE_NAME not in index
        runs = (await (await client.get("/api/v1/runs")).json())["runs"]
        assert [(run["name"], run["phase"]) for run in runs[:2]] == [("tinybytes", "live"), ("other", "live")]
        assert runs[2]["path"] == ""
        # Every link of a run's page leads to a page of the same run, over all that it can lead to.
        base = run_path(OTHER)
        seen, waiting = set[str](), [f"{base}/"]
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            answer = await client.get(path)
            assert answer.status == 200, path
            if "text/html" in answer.headers["Content-Type"] and len(seen) < 12:
                links = re.findall(r'(?:href|src)="(/[^"#]*)', await answer.text())
                assert [link for link in links if not link.startswith(f"{base}/")] == []
                waiting += [
                    link.replace("&amp;", "&") for link in set(links) if link not in seen and "/proof" not in link
                ]
        assert f"{base}/c/{peer_id_of(0)}" in seen
        stream = await client.get(f"{base}/events/stream?tab=people&whole=1")
        assert f'\\"{base}/c/' in await until_tick(stream)
        stream.close()
        assert (await client.get("/nothing")).status == 404
        assert (await client.get(f"{base}/api/v1/contributors/nobody")).content_type == "application/problem+json"

    in_index(check)


def test_runs_of_one_name_show_what_tells_them_apart() -> None:
    cards = [
        RunCard(f"{name}.{10 * letter}", "", name) for name, letter in (("same", "a"), ("same", "b"), ("own", "c"))
    ]
    index = render_index(cards, Frame(NOW, load_assets(), "b-1"))
    assert re.findall("<code>(.*?)</code>", index) == [".aaaaaa", ".bbbbbb"]


def test_a_joiner_asks_the_page_of_one_of_several_runs() -> None:
    async def check(client: Client, lives: list[Live]) -> None:
        address = "/ip4/203.0.113.5/tcp/4001/p2p/12D3KooWH3uVF6wv47WnArKHk5p6cvgCJEb74UTmxztmQDc298L3"
        for live in lives:
            live.publish(replace(live.state, join_addresses=(address,)), live.history)
        for run_id in (RUN_ID, OTHER):
            for below in ("/", "/?tab=people", f"/c/{peer_id_of(0)}"):
                says = await asyncio.to_thread(ask_page, str(client.make_url(run_path(run_id))) + below)
                assert (says.run_id, says.peers) == (run_id, [address]), below
        with pytest.raises(UsageFault, match="is not the page of a run"):
            await asyncio.to_thread(ask_page, str(client.make_url("/")))

    in_index(check)


def test_one_token_opens_the_index_and_every_run() -> None:
    async def check(client: Client, lives: list[Live]) -> None:
        paths = ("/", "/api/v1/runs", f"{run_path(OTHER)}/", f"{run_path(RUN_ID)}/api/v1/run")
        for path in paths:
            assert (await client.get(path)).status == 401, path
        for path in ("/healthz", f"{run_path(OTHER)}/healthz"):
            assert (await client.get(path)).status == 200, path
        opened = await client.get(f"{run_path(OTHER)}/?token={TOKEN}", allow_redirects=False)
        assert (opened.status, opened.headers["Location"]) == (303, f"{run_path(OTHER)}/")
        for path in paths:
            assert (await client.get(path)).status == 200, path

    in_index(check, PageAccess(TOKEN))


def test_links_are_rooted_once_and_texts_never() -> None:
    html = '<body data-stream="/events"><a href="/c/x">=&#34;/y</a><a href="//elsewhere">'
    once = rooted(html, "/r/a.b")
    assert once == (
        '<body data-base="/r/a.b" data-stream="/r/a.b/events"><a href="/r/a.b/c/x">=&#34;/y</a><a href="//elsewhere">'
    )
    assert rooted(once, "") == once


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "lists 0 runs; expected 1 to 16 entries"),
        ("runs = 3", "runs is not a known field; did you mean run?"),
        ("[[run]]\npeers = []", "run.0.run_id is missing; expected text"),
        ('[[run]]\nrun_id = "x"', "runs.toml: run.0.run_id: 'x' is not a run id"),
        ('[[run]]\nrun_id = "RUN_ID"\npeers = "/ip4"', "peers is '/ip4'; expected a list of texts"),
        ('[[run]]\nrun_id = "RUN_ID"\nport = 3', "port is not a field in run.0"),
        ('[[run]]\nrun_id = "RUN_ID"\n[[run]]\nrun_id = "RUN_ID"', "twice"),
    ],
)
def test_a_wrong_list_of_runs_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "runs.toml"
    path.write_text(text.replace("RUN_ID", str(RUN_ID)))
    with pytest.raises(UsageFault, match=re.escape(sentence)):
        read_run_list(path)
    path.write_text(f'[[run]]\nrun_id = "{RUN_ID}"\npeers = ["/a"]\nbase = "llama"\n[[run]]\nrun_id = "{OTHER}"\n')
    assert [(run.run_id, run.peers, run.base) for run in read_run_list(path)] == [
        *((RUN_ID, ("/a",), "llama"), (OTHER, (), None))
    ]
