"""HivemindStore: real daemons on loopback that find each other and keep each other's records."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from dht.admission.admission import MemberRules
from dht.ground.errors import LocalFault
from dht.ground.store import PeerKey
from dht.identity.keys import Identity
from dht.kademlia.census import fetch_everyone
from dht.records.key_levels import Levels, is_beacon, key_at, num_keys, peers_key
from dht.records.peer_record import claimed_level
from dht.records.signed_manifest import run_key
from tests.kit.network.signed_records import OWNER, RUN_ID, open_admission, run_record, signed_record

pytest.importorskip("hivemind")

from hivemind.p2p import PeerID

from dht.kademlia import dht_node
from dht.kademlia.dht_guards import key_id_of, pack_value
from tests.kit.network.dht_members import Members, with_members


def test_a_lone_member_works() -> None:
    async def check(members: Members) -> None:
        alone = await members.add()
        record, expires_at = signed_record(alone.identity)
        assert await alone.store.publish_peer(RUN_ID, alone.peer_id, record, expires_at) == 0
        assert await alone.store.fetch_peers(RUN_ID) == [record]
        assert await alone.store.fetch_run(RUN_ID) is None
        assert await alone.store.publish_run(RUN_ID, run_record(1), time.time() + 60) == 0
        assert await alone.store.fetch_run(RUN_ID) == run_record(1)
        assert await alone.store.bootstrap([]) == 0
        assert await alone.store.bootstrap(["/ip4/127.0.0.1/tcp/9/p2p/" + OWNER.peer_id, "nonsense"]) == 0
        assert await alone.store.bootstrap(alone.host.addresses()) == 0

    with_members(check)


def test_three_members_find_each_other_from_one_address_and_share_records() -> None:
    async def check(members: Members) -> None:
        swarm = await members.swarm(3)
        records = set()
        for member in swarm:
            record, expires_at = signed_record(member.identity)
            assert await member.store.publish_peer(RUN_ID, member.peer_id, record, expires_at) == 2
            records.add(record)
        assert await swarm[1].store.publish_run(RUN_ID, run_record(1), time.time() + 60) == 2
        for member in swarm:
            assert await member.seen() == records
            assert await member.store.fetch_run(RUN_ID) == run_record(1)
            assert member.store._member.num_members == 2

    with_members(check)


def test_a_refreshed_record_replaces_the_earlier_one_and_a_revision_the_older() -> None:
    async def check(members: Members) -> None:
        first, second, third = await members.swarm(3)
        await first.publish(life_seconds=80.0)
        record, expires_at = signed_record(first.identity, 90.0, sequence=2)
        assert await first.store.publish_peer(RUN_ID, first.peer_id, record, expires_at) == 2
        assert await third.seen() == {record}
        await first.store.publish_run(RUN_ID, run_record(2), time.time() + 60)
        # An older revision with a later expiry: a member that has not heard of the change publishes it again.
        assert await second.store.publish_run(RUN_ID, run_record(1), time.time() + 600) == 0
        for member in (first, second, third):
            assert await member.store.fetch_run(RUN_ID) == run_record(2)

    with_members(check)


def test_records_that_do_not_belong_are_refused_by_the_others() -> None:
    async def check(members: Members) -> None:
        victim, liar, judge = await members.swarm(3)
        await victim.publish(life_seconds=60.0)
        before = await judge.seen()
        record, expires_at = signed_record(victim.identity, 90.0)
        forged, _ = signed_record(liar.identity, 90.0)
        old, old_expires_at = signed_record(victim.identity, -30.0)
        own = key_at(victim.peer_id, 0)
        key, other_key = peers_key(RUN_ID, own), peers_key(RUN_ID, PeerKey(0, (own.shard + 1) % 4))
        protocol = (await liar.store._member.ready()).protocol

        async def push(at_key: str, named_key: str, subkey: str | None, data: bytes, until: float) -> bool:
            answer = await protocol.call_store(
                PeerID.from_base58(judge.peer_id),
                [key_id_of(at_key)],
                [pack_value(named_key, data)],
                until,
                [subkey] if subkey else None,
            )
            assert answer is not None
            return bool(answer[0])

        broken = bytes([forged[0] ^ 1]) + forged[1:]
        assert not await push(key, key, victim.peer_id, forged, expires_at)
        assert not await push(key, key, victim.peer_id, broken, expires_at)
        assert not await push(key, key, liar.peer_id, record, expires_at)
        assert not await push(key, key, victim.peer_id, record, expires_at + 100)
        assert not await push(key, key, victim.peer_id, record, float("inf"))
        assert not await push(key, key, victim.peer_id, old, old_expires_at)
        assert not await push(other_key, key, victim.peer_id, record, expires_at)
        assert not await push(other_key, other_key, victim.peer_id, record, expires_at)
        assert not await push(key, key, None, record, expires_at)
        assert not await push(run_key(RUN_ID), run_key(RUN_ID), None, b"junk", expires_at)
        assert await judge.seen() == before
        # The same call with everything in order is taken: the refusals above were about what was wrong.
        assert await push(key, key, victim.peer_id, record, expires_at)
        assert await judge.seen() == {record}

    with_members(check)


def test_three_hundred_records_are_found_by_reading_a_few_keys_at_a_time() -> None:
    async def check(members: Members) -> None:
        first, second, _ = await members.swarm(3)
        crowd = [Identity.generate() for _ in range(300)]

        async def publish(identity: Identity) -> None:
            record, expires_at = signed_record(identity, level=1)
            levels = (1, 0) if is_beacon(identity.peer_id, 1) else (1,)
            assert await first.store.publish_peer(RUN_ID, identity.peer_id, record, expires_at, levels) == 2

        for start in range(0, len(crowd), 25):
            await asyncio.gather(*map(publish, crowd[start : start + 25]))
        reader, seen = Levels(second.peer_id), set()
        for _ in range(1 + num_keys(1)):
            closely, briefly = reader.next_keys(2.0)
            seen.update(await second.store.fetch_peers(RUN_ID, closely))
            seen.update(await second.store.fetch_peers(RUN_ID, briefly, 1))
            reader.note(claimed_level(record) for record in seen)
        assert len(seen) == len(crowd)
        assert (reader.vote, reader.read_level) == (1, 1)
        assert len(await fetch_everyone(second.store, RUN_ID)) == len(crowd)

    with_members(check)


def test_an_own_record_that_nobody_would_accept_is_a_local_fault() -> None:
    async def check(members: Members) -> None:
        alone = await members.add()
        record, expires_at = signed_record(alone.identity)
        with pytest.raises(LocalFault, match="no member would accept"):
            await alone.store.publish_peer(RUN_ID, alone.peer_id, record, expires_at + 50)
        with pytest.raises(LocalFault, match="no member would accept"):
            await alone.store.publish_run(RUN_ID, b"junk", expires_at)

    with_members(check)


def test_a_killed_daemon_is_back_in_the_dht() -> None:
    async def check(members: Members) -> None:
        swarm = await members.swarm(3)
        victim = swarm[0]
        for member in swarm:
            await member.publish(life_seconds=80.0)
        expected = await victim.seen()
        assert len(expected) == 3
        peer_id, addresses = victim.host.peer_id, victim.host.addresses()
        await victim.host.connected_addresses()
        rebuilt = asyncio.Event()

        async def on_rebuilt() -> None:
            rebuilt.set()

        victim.host.add_restart_listener(on_rebuilt)
        assert victim.host.daemon.process_id is not None
        os.kill(victim.host.daemon.process_id, signal.SIGKILL)
        async with asyncio.timeout(60):
            await rebuilt.wait()
        assert (victim.host.peer_id, victim.host.addresses()) == (peer_id, addresses)
        assert victim.store._member.num_members == 2
        assert await victim.seen() == expected
        for number, member in enumerate(swarm):
            assert await member.publish(life_seconds=90.0 + number, sequence=2) == 2
        assert len(await swarm[1].seen() & expected) == 0
        assert len(await swarm[1].seen()) == 3

    with_members(check)


def test_operations_during_an_outage_end_in_time_and_keep_the_own_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dht_node, "CALL_SECONDS", 0.5)

    async def check(members: Members) -> None:
        victim, other = await members.swarm(2)
        assert victim.host.daemon.process_id is not None
        os.kill(victim.host.daemon.process_id, signal.SIGKILL)
        record, expires_at = signed_record(victim.identity)
        copies = await victim.store.publish_peer(RUN_ID, victim.peer_id, record, expires_at)
        assert copies in (0, 1)
        assert record in await victim.seen()
        assert other.store._member.num_members <= 1

    with_members(check)


def test_strangers_are_kept_out() -> None:
    async def check(members: Members) -> None:
        stranger = await members.add()
        admission = open_admission(stranger.peer_id)
        guarded = await members.add(admission=admission)
        await guarded.publish()
        assert await stranger.store.bootstrap(guarded.host.addresses()) == 0
        assert await stranger.publish() == 0
        assert len(await stranger.seen()) == 1
        assert guarded.store._member.num_members == 0
        admission.set_rules(MemberRules("open", OWNER.public_key))
        assert await stranger.store.bootstrap(guarded.host.addresses()) == 1
        assert await stranger.publish(life_seconds=95.0) == 1
        assert len(await guarded.seen()) == 2

    with_members(check)
