"""MemoryStore: records are shared, replaced, checked, delayed and divided as in a DHT."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dht.ground.store import MAX_ENTRIES_PER_DICTIONARY, PeerKey
from dht.identity.keys import Identity, make_run_id
from dht.records.key_levels import shard_of
from dht.records.peer_record import encode_peer_record
from dht.records.signed_manifest import encode_run_record, sign_run_record
from tests.kit.network.memory_networks import fixed_network, now
from tests.kit.records import make_record
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.network.store import MemoryRecords, MemoryStore
from tests.simulator.virtual_time import run_virtual

OWNER = Identity.generate()
PEERS = [Identity.generate() for _ in range(3)]
RUN_ID = make_run_id("tiny", OWNER.public_key)
START = 1_800_000_000.0


def peer_record(identity: Identity, sequence: int = 1, life_seconds: float = 90.0) -> tuple[bytes, float]:
    record = make_record(identity.peer_id, run_id=RUN_ID, sequence=sequence, expires_at=now() + life_seconds)
    return encode_peer_record(record, identity), record.expires_at


def run_record(revision: int) -> bytes:
    return encode_run_record(sign_run_record(RUN_ID, b'{"revision":%d}' % revision, OWNER))


def with_stores(
    program: Callable[[MemoryNetwork, list[MemoryStore]], Awaitable[None]], delay_seconds: float = 0.0
) -> None:
    async def main() -> None:
        network = fixed_network()
        records = MemoryRecords(network, now, delay_seconds)
        await program(network, [MemoryStore(records, MemoryHost(network, peer.peer_id)) for peer in PEERS])

    run_virtual(main(), START)


def test_records_are_shared_replaced_and_expire() -> None:
    async def program(network: MemoryNetwork, stores: list[MemoryStore]) -> None:
        first, expires_at = peer_record(PEERS[0])
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, first, expires_at) == 2
        assert await stores[1].fetch_peers(RUN_ID) == [first]
        await asyncio.sleep(10.0)
        second, later = peer_record(PEERS[0], 2)
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, second, later) == 2
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, first, expires_at) == 0
        assert await stores[2].fetch_peers(RUN_ID) == [second]
        await asyncio.sleep(90.0)
        assert await stores[2].fetch_peers(RUN_ID) == []

    with_stores(program)


def test_one_host_publishes_records_of_many_keys_as_a_real_dht_takes_them() -> None:
    async def program(network: MemoryNetwork, stores: list[MemoryStore]) -> None:
        keys = [Identity.generate() for _ in range(20)]
        for identity in keys:
            await stores[0].publish_peer(RUN_ID, identity.peer_id, *peer_record(identity))
        for identity in keys[:5]:
            await stores[0].publish_peer(RUN_ID, identity.peer_id, *peer_record(identity, 2, 95.0))
        assert len(await stores[1].fetch_peers(RUN_ID)) == len(keys)
        network.partition([PEERS[0].peer_id])
        assert [len(await store.fetch_peers(RUN_ID)) for store in stores] == [len(keys), 0, 0]

    with_stores(program)


def test_each_side_of_a_partition_sees_its_own() -> None:
    async def program(network: MemoryNetwork, stores: list[MemoryStore]) -> None:
        for store, identity in zip(stores, PEERS, strict=True):
            await store.publish_peer(RUN_ID, identity.peer_id, *peer_record(identity))
        network.partition([PEERS[0].peer_id])
        assert [len(await store.fetch_peers(RUN_ID)) for store in stores] == [1, 2, 2]
        record, expires_at = peer_record(PEERS[0], 2)
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, record, expires_at) == 0
        assert await stores[0].bootstrap([]) == 0
        network.heal()
        assert [len(await store.fetch_peers(RUN_ID)) for store in stores] == [3, 3, 3]
        network.crash(PEERS[0].peer_id)
        assert [len(await store.fetch_peers(RUN_ID)) for store in stores] == [0, 3, 3]
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, *peer_record(PEERS[0], 3)) == 0

    with_stores(program)


def test_a_key_that_is_full_takes_newcomers_when_something_has_expired_and_members_stay() -> None:
    async def main() -> None:
        records = MemoryRecords(fixed_network(), now)
        crowd = [identity for identity in (Identity.generate() for _ in range(700)) if not shard_of(identity.peer_id)]
        assert len(crowd) > MAX_ENTRIES_PER_DICTIONARY
        first, late = crowd[:MAX_ENTRIES_PER_DICTIONARY], crowd[MAX_ENTRIES_PER_DICTIONARY]
        stores = {peer.peer_id: MemoryStore(records, MemoryHost(records.network, peer.peer_id)) for peer in crowd}

        async def publish(identity: Identity, sequence: int, life_seconds: float) -> int:
            record, expires_at = peer_record(identity, sequence, life_seconds)
            return await stores[identity.peer_id].publish_peer(RUN_ID, identity.peer_id, record, expires_at)

        async def num_seen() -> int:
            return len(await stores[late.peer_id].fetch_peers(RUN_ID, [PeerKey(0, 0)]))

        for identity in first:
            assert await publish(identity, 1, 30.0 if identity is first[0] else 90.0)
        assert await publish(late, 1, 90.0) == 0
        assert await publish(first[1], 2, 95.0)
        assert await num_seen() == MAX_ENTRIES_PER_DICTIONARY
        await asyncio.sleep(31.0)
        assert await publish(late, 2, 90.0)
        assert await num_seen() == MAX_ENTRIES_PER_DICTIONARY

    run_virtual(main(), START)
