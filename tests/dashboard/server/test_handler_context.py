"""The dashboard over HTTP: answers, live updates, shutdown, and the real command."""

from __future__ import annotations

import asyncio
import json
import socket
from functools import partial

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from dashboard.app import _watch_once, start_site
from dashboard.observe.dashboard_state import fold
from dashboard.observe.listed_peers import Look
from dashboard.server.live_updates import LARGE_SECONDS, Live
from dht.ground.errors import Incompatible, UsageFault
from tests.kit.clock import Clock
from tests.kit.dashboard.records import (
    HOSTILE_NAME,
    NOW,
    PEERS,
    RUN_ID,
    TextOnly,
    empty_state,
    history_of,
    record_of,
    state_with,
)
from tests.kit.dashboard.serving import in_memory, site


async def next_event(response: ClientResponse) -> dict[str, str]:
    event: dict[str, str] = {}
    while True:
        line = (await asyncio.wait_for(response.content.readline(), 10)).decode().rstrip("\n")
        if not line and "event" in event:
            return event
        name, _, value = line.partition(": ")
        if name:
            event[name] = value


def test_every_answer_carries_the_policy_and_no_inline_code() -> None:
    async def check() -> None:
        async with site(state_with(record_of(PEERS[0]))) as (_, client):
            for path in ("/", "/assets/favicon.svg", "/favicon.ico", "/api/v1/run", "/nowhere"):
                response = await client.get(path)
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.status == (404 if path == "/nowhere" else 200)

    asyncio.run(check())


def test_the_api_answers_in_json_and_refuses_in_json() -> None:
    async def check() -> None:
        async with site(state_with(record_of(PEERS[0], name=HOSTILE_NAME))) as (_, client):
            run = await (await client.get("/api/v1/run")).json()
            assert (run["run_id"], run["basis"], run["figures"]["num_training"]) == (RUN_ID, "reported", 1)
            assert run["observed_at"] == NOW
            peers = await (await client.get("/api/v1/peers")).json()
            assert peers["peers"][0]["name"] == HOSTILE_NAME
            assert "address" not in json.dumps(peers)
            rounds = await (await client.get("/api/v1/rounds")).json()
            assert rounds["fragments"][0]["version"] == 3
            missing = await client.get("/api/v1/nothing")
            assert (missing.status, missing.content_type) == (404, "application/problem+json")
            assert (await missing.json())["status"] == 404
            refused = await client.post("/api/v1/run")
            assert (refused.status, refused.headers["Allow"]) == (405, "GET,HEAD,OPTIONS")

    asyncio.run(check())


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "/assets/..%2fbuild.py", "/assets"]
)
def test_path_tricks_find_nothing(path: str) -> None:
    async def check() -> bytes:
        async with site(empty_state()) as (_, client):
            # Written by hand: a well-behaved client would tidy the path up first.
            reader, writer = await asyncio.open_connection(client.host, client.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            await writer.wait_closed()
            return answer

    assert asyncio.run(check()).startswith(b"HTTP/1.1 404 ")


def test_health_tells_a_stalled_observer_from_a_quiet_run() -> None:
    async def check() -> None:
        clock = Clock(NOW)
        async with site(empty_state(), clock) as (_, client):
            assert (await client.get("/healthz")).status == 200
            clock.now += 3600
            response = await client.get("/healthz")
            assert response.status == 503
            assert (await response.json())["status"] == "stalled"

    asyncio.run(check())


def test_somebody_who_is_not_heard_any_more_is_so_at_once_in_the_table_of_peers() -> None:
    states = [state_with(record_of(PEERS[0]), record_of(PEERS[1]))]
    live = Live(states[0], "boot0", history_of(states[0]))
    for seconds in range(5, 50, 5):
        at = NOW + seconds
        heard = record_of(PEERS[0], sequence=2 + seconds, now=at, tokens=100_000 * seconds)
        states.append(fold(states[-1], Look(now=at, num_members=3, records=[heard])))
        before = live.sections["peers"]
        live.publish(states[-1], history_of(states[-1]))
        if states[-1].late and not states[-2].late:
            break
    assert states[-1].late
    assert "unresponsive" not in before
    assert "unresponsive" in live.sections["peers"]


def test_a_changed_record_reaches_an_open_page() -> None:
    async def check() -> None:
        state = state_with(record_of(PEERS[0]))
        async with site(state) as (live, client):
            page = await (await client.get("/")).text()
            snapshot_id = page.partition('data-snapshot="')[2].partition('"')[0]
            response = await client.get(f"/events?after={snapshot_id}")
            assert (await next_event(response))["event"] == "tick"
            at = NOW + LARGE_SECONDS
            newer = record_of(PEERS[0], sequence=2, now=at, name=HOSTILE_NAME)
            later = fold(state, Look(now=at, num_members=3, records=[newer]))
            live.publish(later, history_of(later))
            events: list[dict[str, str]] = []
            while not events or events[-1]["event"] != "tick":
                events.append(await next_event(response))
            sections = {(data := json.loads(event["data"]))["section"]: data["html"] for event in events[:-1]}
            assert "peers" in sections
            assert HOSTILE_NAME in TextOnly(sections["peers"]).text
            assert "script" not in TextOnly(sections["peers"]).tags
            # A figure that stayed the same is not sent again.
            assert "fragments" not in sections
            response.close()

    asyncio.run(check())


def test_an_unchanged_swarm_costs_viewers_nothing() -> None:
    async def check() -> None:
        state = state_with(record_of(PEERS[0]))
        live = Live(state, "boot", history_of(state))
        later = fold(state, Look(now=NOW + 2, num_members=3, records=[record_of(PEERS[0])]))
        live.publish(later, history_of(later))
        assert live.version == 1

    asyncio.run(check())


@given(st.text(max_size=30) | st.from_regex(r"boot-[0-9]{0,25}", fullmatch=True))
def test_a_viewer_resumes_only_from_a_version_that_exists(snapshot_id: str) -> None:
    async def check() -> int:
        live = Live(empty_state(), "boot", history_of(empty_state()))
        state = state_with(record_of(PEERS[0]))
        live.publish(state, history_of(state))
        version = live.version_of(snapshot_id)
        assert bool(live.since(version)) == (version < live.version)
        return version

    assert asyncio.run(check()) in ((0, 1, 2) if snapshot_id.startswith("boot-") else (0,))


def test_shutdown_does_not_wait_for_open_streams() -> None:
    async def check() -> float:
        async with in_memory(empty_state()) as (_, app):
            client = TestClient(TestServer(app))
            await client.start_server()
            streams = [await client.get("/events") for _ in range(3)]
            for stream in streams:
                await next_event(stream)
            started_at = asyncio.get_running_loop().time()
            await client.server.close()
            seconds = asyncio.get_running_loop().time() - started_at
            await client.close()
            return seconds

    assert asyncio.run(check()) < 1.0


def test_a_taken_port_is_one_sentence_and_exit_code_2() -> None:
    async def check(port: int) -> None:
        async with in_memory(empty_state()) as (_, app):
            await start_site(app, "127.0.0.1", port)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageFault, match=f"port {port} .* is in use .* --port") as caught:
            asyncio.run(check(port))
    assert caught.value.exit_code == 2


def test_what_ends_the_watch_is_one_sentence() -> None:
    async def fail(depth: int) -> None:
        if not depth:
            raise Incompatible("the manifest needs newer software")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail(depth - 1))

    async def check() -> None:
        for depth in range(3):
            with pytest.raises(Incompatible, match="newer software"):
                await _watch_once(partial(fail, depth))

    asyncio.run(check())
