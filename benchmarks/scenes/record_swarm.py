"""A DHT of many members in one process: real stores, holders and records, and calls that are bytes in memory."""

from __future__ import annotations

import asyncio
import bisect
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PContext, P2PHandlerError, PeerID

from dht.ground.host import PeerId
from dht.ground.store import PeerKey
from dht.identity.keys import Identity, make_run_id
from dht.kademlia import dht_node
from dht.kademlia.dht_guards import key_id_of, node_id_of, pack_value
from dht.kademlia.dht_node import NUM_REPLICAS
from dht.kademlia.dht_store import HivemindStore
from dht.records.evaluation import Evaluation
from dht.records.key_levels import MAX_LEVEL, is_beacon, key_at, level_for, num_keys, peers_key, turn_seconds
from dht.records.peer_record import PeerRecord, RoundTimes, encode_peer_record
from dht.records.signature_cache import VerifiedRecords

NUM_RANDOM_CONTACTS = 120
NUM_NEAR_CONTACTS = 20
LIFE_SECONDS = 98.0
NUM_FRAGMENTS = 4


class Traffic:
    """What one member asked of others: calls, and bytes of the messages, by what they were for."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.sent_bytes = self.received_bytes = 0
        self.lookups: Counter[DHTID] = Counter()
        """Calls that looked for holders, by key."""


class MemoryLine:
    """hivemind's `P2P`, as far as DHTNode uses it: every message is encoded and decoded, nothing waits."""

    def __init__(self, swarm: RecordSwarm, peer_id: PeerId) -> None:
        self.peer_id = PeerID.from_base58(peer_id)
        self._swarm = swarm
        self.handlers: dict[str, tuple[Any, Any]] = {}
        self.traffic = Traffic()

    async def add_protobuf_handler(self, name: str, handler: Any, input_type: Any, **options: Any) -> None:
        self.handlers[name] = (handler, input_type)

    async def remove_protobuf_handler(self, name: str, **options: Any) -> None:
        del self.handlers[name]

    async def call_protobuf_handler(self, peer_id: PeerID, name: str, request: Any, output_type: Any) -> Any:
        data = request.SerializeToString()
        handler, input_type = self._swarm.lines[peer_id].handlers[name]
        context = P2PContext(handle_name=name, local_id=peer_id, remote_id=self.peer_id)
        try:
            answer = (await handler(input_type.FromString(data), context)).SerializeToString()
        except Exception as error:  # the caller of a real daemon sees no more than this either
            raise P2PHandlerError(str(error)) from error
        self._count(name, request, len(data), len(answer))
        return output_type.FromString(answer)

    async def shutdown(self) -> None:
        self.handlers.clear()

    def _count(self, name: str, request: Any, num_sent: int, num_received: int) -> None:
        kind = name.rpartition("rpc_")[2]
        if kind == "find":
            key_id = DHTID.from_bytes(request.keys[0])
            if key_id not in self._swarm.key_ids:
                kind = "lookup"
                self.traffic.lookups[DHTID(int(key_id) ^ 1)] += 1
        self.traffic.requests[kind] += 1
        self.traffic.sent_bytes += num_sent
        self.traffic.received_bytes += num_received


class QuietHost:
    """A host for DHT calls only."""

    is_up = True

    def __init__(self, peer_id: PeerId) -> None:
        self.peer_id = peer_id

    async def wait_up(self, timeout_seconds: float) -> None: ...

    def add_restart_listener(self, listener: Callable[[], Awaitable[None]]) -> None: ...

    async def connect(self, multiaddr: str, timeout_seconds: float) -> PeerId:
        raise AssertionError("nobody is dialled here")

    async def connected_addresses(self) -> dict[PeerId, list[str]]:
        return {}

    def handle(self, protocol: str, handler: Any) -> None: ...


