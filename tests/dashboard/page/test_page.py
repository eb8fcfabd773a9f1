"""The dashboard's page as rendered by the server, and its observer."""

from __future__ import annotations

import asyncio

from dashboard.observe.dashboard_state import DashboardState
from dashboard.observe.join_addresses import JoinRule
from dashboard.observe.swarm_observer import SwarmObserver
from dashboard.page.assets import load_assets
from dashboard.page.environment import with_ages
from dashboard.page.page import REFRESH_SECONDS, Frame, render_page, render_sections
from dht.ground.errors import PeerUnreachable
from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import encode_run_record, sign_run_record
from tests.kit.clock import Clock
from tests.kit.dashboard.records import (
    MANIFEST,
    NOW,
    PEERS,
    RUN_ID,
    FakeStore,
    TextOnly,
    empty_state,
    history_of,
    record_of,
    state_with,
)


def page_of(state: DashboardState, now: float = NOW) -> str:
    history = history_of(state)
    sections = render_sections(state, history)
    return render_page(state, sections, history, Frame(now, load_assets(), "boot-1"))


def section_of(state: DashboardState, key: str) -> str:
    return render_sections(state, history_of(state))[key]


def test_the_page_needs_no_script_and_says_what_its_figures_rest_on() -> None:
    page = TextOnly(page_of(state_with(record_of(PEERS[0], name="Ada")), now=NOW + 3.2))
    assert "Ada" in page.text
    assert "3 s ago" in page.text
    assert "41.0 k" in page.text
    assert page.text.count("reported") >= 8
    assert f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">' in page_of(empty_state())
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]


def test_ages_are_those_of_the_moment_of_the_answer() -> None:
    html = section_of(state_with(record_of(PEERS[0])), "status")
    assert "75 s" not in html
    assert "1 min ago" in with_ages(html, NOW + 75)


def test_before_the_first_look_nothing_is_claimed() -> None:
    text = TextOnly(section_of(empty_state(), "status") + section_of(empty_state(), "figures")).text
    assert "has just started" in text
    assert "Nobody" not in text
    assert "0" not in text


def test_nothing_of_the_network_address_of_anybody_is_shown() -> None:
    state = state_with(record_of(PEERS[0]))
    assert "/ip4/" not in page_of(state)


# Observer


def test_the_observer_counts_what_it_refuses_and_survives_a_broken_network() -> None:
    async def watch() -> None:
        store, clock = FakeStore(), Clock(NOW)
        store.put(PEERS[0])
        store.peers["garbage"] = b"\x00" * 300
        good = store.peers[PEERS[0].peer_id]
        store.peers["forged"] = bytes([good[0] ^ 1]) + good[1:]
        seen: list[DashboardState] = []
        rule = JoinRule(install="pip install it")
        observer = SwarmObserver(RUN_ID, store, ["/addr"], wall_clock=clock, on_state=seen.append, rule=rule)
        await observer.look()
        assert observer.state.install == "pip install it"
        assert (len(observer.state.peers), observer.state.num_invalid_records) == (1, 2)
        store.fault = PeerUnreachable(PEERS[0].peer_id, "is gone; expected an answer; this peer tries again")
        await observer.look()
        assert "is gone" in observer.state.problem
        assert "is gone" in section_of(observer.state, "status")
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
        observer = SwarmObserver(RUN_ID, store, [], wall_clock=Clock(NOW), on_state=lambda state: None)
        await observer.look()
        assert observer.state.run is None
        assert "run record" in observer.state.problem

    asyncio.run(watch())


def test_nobody_reachable_is_dialled_again_at_every_look() -> None:
    async def watch() -> None:
        store, clock = FakeStore(), Clock(NOW)
        store.num_members = 0
        observer = SwarmObserver(RUN_ID, store, ["/addr"], wall_clock=clock, on_state=lambda state: None)
        for _ in range(3):
            await observer.look()
        assert store.dialled == [["/addr"]] * 3
        store.num_members = 1
        await observer.look()
        await observer.look()
        assert len(store.dialled) == 4

    asyncio.run(watch())


def test_a_seed_that_comes_back_on_another_port_is_dialled_and_shown_there() -> None:
    async def watch() -> None:
        store = FakeStore()
        store.num_members = 0
        seed = PEERS[0].peer_id
        old, elsewhere = (f"/ip4/{host}/tcp/4001/p2p/{seed}" for host in ("192.0.2.7", "203.0.113.5"))
        new = f"/ip4/192.0.2.7/tcp/4002/p2p/{seed}"
        later: list[str] = []
        observer = SwarmObserver(
            *(RUN_ID, store, [old, elsewhere]),
            wall_clock=Clock(NOW),
            on_state=lambda state: None,
            later=lambda: later,
        )
        await observer.look()
        assert store.dialled[-1] == [old, elsewhere]
        later.append(new)
        store.num_members = 1
        store.put(PEERS[0], role="seed")
        await observer.look()
        assert store.dialled[-1] == [elsewhere, new], "it left a port of its host, and nothing says so of another host"
        assert observer.state.join_addresses == (elsewhere, new)

    asyncio.run(watch())


# Server
