"""The dashboard: what is folded from hostile records, what the page shows, how viewers are kept up to date."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.messages import Commit, RosterEntry, ShardResult
from dashboard.app import start_site
from dashboard.chart import even_ticks, loss_chart
from dashboard.live import Live
from dashboard.observer import Observer
from dashboard.page import REFRESH_SECONDS, render_page, render_sections, with_ages
from dashboard.routes import make_app
from dashboard.state import MAX_PEERS, MAX_POINTS, MAX_ROUNDS, DashboardState, Look, LossPoint, fold, label_text
from dht.errors import PeerFault, PeerUnreachable, UsageFault
from dht.host import PeerId
from dht.identity import Identity, make_run_id
from dht.records import PeerRecord, RunRecord, encode_peer_record, encode_run_record, sign_run_record

OWNER = Identity.generate()
RUN_ID = make_run_id("tinybytes", OWNER.public_key)
MANIFEST = json.dumps(
    {
        "revision": 3,
        "description": "Bytes of the standard library",
        "model": {"num_layers": 4, "d_model": 128},
        "averaging": {"mode": "carry", "codec": "int4", "num_fragments": 2},
    }
).encode()
RUN_RECORD = sign_run_record(RUN_ID, MANIFEST, OWNER)
MANIFEST_HASH = hashlib.sha256(MANIFEST).digest()
NOW = 1_900_000_000.0
HOSTILE_NAME = '<script>alert("x")</script>'
PEERS = [Identity.generate() for _ in range(4)]


def record_of(identity: Identity, *, sequence: int = 1, now: float = NOW, **changes: Any) -> PeerRecord:
    fields: dict[str, Any] = {
        "run_id": RUN_ID,
        "peer_id": identity.peer_id,
        "session": 7,
        "sequence": sequence,
        "expires_at": now + 38.0,
        "manifest_hash": MANIFEST_HASH,
        "state": "training",
        "role": "trainer",
        "device": "RTX 4090",
        "name": "",
        "software": "0.1.0",
        "reachable": True,
        "inner_steps": 40,
        "tokens": 40_960,
        "rounds_contributed": 2,
        "tokens_per_second": 1000.0,
        "upload_bits_per_second": 4e6,
        "download_bits_per_second": 2e7,
        "train_loss": 2.5,
        "held_out_loss": 2.75,
        "held_out_version": 5,
        "versions": (3, 2),
        "digests": (b"a" * 8, b"b" * 8),
        "lineage_tokens": (9000, 7000),
        "started_at": now - 60.0,
    }
    return PeerRecord(**{**fields, **changes})


def bare_record(peer_id: str, *, now: float = NOW) -> PeerRecord:
    return replace(record_of(PEERS[0], now=now), peer_id=PeerId(peer_id))


def empty_state(now: float = NOW) -> DashboardState:
    return DashboardState(run_id=RUN_ID, started_at=now, now=now)


def state_with(*records: PeerRecord, now: float = NOW) -> DashboardState:
    return fold(empty_state(now), Look(now=now, num_members=3, records=records))


class FakeStore:
    """A `RecordStore` of what the test puts in; `fault` is raised by every operation."""

    def __init__(self) -> None:
        self.num_members = 1
        self.run: bytes | None = encode_run_record(RUN_RECORD)
        self.peers: dict[str, bytes] = {}
        self.fault: PeerFault | None = None
        self.dialled: list[list[str]] = []

    def put(self, identity: Identity, **changes: Any) -> None:
        self.peers[identity.peer_id] = encode_peer_record(record_of(identity, **changes), identity)

    async def publish_run(self, run_id: str, record: bytes, expires_at: float) -> int:
        raise AssertionError("an observer publishes nothing")

    async def publish_peer(self, run_id: str, peer_id: PeerId, record: bytes, expires_at: float) -> int:
        raise AssertionError("an observer publishes nothing")

    async def fetch_run(self, run_id: str) -> bytes | None:
        return self.run

    async def fetch_peers(self, run_id: str) -> list[bytes]:
        if self.fault is not None:
            raise self.fault
        return list(self.peers.values())

    async def bootstrap(self, multiaddrs: list[str]) -> int:
        self.dialled.append(multiaddrs)
        return self.num_members

    async def close(self) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class TextOnly(HTMLParser):
    """Collects tag names, attributes and text, as a browser without scripts sees them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


