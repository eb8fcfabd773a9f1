"""A thousand records of the worst kind: page, API, metrics and streams answer, bounded, and text stays text."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from dashboard.history.history import open_history
from dashboard.observe.dashboard_state import DashboardState
from dashboard.observe.fault_barrier import keep_going
from dashboard.observe.swarm_observer import SwarmObserver
from dashboard.server.handler_context import Site
from dashboard.server.live_updates import Live
from dashboard.server.routes import make_app
from dht.ground.errors import UsageFault
from dht.ground.fields import MAX_REAL, MAX_WHOLE
from dht.identity.keys import Identity
from dht.records.evaluation import Evaluation
from dht.records.peer_record import RoundTimes
from tests.kit.clock import Clock
from tests.kit.dashboard.records import HOSTILE_NAME, NOW, PEERS, RUN_ID, FakeStore, TextOnly
from tests.kit.dashboard.serving import until_tick

NAMES = [
    HOSTILE_NAME,
    "'\"><img src=x onerror=alert(1)>",
    "[/nope][bold]{{7*7}}${7}%s%n",
    "W" * 40,
    "a\u0301" * 20,
    "\u05d0\u05d1 1 \u0627",
    "=cmd|' /C calc'!A0",
    "</script></style>--><svg/onload=1>",
    "&lt;b&gt;&#0;",
    "𒐫" * 40,
]
WHOLES = [0, 1, 2**31, 2**50, 2**53, MAX_WHOLE]
REALS = [0.0, 5e-324, 1.0, 1e9, MAX_REAL]
PLACES = ["", "c/{id}", "metrics", "healthz", "api/v1/run", "api/v1/peers"]
PLACES += ["people?search=alert&sort=name"]
PLACES += ["api/v1/rounds", "api/v1/contributors", "api/v1/contributors/{id}"]
PLACES += ["api/v1/points?x=tokens"]


def hostile(chance: random.Random, step: int) -> dict[str, Any]:
    """Fields that a record may just have."""
    num_fragments = chance.choice([0, 1, 2, 2, 2, 3, 17])
    whole, real = (lambda: chance.choice(WHOLES)), (lambda: chance.choice(REALS))
    return {
        "sequence": step,
        "now": NOW + 2 * step,
        "name": chance.choice(NAMES),
        "device": chance.choice(NAMES),
        "software": chance.choice(NAMES)[:20],
        "site": chance.choice(NAMES),
        "state": chance.choice(["training", "serving", "left", "joining"]),
        "inner_steps": whole(),
        "tokens": whole(),
        "rounds_contributed": whole(),
        "tokens_per_second": real(),
        "upload_bits_per_second": real(),
        "train_loss": chance.choice([None, *REALS, -MAX_REAL]),
        "evaluation": chance.choice([None, *(Evaluation(loss, whole()) for loss in (*REALS, -MAX_REAL))]),
        "started_at": real(),
        "versions": tuple(whole() for _ in range(num_fragments)),
        "lineage_tokens": tuple(whole() for _ in range(num_fragments)),
        "digests": tuple(chance.randbytes(8) for _ in range(num_fragments)),
        "contributor_key": chance.choice([b"", PEERS[0].public_key]),
        "newest_round": chance.choice([None, RoundTimes(whole(), whole(), *(real() for _ in range(5)))]),
    }


def test_a_thousand_hostile_records() -> None:
    chance = random.Random(5)
    identities = [Identity.from_seed(chance.randbytes(32)) for _ in range(250)]
    store, states = FakeStore(), []
    warnings: list[str] = []

    async def check() -> None:
        clock = Clock(NOW)
        async with open_history(None, RUN_ID, clock=clock, warn=warnings.append) as history:
            live = Live(DashboardState(run_id=RUN_ID, started_at=NOW, now=NOW), "boot", history.view)

            def show(state: DashboardState) -> None:
                states.append(state)
                history.look(state)
                live.publish(state, history.view)

            observer = SwarmObserver(RUN_ID, store, [], wall_clock=clock, on_state=show, tell=warnings.append)
            app = make_app(Site(live, history, clock=clock))
            async with TestClient(TestServer(app)) as client:
                stream = await client.get("/events/stream")
                for step in range(3):
                    clock.now = NOW + 2 * step
                    for identity in identities:
                        put(store, identity, chance, step)
                    genuine = list(store.peers.values())
                    for number in range(750):
                        # Bytes of any kind, and genuine records with a few of them changed.
                        data = bytearray(chance.choice(genuine) if number % 2 else chance.randbytes(number))
                        for _ in range(min(3, len(data))):
                            data[chance.randrange(len(data))] = chance.randrange(256)
                        store.peers[f"garbage {number}"] = bytes(data)
                    await observer.look()
                    await until_tick(stream)
                await asyncio.gather(*(_asked(client, place, identities[7].peer_id) for place in PLACES))
                stream.close()

    asyncio.run(check())
    assert warnings == []
    assert [len(state.peers) for state in states] == [250] * 3
    assert states[-1].num_invalid_records == 750


def put(store: FakeStore, identity: Identity, chance: random.Random, step: int) -> None:
    """A record that its key has signed; some combinations are too large, and then tried again."""
    while True:
        try:
            store.put(identity, **hostile(chance, step))
        except ValueError:
            continue
        return


async def _asked(client: TestClient, place: str, peer_id: str) -> None:  # type: ignore[type-arg]
    response = await client.get("/" + place.format(id=peer_id))
    body = await response.text()
    assert response.status in ((200, 404) if "{id}" in place else (200,)), place
    assert len(body) < 1_000_000, place
    if response.content_type == "application/json":

        def refuse(text: str) -> None:
            raise AssertionError(text)

        json.loads(body, parse_constant=refuse)
    elif response.content_type in ("text/html", "image/svg+xml"):
        found = TextOnly(body)
        assert all(value and value.startswith("/") for name, value in found.attributes if name == "src")
        assert not {"svg/onload=1", "b", "bold"} & set(found.tags)
        assert not any(name.startswith("on") for name, _ in found.attributes)
        assert not any(word in body for word in ("nan", "Infinity", "inf%")), place


@pytest.mark.parametrize("part", ["looking", "collecting"])
def test_a_fault_of_ours_is_told_and_the_page_goes_on(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    waits: list[float] = []
    num_looks = num_gathered = 0
    ended = asyncio.Event()
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0)

    async def check() -> None:
        store = FakeStore()
        store.put(PEERS[0])

        def show(state: DashboardState) -> None:
            nonlocal num_looks
            num_looks += 1
            if part == "looking" and num_looks < 4:
                raise KeyError("a field that nobody thought of")

        async def gather(record: object, state: DashboardState) -> None:
            nonlocal num_gathered
            num_gathered += 1
            if part == "collecting" and num_gathered < 4:
                raise OverflowError("too large")
            if num_gathered > 6 and num_looks > 6:
                ended.set()

        observer = SwarmObserver(
            RUN_ID, store, [], wall_clock=Clock(NOW), on_state=show, gather=gather, tell=told.append
        )
        monkeypatch.setattr("asyncio.sleep", sleep)
        running = asyncio.create_task(observer.run())
        async with asyncio.timeout(30):
            await ended.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(check())
    assert len(told) == 3
    assert all("please report this" in sentence and "\n" not in sentence for sentence in told)
    assert [wait for wait in waits if wait in (1.0, 4.0)] == [1.0, 4.0]


def test_what_the_owner_can_act_on_ends_it() -> None:
    async def work() -> None:
        raise UsageFault("the history is of another run")

    with pytest.raises(UsageFault):
        asyncio.run(keep_going(work, "Looking", print))