class RecordSwarm:
    """`num_peers` members whose records stand with the five holders nearest to their keys.

    Args:
        num_peers: all of which vote for the level that a swarm of this size comes to.

    Routing tables are filled with 120 random members and the 20 nearest instead of by joining. Records are put into the
    holders' storage instead of being sent there. For only the measured members' own calls count.
    """

    def __init__(self, num_peers: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.identities = [Identity.from_seed(self.random.randbytes(32)) for _ in range(num_peers)]
        self.run_id = make_run_id("records", self.identities[0].public_key)
        self.level = level_for(num_peers, 0)
        self.verified = VerifiedRecords(4 * num_peers)
        self.lines: dict[PeerID, MemoryLine] = {}
        self.stores: list[HivemindStore] = []
        levels = range(MAX_LEVEL + 1)
        names = [peers_key(self.run_id, PeerKey(at, shard)) for at in levels for shard in range(num_keys(at))]
        self.key_ids = {key_id_of(name): name for name in names}
        self.record_bytes = 0

    async def start(self) -> None:
        """Make members, let them know each other, and give their records to holders."""
        for identity in self.identities:
            await self._add(identity)
        self._introduce()
        self._publish_all()

    def line_of(self, number: int) -> MemoryLine:
        """Of one member."""
        return self.lines[PeerID.from_base58(self.identities[number].peer_id)]

    def record_of(self, identity: Identity) -> PeerRecord:
        """As of a peer that has trained for a while."""
        now = time.time()
        return PeerRecord(
            run_id=self.run_id,
            peer_id=identity.peer_id,
            session=self.random.getrandbits(62),
            sequence=self.random.randrange(10_000),
            expires_at=now + LIFE_SECONDS + turn_seconds(self.level),
            manifest_hash=bytes(32),
            state="training",
            role="trainer",
            device="NVIDIA GeForce RTX 3060",
            name="somebody",
            software="0.1.0",
            reachable=True,
            inner_steps=123_456,
            tokens=987_654_321,
            rounds_contributed=4_321,
            tokens_per_second=12_345.6,
            upload_bits_per_second=2.0e7,
            train_loss=2.345,
            evaluation=Evaluation(2.456, 4_000),
            versions=(1_000,) * NUM_FRAGMENTS,
            digests=(self.random.randbytes(8),) * NUM_FRAGMENTS,
            lineage_tokens=(10**11,) * NUM_FRAGMENTS,
            started_at=now - 3600,
            newest_round=RoundTimes(1, 1_000, now - 60, 30.0, 1.0, 1.0, 0.1),
            level=self.level,
            longer_seconds=turn_seconds(self.level),
        )

    async def _add(self, identity: Identity) -> None:
        line = MemoryLine(self, identity.peer_id)
        self.lines[line.peer_id] = line
        store = HivemindStore(QuietHost(identity.peer_id))  # type: ignore[arg-type]
        store._records._verified = self.verified

        async def open_line(host: QuietHost) -> MemoryLine:
            return line

        store._member._serves = True  # which no host without a daemon does
        with patch.object(dht_node, "open_line", open_line):
            await store.start()
        self.stores.append(store)

    def _introduce(self) -> None:
        places = sorted((int(node_id_of(peer_id.to_bytes())), peer_id) for peer_id in self.lines)
        for store in self.stores:
            node = store._member._node
            own = int(node.node_id)
            position = bisect.bisect(places, (own,))
            window = places[max(0, position - 2 * NUM_NEAR_CONTACTS) : position + 2 * NUM_NEAR_CONTACTS]
            near = sorted(window, key=lambda place: place[0] ^ own)[: NUM_NEAR_CONTACTS + 1]
            known = near + self.random.sample(places, min(NUM_RANDOM_CONTACTS, len(places)))
            for node_id, peer_id in known:
                if node_id != own:
                    node.protocol.routing_table.add_or_update_node(DHTID(node_id), peer_id)

    def _publish_all(self) -> None:
        by_node = {int(store._member._node.node_id): store._member.storage for store in self.stores}
        holders: dict[str, list[Any]] = {}
        for identity in self.identities:
            record = self.record_of(identity)
            data = encode_peer_record(record, identity)
            self.record_bytes = len(data)
            levels = {self.level, 0} if is_beacon(identity.peer_id, self.level) else {self.level}
            for level in levels:
                name = peers_key(self.run_id, key_at(identity.peer_id, level))
                key_id = key_id_of(name)
                if name not in holders:
                    nearest = sorted(by_node, key=lambda node_id: node_id ^ int(key_id))[:NUM_REPLICAS]
                    holders[name] = [by_node[node_id] for node_id in nearest]
                for storage in holders[name]:
                    if not storage.store(key_id, pack_value(name, data), record.expires_at, identity.peer_id):
                        raise RuntimeError(f"a holder of {name} refused a record; expected room for all")


async def settle() -> None:
    """Let tasks that hivemind starts beside its calls end."""
    for _ in range(3):
        await asyncio.sleep(0)