# State


def test_a_peer_is_listed_counted_and_then_silent() -> None:
    state = state_with(record_of(PEERS[0]), record_of(PEERS[1], role="seed", state="serving", train_loss=None))
    assert (len(state.here), len(state.trainers), state.phase) == (2, 1, "live")
    assert state.committed_tokens == 8000
    later = fold(state, Look(now=NOW + 60.0, num_members=3))
    assert later.phase == "silent"
    assert [row.condition for row in later.peers] == ["silent", "silent"]
    assert later.heard_at == NOW
    assert later.held_out_loss is None


def test_who_said_goodbye_has_left_and_is_not_silent() -> None:
    state = state_with(record_of(PEERS[0]))
    gone = record_of(PEERS[0], sequence=2, now=NOW + 1, state="left")
    state = fold(state, Look(now=NOW + 1, num_members=3, records=[gone]))
    assert fold(state, Look(now=NOW + 500, num_members=3)).peers[0].condition == "left"


def test_an_older_record_never_replaces_a_newer_one() -> None:
    newer, older = record_of(PEERS[0], sequence=9, now=NOW + 5, tokens=900), record_of(PEERS[0], sequence=8, tokens=800)
    state = fold(state_with(newer, now=NOW + 5), Look(now=NOW + 6, num_members=3, records=[older]))
    assert state.peers[0].record.tokens == 900
    assert state.peers[0].heard_at == NOW + 5


@pytest.mark.parametrize(
    ("num_members", "run", "phase"), [(0, False, "looking"), (2, False, "no run"), (2, True, "empty")]
)
def test_each_empty_state_has_its_words(num_members: int, run: bool, phase: str) -> None:
    async def look() -> DashboardState:
        store = FakeStore()
        store.num_members = num_members
        store.run = store.run if run else None
        observer = Observer(RUN_ID, store, ["/a"], wall_clock=Clock(), on_state=lambda state: None)
        await observer.look()
        return observer.state

    state = asyncio.run(look())
    assert state.phase == phase
    text = TextOnly(render_sections(state)["status"]).text
    assert {"looking": "keeps trying", "no run": "check the run id", "empty": "no peer is in it"}[phase] in text


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(0, 3 * MAX_PEERS), max_size=900), max_size=4))
def test_rows_are_bounded_and_a_flood_does_not_push_out_who_was_there_first(floods: list[list[int]]) -> None:
    state = state_with(bare_record("first"))
    for step, flood in enumerate(floods, 1):
        now = NOW + step
        records = [bare_record("first", now=now), *(bare_record(f"flood{key}", now=now) for key in flood)]
        state = fold(state, Look(now=now, num_members=3, records=records))
        assert len(state.peers) <= MAX_PEERS
        assert len(state.peers) + state.num_unlisted >= len({record.peer_id for record in records})
        assert "first" in [row.record.peer_id for row in state.peers]


def test_newcomers_take_the_rows_of_those_who_went_longest_ago() -> None:
    old = [bare_record(f"old{index}") for index in range(MAX_PEERS)]
    state = state_with(*old)
    new = [bare_record(f"new{index}", now=NOW + 100) for index in range(3)]
    state = fold(state, Look(now=NOW + 100, num_members=3, records=new))
    assert len(state.peers) == MAX_PEERS
    assert state.num_unlisted == 0
    assert {row.record.peer_id for row in state.here} == {"new0", "new1", "new2"}


def test_one_liar_moves_neither_the_losses_nor_the_tokens() -> None:
    honest = [record_of(identity) for identity in PEERS[:2]]
    liar = record_of(PEERS[2], train_loss=-1e18, held_out_loss=0.0, lineage_tokens=(2**62, 2**62))
    state = state_with(*honest, liar)
    assert (state.train_loss, state.held_out_loss, state.committed_tokens) == (2.5, 2.75, 8000)


