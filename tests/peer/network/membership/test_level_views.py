"""Views of a swarm of more than one key holds: by members, by tools that look once, by the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from averaging.lanes.handshake import open_greeted_stream
from averaging.rounds.round_facts import Fact
from dashboard.observe.swarm_observer import SwarmObserver
from dht.admission.handshake_frames import AccessRule
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.ground.store import LEVEL_0_KEYS
from dht.identity.keys import Identity, make_run_id
from dht.records.key_levels import is_beacon, key_at, turn_seconds
from dht.records.peer_record import PeerRecord, encode_peer_record
from dht.records.signature_cache import VerifiedRecords
from peer.network.membership.membership import (
    ANSWER_SECONDS,
    RECORD_PROTOCOL,
    Membership,
)
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.network.memory_networks import fixed_network, now
from tests.kit.records import make_record
from tests.simulator.network.host import MemoryHost
from tests.simulator.network.store import MemoryRecords, MemoryStore
from tests.simulator.virtual_time import run_virtual

SPLIT_ABOVE, NUM_PEERS = 16, 84
"""More than this for each of four keys; a real swarm has 64 under a key before it takes further ones."""
SHOW_SECONDS_PER_MEMBER = 0.004
"""Four times as long as in a real swarm, whose members are four times as many."""
LEVEL = 1
START = 1_800_000_000.0
RUN_ID = make_run_id("tiny", Identity.generate().public_key)
VERIFIED = VerifiedRecords(100_000)


@pytest.fixture(autouse=True)
def _few_under_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dht.records.key_levels.SPLIT_ABOVE", SPLIT_ABOVE)
    monkeypatch.setattr("dht.records.key_levels.MERGE_BELOW", 6)
    monkeypatch.setattr("peer.network.membership.membership.SHOW_SECONDS_PER_MEMBER", SHOW_SECONDS_PER_MEMBER)


@cache
def crowd() -> list[Identity]:
    return [Identity.generate() for _ in range(NUM_PEERS)]


def record_of(identity: Identity, **changes: object) -> PeerRecord:
    return make_record(identity.peer_id, run_id=RUN_ID, **changes)


class CountingStore(MemoryStore):
    """Counts keys that are read, by how many holders are asked."""

    def __init__(self, records: MemoryRecords, host: MemoryHost) -> None:
        super().__init__(records, host)
        self.reads: Counter[int] = Counter()
        self.published: list[tuple[int, ...]] = []

    async def fetch_peers(self, run_id, keys=LEVEL_0_KEYS, num_holders=2):  # type: ignore[no-untyped-def]
        self.reads[num_holders] += len(keys)
        return await super().fetch_peers(run_id, keys, num_holders)

    async def publish_peer(self, run_id, peer_id, record, expires_at, levels=(0,)):  # type: ignore[no-untyped-def]
        self.published.append(tuple(levels))
        return await super().publish_peer(run_id, peer_id, record, expires_at, levels)


async def crowded_records() -> MemoryRecords:
    """What `NUM_PEERS` that vote for `LEVEL` have published, each under its keys."""
    records = MemoryRecords(fixed_network(), now, verified=VERIFIED)
    for identity in crowd():
        expires_at = now() + 98.0 + turn_seconds(LEVEL)
        record = record_of(identity, expires_at=expires_at, level=LEVEL, longer_seconds=turn_seconds(LEVEL))
        store = MemoryStore(records, MemoryHost(records.network, identity.peer_id))
        levels = (LEVEL, 0) if is_beacon(identity.peer_id, LEVEL) else (LEVEL,)
        await store.publish_peer(RUN_ID, identity.peer_id, encode_peer_record(record, identity), expires_at, levels)
    return records


def membership_of(
    identity: Identity,
    store: MemoryStore,
    host: MemoryHost,
    on_view: Callable[[], None] = lambda: None,
    describe: Callable[[], PeerRecord] | None = None,
    report: Callable[[Fact], None] = lambda fact: None,
) -> Membership:
    described = record_of(identity)
    rule = AccessRule(RUN_ID, described.manifest_hash, "0.1.0")
    return Membership(
        identity,
        host,
        store,
        RunHandshakePolicy(rule, identity.peer_id, "trainer"),
        describe or (lambda: described),
        RUN_ID,
        described.manifest_hash,
        site=described.site,
        announce_seconds=10.0,
        wall_clock=now,
        randomness=random.Random(1),
        on_view=on_view,
        report=report,
        on_refused=lambda peer_id, reason: None,
        verified=VERIFIED,
    )


def test_changes_among_many_are_shown_together_and_soon() -> None:
    async def main() -> None:
        records = await crowded_records()
        me = Identity.generate()
        host = MemoryHost(records.network, me.peer_id)
        shown: list[float] = []
        membership = membership_of(me, CountingStore(records, host), host, lambda: shown.append(now()))
        for _ in range(9):
            await membership.look()
        assert len(membership.members()) == NUM_PEERS
        shown.clear()
        showing = asyncio.create_task(membership.show_changes())
        await asyncio.sleep(5.0)
        shown.clear()
        began = now()
        for peer in crowd()[:25]:
            membership.suspect(peer.peer_id, "did not answer")
            await asyncio.sleep(0.04)
        last = now()
        await asyncio.sleep(2.0)
        # The first at once, the last not much later than it happened, and between them far fewer than there were.
        assert shown[0] - began < 0.02
        assert last - 0.05 < shown[-1] < last + SHOW_SECONDS_PER_MEMBER * NUM_PEERS
        assert len(shown) < 13
        assert len(membership.members()) == NUM_PEERS - 25
        showing.cancel()

    run_virtual(main(), START)


def test_a_remote_that_comes_and_goes_all_the_time_is_heard_of_seldom() -> None:
    async def main() -> None:
        records = MemoryRecords(fixed_network(), now, verified=VERIFIED)
        me, other = Identity.generate(), crowd()[0]
        host, restless = MemoryHost(records.network, me.peer_id), MemoryHost(records.network, other.peer_id)
        told: list[Fact] = []
        membership_of(me, CountingStore(records, host), host, report=told.append)
        knocks = RunHandshakePolicy(
            AccessRule(RUN_ID, record_of(other).manifest_hash, "0.1.0"), other.peer_id, "trainer"
        )
        num_heard = 0
        for number in range(200):
            state = "left" if number % 2 else "training"
            record = record_of(other, sequence=number, state=state, expires_at=now() + 90.0)
            with contextlib.suppress(PeerFault):
                stream = await open_greeted_stream(restless, knocks, me.peer_id, RECORD_PROTOCOL)
                await stream.send(encode_peer_record(record, other))
                await stream.receive(2000)
                num_heard += 1
                await stream.close()
            await asyncio.sleep(0.1)
        assert 10 <= num_heard <= 40
        assert 10 <= len(told) <= num_heard
        # It is heard again once it has been quiet for a while.
        await asyncio.sleep(10.0)
        stream = await open_greeted_stream(restless, knocks, me.peer_id, RECORD_PROTOCOL)
        await stream.close()

    run_virtual(main(), START)


def test_a_newcomer_sees_everybody_within_one_turn_and_is_seen() -> None:
    async def main() -> None:
        records = await crowded_records()
        me = Identity.generate()
        host = MemoryHost(records.network, me.peer_id)
        store = CountingStore(records, host)
        membership = membership_of(me, store, host)
        await membership.look()
        # The first look shows a sample, and then this peer's neighbours by hash.
        neighbours = {peer.peer_id for peer in crowd() if key_at(peer.peer_id, LEVEL) == key_at(me.peer_id, LEVEL)}
        assert neighbours <= {record.peer_id for record in membership.members()}
        await membership.announce()
        assert LEVEL in store.published[0]
        store.reads.clear()
        num_looks = 0
        while len(membership.members()) < NUM_PEERS:
            await asyncio.sleep(5.0)
            await membership.look()
            num_looks += 1
        assert num_looks * 5.0 <= turn_seconds(LEVEL)
        assert store.reads == {2: num_looks, 1: store.reads[1]}
        assert store.reads[1] <= 4 * num_looks
        assert {record.level for record in membership.members()} == {LEVEL}
        other = MemoryStore(records, MemoryHost(records.network, PeerId("other")))
        found = await other.fetch_peers(RUN_ID, [key_at(me.peer_id, LEVEL)])
        assert len(found) == len(neighbours) + 1

    run_virtual(main(), START)


def test_a_record_lives_as_long_as_a_turn_takes_and_never_expires_before_the_one_it_replaces() -> None:
    async def main() -> None:
        records = await crowded_records()
        me = Identity.generate()
        host = MemoryHost(records.network, me.peer_id)
        membership = membership_of(me, CountingStore(records, host), host)
        small = membership.next_record()
        assert (small.level, small.longer_seconds, small.expires_at) == (0, 0.0, now() + membership.life_seconds)
        await membership.look()
        large = membership.next_record()
        assert (large.level, large.longer_seconds) == (LEVEL, turn_seconds(LEVEL))
        assert large.expires_at == now() + membership.life_seconds + turn_seconds(LEVEL)
        # The others go; the view says so once their records have expired, and the level falls.
        last = large
        for _ in range(60):
            await asyncio.sleep(5.0)
            await membership.look()
            record = membership.next_record()
            assert record.expires_at >= last.expires_at
            last = record
        assert (last.level, last.longer_seconds) == (0, 0.0)

    run_virtual(main(), START)


def test_members_that_come_one_after_the_other_change_level_together() -> None:
    """Whole memberships, each with its own view, past the size for which four keys are enough."""

    async def main() -> None:
        records = MemoryRecords(fixed_network(), now, delay_seconds=0.5, verified=VERIFIED)
        members = []
        for identity in crowd()[:72]:
            host = MemoryHost(records.network, identity.peer_id)
            members.append(membership_of(identity, CountingStore(records, host), host))

        async def begin(member: Membership, after_seconds: float) -> None:
            await asyncio.sleep(after_seconds)
            await member.look()
            await member.announce()
            await member.run()

        tasks = [asyncio.create_task(begin(member, 0.05 * number)) for number, member in enumerate(members)]
        await asyncio.sleep(14.0 + turn_seconds(LEVEL))
        assert {len(member.members()) for member in members} == {71}
        assert {member._levels.vote for member in members} == {LEVEL}
        assert not any(member.is_duplicate() for member in members)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(main(), START)


def test_the_dashboard_sees_everybody_after_a_turn() -> None:
    async def main() -> None:
        records = await crowded_records()
        store = CountingStore(records, MemoryHost(records.network, PeerId("observer")))
        observer = SwarmObserver(RUN_ID, store, [], wall_clock=now, on_state=lambda state: None)
        num_looks = 0
        while len(observer.state.peers) < NUM_PEERS:
            await observer.look()
            await asyncio.sleep(2.0)
            num_looks += 1
        assert 2.0 * num_looks <= turn_seconds(LEVEL) + 4.0
        assert all(row.condition == "here" for row in observer.state.peers)

    run_virtual(main(), START)


def test_introductions_within_a_second_get_one_record_until_something_has_changed() -> None:
    async def main() -> None:
        records, me = MemoryRecords(fixed_network(), now, verified=VERIFIED), Identity.generate()
        described = [record_of(me, state="joining")]
        host = MemoryHost(records.network, me.peer_id)
        membership = membership_of(me, MemoryStore(records, host), host, describe=lambda: described[0])

        async def answer_to_a_newcomer() -> PeerRecord:
            other = Identity.generate()
            there = MemoryHost(records.network, other.peer_id)
            newcomer = membership_of(other, MemoryStore(records, there), there)
            assert await newcomer.introduce([membership.next_record()]) == ""
            got = newcomer.view.get(me.peer_id, now())
            assert got is not None
            return got

        first = await answer_to_a_newcomer()
        assert first.state == "joining"
        assert await answer_to_a_newcomer() == first
        described[0] = record_of(me, state="training")
        trains = await answer_to_a_newcomer()
        assert trains.state == "training"
        assert trains.sequence > first.sequence
        await asyncio.sleep(ANSWER_SECONDS)
        assert (await answer_to_a_newcomer()).sequence > trains.sequence

    run_virtual(main(), START)