def test_peers_of_another_manifest_are_listed_and_not_counted() -> None:
    async def look() -> DashboardState:
        store = FakeStore()
        store.put(PEERS[0])
        store.put(PEERS[1], manifest_hash=b"x" * 32)
        observer = Observer(RUN_ID, store, [], wall_clock=Clock(), on_state=lambda state: None)
        await observer.look()
        return observer.state

    state = asyncio.run(look())
    assert (len(state.peers), len(state.trainers)) == (2, 1)
    assert "other manifest" in render_sections(state)["contributors"]


def test_equal_versions_with_other_anchors_are_shown_as_differing() -> None:
    state = state_with(
        record_of(PEERS[0]), record_of(PEERS[1]), record_of(PEERS[2], digests=(b"z" * 8, b"b" * 8)), record_of(PEERS[3])
    )
    assert [row.num_forked for row in state.fragments] == [1, 0]
    assert "1 peer differ" in render_sections(state)["fragments"]


def test_rounds_come_from_versions_and_are_filled_in_by_commits() -> None:
    state = state_with(record_of(PEERS[0]))
    assert state.rounds == ()
    assert state.num_rounds == 5
    later = record_of(PEERS[0], sequence=2, now=NOW + 3, versions=(3, 4), lineage_tokens=(9000, 15000))
    state = fold(state, Look(now=NOW + 3, num_members=3, records=[later]))
    assert [(row.fragment, row.version, row.num_rounds, row.leader) for row in state.rounds] == [(1, 4, 2, None)]
    state = fold(state, Look(now=NOW + 5, num_members=3, commits=[commit_of(1, 3)]))
    (row,) = state.rounds
    assert (row.version, row.tokens, row.seen_at, row.num_void_shards) == (4, 300, NOW + 3, 1)
    assert row.contributors == (PEERS[0].peer_id, PEERS[1].peer_id)
    assert "2 contributors, 300 tokens" in TextOnly(render_sections(state)["rounds"]).text


def test_rounds_and_loss_points_are_bounded_over_a_long_watch() -> None:
    state = empty_state()
    for step in range(4 * MAX_POINTS + 17):
        now = NOW + step
        record = record_of(
            PEERS[0],
            sequence=step,
            now=now,
            versions=(step, step),
            lineage_tokens=(100 * step, 100 * step),
            held_out_loss=5.0 / (1 + step),
        )
        state = fold(state, Look(now=now, num_members=1, records=[record]))
        assert len(state.points) <= MAX_POINTS
        assert len(state.rounds) <= MAX_ROUNDS
        assert state.points[-1].tokens == 100 * step
    tokens = [point.tokens for point in state.points]
    assert tokens[0] == 0
    assert tokens == sorted(set(tokens))
    # Evenly thinned: no gap is wider than the stride that keeps the whole watch within the limit.
    assert max(right - left for left, right in itertools.pairwise(tokens)) <= 100 * state.point_stride


def commit_of(fragment: int, version: int) -> Commit:
    roster = tuple(
        RosterEntry(identity.peer_id, tokens=100 * (index + 1), steps=10, base_version=version, sequence=1)
        for index, identity in enumerate(PEERS[:3])
    )
    shards = (ShardResult(0, 10, 0, b"d" * 16, (0, 1)), ShardResult(10, 20, 1, b"", ()))
    return Commit(fragment, version, 0, PEERS[0].peer_id, b"a" * 32, roster, shards)


@given(st.text(max_size=80))
def test_labels_are_short_printable_and_have_no_towers_of_marks(text: str) -> None:
    shown = label_text(text, 40)
    assert len(shown) <= 40
    assert shown.isprintable()
    assert label_text("a" + "\u0301" * 30, 40) == "a\u0301\u0301"
    assert label_text("evil\u202egnp.exe\x1b[2J", 40) == "evilgnp.exe[2J"


# Chart


@given(st.floats(-50, 50), st.floats(1e-3, 100), st.integers(2, 8))
def test_ticks_are_even_and_enclose_the_range(low: float, span: float, num_intervals: int) -> None:
    ticks = even_ticks(low, low + span, num_intervals)
    steps = [right - left for left, right in itertools.pairwise(ticks)]
    assert ticks[0] <= low + 1e-6 * span
    assert ticks[-1] >= low + span - 1e-6 * span
    assert 2 <= len(ticks) <= num_intervals + 2
    assert max(steps) - min(steps) < 1e-9 * max(1.0, abs(low))


losses = st.none() | st.floats(-1e18, 1e18)


@given(st.lists(st.tuples(st.integers(0, 10**15), losses, losses), max_size=20))
def test_any_reported_loss_can_be_drawn(values: list[tuple[int, float | None, float | None]]) -> None:
    points = [LossPoint(NOW, tokens, held_out, train, 1, 1.0) for tokens, held_out, train in sorted(values, key=str)]
    points.sort(key=lambda point: point.tokens)
    html = loss_chart(points)
    assert "nan" not in html
    assert "inf" not in html


# Page


def page_of(state: DashboardState, now: float = NOW) -> str:
    return render_page(state.run_id, render_sections(state), now=now, snapshot_id="boot-1", asset_version="0")


@pytest.mark.parametrize("field", ["name", "device", "software"])
def test_hostile_labels_are_text_and_nothing_else(field: str) -> None:
    hostile = HOSTILE_NAME[:20] if field == "software" else HOSTILE_NAME
    labels: list[dict[str, Any]] = [{field: "x"}, {field: hostile}]
    harmless, page = (TextOnly(page_of(state_with(record_of(PEERS[0], **label)))) for label in labels)
    assert page.tags == harmless.tags
    if field != "software":
        assert hostile in page.text


def test_the_page_needs_no_script_and_says_what_its_figures_rest_on() -> None:
    page = TextOnly(page_of(state_with(record_of(PEERS[0], name="Ada")), now=NOW + 3.2))
    assert "Ada" in page.text
    assert "3 s ago" in page.text
    assert "40.96 k" in page.text or "41 k" in page.text
    assert page.text.count("reported") >= 8
    assert f'<noscript><meta http-equiv="refresh" content="{REFRESH_SECONDS}"></noscript>' in page_of(empty_state())
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]


def test_ages_are_those_of_the_moment_of_the_answer() -> None:
    html = render_sections(state_with(record_of(PEERS[0])))["status"]
    assert "75 s" not in html
    assert "1 min 15 s ago" in with_ages(html, NOW + 75)


def test_before_the_first_look_nothing_is_claimed() -> None:
    text = TextOnly(render_sections(empty_state())["status"] + render_sections(empty_state())["figures"]).text
    assert "has just started" in text
    assert "Nobody" not in text
    assert "0" not in text


def test_nothing_of_the_network_address_of_anybody_is_shown() -> None:
    state = state_with(record_of(PEERS[0]))
    assert "/ip4/" not in page_of(state)


# Observer


def test_the_observer_counts_what_it_refuses_and_survives_a_broken_network() -> None:
    async def watch() -> None:
        store, clock = FakeStore(), Clock()
        store.put(PEERS[0])
        store.peers["garbage"] = b"\x00" * 300
        good = store.peers[PEERS[0].peer_id]
        store.peers["forged"] = bytes([good[0] ^ 1]) + good[1:]
        seen: list[DashboardState] = []
        observer = Observer(RUN_ID, store, ["/addr"], wall_clock=clock, on_state=seen.append)
        await observer.look()
        assert (len(observer.state.peers), observer.state.num_invalid_records) == (1, 2)
        store.fault = PeerUnreachable(PEERS[0].peer_id, "is gone; expected an answer; it is tried again")
        await observer.look()
        assert "is gone" in observer.state.problem
        assert "is gone" in render_sections(observer.state)["status"]
        store.fault = None
        await observer.look()
        assert observer.state.problem == ""
        assert len(seen) == 3

    asyncio.run(watch())


def test_a_run_record_of_another_owner_is_never_believed() -> None:
    async def watch() -> None:
        store = FakeStore()
        other = Identity.generate()
        store.run = encode_run_record(sign_run_record(make_run_id("tinybytes", other.public_key), MANIFEST, other))
        observer = Observer(RUN_ID, store, [], wall_clock=Clock(), on_state=lambda state: None)
        await observer.look()
        assert observer.state.run is None
        assert "run record" in observer.state.problem

    asyncio.run(watch())


def test_nobody_reachable_is_dialled_again_at_every_look() -> None:
    async def watch() -> None:
        store, clock = FakeStore(), Clock()
        store.num_members = 0
        observer = Observer(RUN_ID, store, ["/addr"], wall_clock=clock, on_state=lambda state: None)
        for _ in range(3):
            await observer.look()
        assert store.dialled == [["/addr"]] * 3
        store.num_members = 1
        await observer.look()
        await observer.look()
        assert len(store.dialled) == 4

    asyncio.run(watch())


def test_commit_records_are_asked_of_donors_in_turn() -> None:
    async def watch() -> None:
        store, filled = FakeStore(), asyncio.Event()
        store.put(PEERS[0])
        store.put(PEERS[1], reachable=False)
        asked: list[tuple[PeerId, int, int]] = []

        async def fetch(donor: PeerId, fragment: int, from_version: int) -> list[Commit]:
            asked.append((donor, fragment, from_version))
            if donor == PEERS[0].peer_id:
                raise PeerUnreachable(donor, "is gone; expected commits; another is asked")
            return [commit_of(fragment, 1)]

        def open_commits(run: RunRecord) -> Callable[..., Coroutine[Any, Any, list[Commit]]]:
            assert run == RUN_RECORD
            return fetch

        def notice(state: DashboardState) -> None:
            if len([row for row in state.rounds if row.leader]) == 2:
                filled.set()

        observer = Observer(RUN_ID, store, [], wall_clock=Clock(), on_state=notice, open_commits=open_commits)
        await observer.look()
        watching = asyncio.create_task(observer.run())
        while not filled.is_set() and not watching.done():
            # The second look would come by itself, after two real seconds.
            await asyncio.sleep(0)
            await observer.look()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert asked[:2] == [(PEERS[0].peer_id, 0, 0), (PEERS[1].peer_id, 0, 0)]

    asyncio.run(watch())


# Server


@contextlib.asynccontextmanager
async def site(
    state: DashboardState, clock: Callable[[], float] = lambda: NOW
) -> AsyncIterator[tuple[Live, TestClient]]:  # type: ignore[type-arg]
    live = Live(state, "boot")
    async with TestClient(TestServer(make_app(live, clock=clock))) as client:
        yield live, client


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
            for path in ("/", "/style.css", "/page.js", "/favicon.svg", "/favicon.ico", "/api/v1/run", "/nowhere"):
                response = await client.get(path)
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.status == (404 if path == "/nowhere" else 200)

    asyncio.run(check())


def test_the_page_links_only_to_itself() -> None:
    async def check() -> None:
        async with site(state_with(record_of(PEERS[0]))) as (_, client):
            page = TextOnly(await (await client.get("/")).text())
            links = [value for name, value in page.attributes if name in ("href", "src") and value]
            assert links
            for link in links:
                assert link.startswith(("/", "#"))
                if link.startswith("/"):
                    assert (await client.get(link)).status == 200

    asyncio.run(check())


def test_the_api_answers_in_json_and_refuses_in_json() -> None:
    async def check() -> None:
        async with site(state_with(record_of(PEERS[0], name=HOSTILE_NAME))) as (_, client):
            run = await (await client.get("/api/v1/run")).json()
            assert (run["run_id"], run["basis"], run["num_trainers"]) == (RUN_ID, "reported", 1)
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
            assert (refused.status, refused.headers["Allow"]) == (405, "GET,HEAD")

    asyncio.run(check())


@pytest.mark.parametrize("path", ["/../pyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "/web/style.css", "/style.css/.."])
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
        clock = Clock()
        async with site(empty_state(), clock) as (_, client):
            assert (await client.get("/healthz")).status == 200
            clock.now += 3600
            response = await client.get("/healthz")
            assert response.status == 503
            assert (await response.json())["status"] == "stalled"

    asyncio.run(check())


def test_a_changed_record_reaches_an_open_page() -> None:
    async def check() -> None:
        state = state_with(record_of(PEERS[0]))
        async with site(state) as (live, client):
            page = await (await client.get("/")).text()
            snapshot_id = page.partition('data-snapshot="')[2].partition('"')[0]
            response = await client.get(f"/events?after={snapshot_id}")
            assert (await next_event(response))["event"] == "tick"
            newer = record_of(PEERS[0], sequence=2, now=NOW + 2, name=HOSTILE_NAME)
            live.publish(fold(state, Look(now=NOW + 2, num_members=3, records=[newer])))
            events: list[dict[str, str]] = []
            while not events or events[-1]["event"] != "tick":
                events.append(await next_event(response))
            sections = {(data := json.loads(event["data"]))["section"]: data["html"] for event in events[:-1]}
            assert "contributors" in sections
            assert HOSTILE_NAME in TextOnly(sections["contributors"]).text
            assert "script" not in TextOnly(sections["contributors"]).tags
            # A figure that stayed the same is not sent again.
            assert "fragments" not in sections
            response.close()

    asyncio.run(check())


def test_an_unchanged_swarm_costs_viewers_nothing() -> None:
    async def check() -> None:
        state = state_with(record_of(PEERS[0]))
        live = Live(state, "boot")
        live.publish(fold(state, Look(now=NOW + 2, num_members=3, records=[record_of(PEERS[0])])))
        assert live.version == 1

    asyncio.run(check())


@given(st.text(max_size=30) | st.from_regex(r"boot-[0-9]{0,25}", fullmatch=True))
def test_a_viewer_resumes_only_from_a_version_that_exists(snapshot_id: str) -> None:
    async def check() -> int:
        live = Live(empty_state(), "boot")
        live.publish(state_with(record_of(PEERS[0])))
        version = live.version_of(snapshot_id)
        assert bool(live.since(version)) == (version < live.version)
        return version

    assert asyncio.run(check()) in ((0, 1, 2) if snapshot_id.startswith("boot-") else (0,))


def test_shutdown_does_not_wait_for_open_streams() -> None:
    async def check() -> float:
        live = Live(empty_state(), "boot")
        client = TestClient(TestServer(make_app(live)))
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


def test_too_many_viewers_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with site(empty_state()) as (_, client):
            monkeypatch.setattr("dashboard.routes.MAX_VIEWERS", 1)
            first = await client.get("/events")
            await next_event(first)
            assert (await client.get("/events")).status == 503
            assert (await client.get("/")).status == 200
            first.close()

    asyncio.run(check())


def test_a_taken_port_is_one_sentence_and_exit_code_2() -> None:
    async def check(port: int) -> None:
        await start_site(make_app(Live(empty_state(), "boot")), "127.0.0.1", port)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageFault, match=f"port {port} .* is taken .* --port") as caught:
            asyncio.run(check(port))
    assert caught.value.exit_code == 2


@pytest.mark.network
def test_with_nobody_there_the_page_says_so_and_ctrl_c_leaves_nothing_behind() -> None:
    code = (
        "from dashboard.app import serve_dashboard; import sys;"
        f"sys.exit(serve_dashboard({RUN_ID!r}, ['/ip4/127.0.0.1/tcp/1/p2p/{PEERS[0].peer_id}'], '127.0.0.1', 0))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        asyncio.run(_until_status(port, "Nobody answers yet"))
        daemons = _children_of(process.pid)
        assert daemons
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert not [pid for pid in daemons if Path(f"/proc/{pid}").exists()]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


async def _until_status(port: int, sentence: str) -> None:
    async with ClientSession(f"http://127.0.0.1:{port}") as session, asyncio.timeout(120):
        response = await session.get("/events")
        while sentence not in (await response.content.readline()).decode():
            pass
        response.close()


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
