"""`HivemindStore`: the `RecordStore` port over hivemind's `DHTNode`, in this process's own event loop.

hivemind's forked `DHT` process is not used: it cannot be rebuilt when the daemon dies. Reads and writes go to
remembered holders of a key directly, because a search downloads the whole dictionary from everyone it passes:
5 KiB instead of 200 for one refresh. Holders are looked up under the neighbouring id, where no value is.

Importing this module loads torch (through hivemind).
"""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from dht.errors import LocalFault, PeerFault, PeerUnreachable, UsageFault
from dht.hivemind_gate import (
    AdmitPeer,
    Gate,
    GateRefusal,
    SignedRecords,
    key_id_of,
    node_id_of,
    pack_value,
    unpack_value,
)
from dht.hivemind_storage import BoundedStorage
from dht.host import PeerId
from dht.multiaddr import parse_peer_multiaddr
from dht.p2pd_host import P2pdHost
from dht.records import NUM_PEER_SHARDS, peers_key, run_key, shard_of

NUM_REPLICAS: Final = 5
"""With records refreshed every 30 s and peers that stay 2 minutes, all five are gone at once in 5 of 10 000 cases."""

NUM_HOLDERS_READ: Final = 2
"""One holder can be new or lying; two merged saw 1000 of 1000 records."""

BUCKET_SIZE: Final = 20
BEAM_SIZE: Final = 8
"""Half of the default's traffic, and still the true nearest five in every one of 200 nodes."""

CALL_SECONDS: Final = 3.0
"""One DHT call: the remote answers from memory, so this is a few round trips over a bad home line."""

OPERATION_SECONDS: Final = 12.0
"""One publish or fetch: four calls that all time out."""

DIAL_SECONDS: Final = 5.0
HOLDER_LIFE_SECONDS: Final = 300.0
"""How long a look-up of holders is believed; nearer nodes that turn up in between are used at once."""

MAX_BOOTSTRAP_DIALS: Final = 16
MAX_CLOCK_SAMPLES: Final = 32

_CALL_ERRORS: Final = (
    P2PHandlerError,
    P2PDaemonError,
    GateRefusal,
    DecodeError,
    OSError,
    EOFError,
    TimeoutError,
    AssertionError,
    TypeError,
)
"""What a hivemind call raises when the remote is gone, refuses us, or answers something that is not DHT."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Holders:
    nodes: dict[DHTID, PeerID]
    found_at: float


class HivemindStore:
    """A full member of the DHT. Call `start` once after the host's; `close` before the host's.

    Args:
        host: a started `P2pdHost`; the store rebuilds itself after each restart of its daemon.
        admit: whether a PeerId is a member; everybody by default.
        now: returns unix seconds.

    Operations never fail because of the network: they end in `OPERATION_SECONDS` with what could be reached.
    """

    def __init__(
        self, host: P2pdHost, *, admit: AdmitPeer = lambda peer_id: True, now: Callable[[], float] = time.time
    ) -> None:
        self._host = host
        self._admit = admit
        self._now = now
        self._records = SignedRecords(now)
        # Storage outlives the DHTNode, so a restart of the daemon loses nothing that we hold for others.
        self._storage = BoundedStorage(now, self._records.rank_of)
        self._cache = BoundedStorage(now, max_keys=0)
        self._node: Any = None
        self._p2p: Any = None
        self._ready = asyncio.Event()
        self._holders: dict[DHTID, _Holders] = {}
        self._clock_offsets: dict[PeerId, float] = {}
        self._bootstrap_lock = asyncio.Lock()
        self._closed = False

    @property
    def num_members(self) -> int:
        """Members of the DHT in our routing table, without ourselves."""
        return len(self._node.protocol.routing_table.uid_to_peer_id) if self._node is not None else 0

    @property
    def clock_offset_seconds(self) -> float | None:
        """Median over members of their clock minus ours; None before the first answer. Beyond 3 s something is off."""
        return statistics.median(self._clock_offsets.values()) if self._clock_offsets else None

    async def start(self) -> None:
        """Join the daemon as a DHT member that knows nobody yet.

        Raises:
            LocalFault: the daemon does not answer.
        """
        use_hivemind_log_handler("nowhere")
        await self._build()
        self._host.add_restart_listener(self._rebuild)

    async def publish_run(self, run_id: str, record: bytes, expires_at: float) -> int:
        """Store the run's record; see the port. A revision older than a holder's is refused there."""
        return await self._publish(run_key(run_id), None, record, expires_at)

    async def publish_peer(self, run_id: str, peer_id: PeerId, record: bytes, expires_at: float) -> int:
        """Store a peer's own record; see the port."""
        return await self._publish(peers_key(run_id, shard_of(peer_id)), peer_id, record, expires_at)

    async def fetch_run(self, run_id: str) -> bytes | None:
        """The run record with the highest revision; see the port."""
        values = await self._read(run_key(run_id))
        if not values:
            return None
        best = max(values, key=lambda item: (self._records.rank_of(item[1]), item[2]))
        return unpack_value(best[1])[1]

    async def fetch_peers(self, run_id: str) -> list[bytes]:
        """All live peer records that the reachable holders have; see the port."""
        shards = await asyncio.gather(*(self._read(peers_key(run_id, shard)) for shard in range(NUM_PEER_SHARDS)))
        newest: dict[Any, tuple[bytes, float]] = {}
        for subkey, value, expires_at in (item for shard in shards for item in shard):
            if expires_at > newest.get(subkey, (b"", self._now()))[1]:
                newest[subkey] = (value, expires_at)
        return [unpack_value(value)[1] for value, _ in newest.values()]

    async def bootstrap(self, multiaddrs: list[str]) -> int:
        """Dial members, ping them and everybody connected, look up own and a random id; see the port.

        Addresses that are wrong or answer nothing are skipped; a long list is tried in random parts.
        """
        async with self._bootstrap_lock:
            try:
                node = await self._node_up()
            except (LocalFault, TimeoutError):
                return 0
            chosen = random.sample(multiaddrs, min(MAX_BOOTSTRAP_DIALS, len(multiaddrs)))
            await asyncio.gather(*(self._dial(multiaddr) for multiaddr in chosen))
            await self._ping_connected(node)
            if self.num_members:
                await self._look_around(node)
            return self.num_members

    async def close(self) -> None:
        """Leave the DHT. Never raises; the host stays open."""
        self._closed = True
        self._ready.set()
        await self._drop_node()

    # Life of the DHTNode

    async def _build(self) -> None:
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                await self._host.wait_up(OPERATION_SECONDS)
                # hivemind puts its sockets into /tmp and leaves them there after a crash; ours vanish with the host's.
                private_p2p: Any = type(
                    "_PrivateP2P", (P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{self._host.socket_directory}/"}
                )
                self._p2p = await private_p2p.replicate(Multiaddr(f"/unix{self._host.control_socket}"))
                control = self._p2p._client.control
                for task in (control._read_task, control._write_task):
                    task.add_done_callback(_note_end)
                self._node = await self._join(Gate(self._p2p, self._admit))
        except (OSError, EOFError, TimeoutError) as error:
            await self._drop_node()
            raise LocalFault(
                f"the network daemon does not take the DHT ({error or type(error).__name__}); expected an answer; "
                f"it is tried again after its next restart"
            ) from error
        self._node.protocol.storage = self._storage
        self._node.protocol.cache = self._cache
        self._ready.set()

    async def _join(self, gate: Gate) -> Any:
        return await DHTNode.create(
            gate,
            node_id=node_id_of(gate.peer_id.to_bytes()),
            num_replicas=NUM_REPLICAS,
            bucket_size=BUCKET_SIZE,
            wait_timeout=CALL_SECONDS,
            parallel_rpc=64,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            reuse_get_requests=False,
            refresh_timeout=None,
            record_validator=self._records,
            ensure_bootstrap_success=False,
            strict=False,
        )

    async def _rebuild(self) -> None:
        if self._closed:
            return
        self._ready.clear()
        # The old node's handlers died with the old daemon: there is nobody left to say goodbye to.
        self._node = None
        await self._drop_node()
        await self._build()
        self._holders.clear()
        await self.bootstrap([])

    async def _drop_node(self) -> None:
        node, p2p, self._node, self._p2p = self._node, self._p2p, None, None
        if node is not None and self._host.is_up:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await node.shutdown()
            except (OSError, TimeoutError) as error:
                logger.debug("the DHT left without saying goodbye: %s", error)
        if p2p is not None:
            await p2p.shutdown()

    async def _node_up(self) -> Any:
        async with asyncio.timeout(OPERATION_SECONDS):
            await self._host.wait_up(OPERATION_SECONDS)
            await self._ready.wait()
        if self._node is None:
            raise LocalFault("the record store is closed; expected an open one; join again")
        return self._node

    # Finding members

    async def _dial(self, multiaddr: str) -> None:
        try:
            if parse_peer_multiaddr(multiaddr)[0] != self._host.peer_id:
                await self._host.connect(multiaddr, DIAL_SECONDS)
        except (PeerUnreachable, UsageFault) as fault:
            logger.info("skipped an address: %s", fault)

    async def _ping_connected(self, node: Any) -> None:
        try:
            connected = await self._host.connected_addresses()
        except LocalFault as fault:
            logger.info("could not ask for connected peers: %s", fault)
            return
        known = set(node.protocol.routing_table.uid_to_peer_id.values())
        peers = [PeerID.from_base58(peer_id) for peer_id in connected]
        strangers = [peer for peer in peers if peer not in known]
        friends = [peer for peer in peers if peer in known]
        # A few known members too: their clocks, and whether they still live.
        chosen = strangers[:MAX_BOOTSTRAP_DIALS] + random.sample(friends, min(3, len(friends)))
        await asyncio.gather(*(self._ping(node, peer) for peer in chosen))

    async def _ping(self, node: Any, peer: PeerID) -> None:
        # Unlike DHTProtocol.call_ping this returns the remote's clock, and the routing table is up to date afterwards.
        protocol = node.protocol
        asked_at = self._now()
        try:
            response = await protocol.get_stub(peer).rpc_ping(
                dht_pb2.PingRequest(peer=protocol.node_info), timeout=CALL_SECONDS
            )
            answered_at = self._now()
            node_id = DHTID.from_bytes(response.peer.node_id)
        except _CALL_ERRORS as error:
            logger.debug("no DHT answer of %s: %r", peer, error)
            await protocol.update_routing_table(None, peer, responded=False)
            return
        node.blacklist.register_success(peer)
        await protocol.update_routing_table(node_id, peer, responded=True)
        self._clock_offsets[PeerId(peer.to_base58())] = response.dht_time - (asked_at + answered_at) / 2
        while len(self._clock_offsets) > MAX_CLOCK_SAMPLES:
            del self._clock_offsets[next(iter(self._clock_offsets))]

    async def _look_around(self, node: Any) -> None:
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                await node.find_nearest_nodes([node.node_id, DHTID.generate()], beam_size=BUCKET_SIZE)
                # hivemind enters the nodes that answered into the routing table in tasks of their own.
                await asyncio.sleep(0)
        except TimeoutError:
            logger.info("a look-up of members was cut off after %.0f s", OPERATION_SECONDS)

    async def _find_holders(self, node: Any, key_id: DHTID) -> list[PeerID]:
        """Members nearest to the key, nearest first: those of the last look-up and those met since."""
        loop_time = asyncio.get_running_loop().time()
        remembered = self._holders.get(key_id)
        if remembered is None or loop_time - remembered.found_at > HOLDER_LIFE_SECONDS:
            adjacent = DHTID(int(key_id) ^ 1)
            found: dict[DHTID, PeerID] = {}
            if self.num_members:
                nearest = await node.find_nearest_nodes(
                    [adjacent], k_nearest=BUCKET_SIZE, beam_size=BUCKET_SIZE, exclude_self=True
                )
                found = dict(nearest[adjacent])
            remembered = _Holders(found, loop_time)
            if found:
                self._holders[key_id] = remembered
        met = node.protocol.routing_table.get_nearest_neighbors(key_id, BUCKET_SIZE, exclude=node.node_id)
        candidates = remembered.nodes | dict(met)
        return [candidates[node_id] for node_id in sorted(candidates, key=key_id.xor_distance)]

    def _forget_holder(self, key_id: DHTID, peer: PeerID) -> None:
        remembered = self._holders.get(key_id)
        if remembered is not None:
            remembered.nodes = {node_id: other for node_id, other in remembered.nodes.items() if other != peer}
            remembered.found_at = float("-inf")

    # Writing

    async def _publish(self, key: str, subkey: PeerId | None, record: bytes, expires_at: float) -> int:
        key_id, value = key_id_of(key), pack_value(key, record)
        try:
            self._records.check(key_id.to_bytes(), MSGPackSerializer.dumps(subkey), value, expires_at)
        except (PeerFault, UsageFault, ValueError) as error:
            raise LocalFault(
                f"a record that nobody would accept: {error}; expected a valid one; is the clock right?"
            ) from error
        self._storage.store(key_id, value, expires_at, subkey)
        copies: list[PeerID] = []
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                await self._spread(await self._node_up(), key_id, subkey, value, expires_at, copies)
        except (LocalFault, TimeoutError) as error:
            logger.info("a record reached %d members only: %s", len(copies), error or "the time was up")
        return len(copies)

    async def _spread(
        self, node: Any, key_id: DHTID, subkey: PeerId | None, value: bytes, expires_at: float, copies: list[PeerID]
    ) -> None:
        candidates = await self._find_holders(node, key_id)
        num_answers = 0
        while candidates and num_answers < NUM_REPLICAS:
            num_missing = NUM_REPLICAS - num_answers
            chosen, candidates = candidates[:num_missing], candidates[num_missing:]
            answers = await asyncio.gather(
                *(
                    node.protocol.call_store(peer, [key_id], [value], float(expires_at), [subkey] if subkey else None)
                    for peer in chosen
                )
            )
            for peer, answer in zip(chosen, answers, strict=True):
                if not answer:
                    self._forget_holder(key_id, peer)
                    continue
                num_answers += 1
                if answer[0]:
                    copies.append(peer)

    # Reading

    async def _read(self, key: str) -> list[tuple[Any, bytes, float]]:
        """(subkey, value, expires_at) of everything live under `key`, here and at its holders; duplicates included."""
        key_id = key_id_of(key)
        found = list(_entries(self._storage.get(key_id)))
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                node = await self._node_up()
                remote = await self._ask_holders(node, key_id)
                found += remote if remote is not None else await self._search(node, key, key_id)
        except (LocalFault, TimeoutError) as error:
            logger.info("%s was read here only: %s", key, error or "the time was up")
        return [item for item in found if item[2] > self._now()]

    async def _ask_holders(self, node: Any, key_id: DHTID) -> list[tuple[Any, bytes, float]] | None:
        """Entries of `NUM_HOLDERS_READ` holders; None when too few answered or they had nothing."""
        candidates = await self._find_holders(node, key_id)
        if not candidates:
            return []
        nearest = candidates[:NUM_REPLICAS]
        candidates = random.sample(nearest, len(nearest)) + candidates[NUM_REPLICAS:]
        num_wanted = min(NUM_HOLDERS_READ, len(candidates))
        entries: list[tuple[Any, bytes, float]] = []
        num_answers = 0
        while candidates and num_answers < num_wanted:
            num_missing = num_wanted - num_answers
            chosen, candidates = candidates[:num_missing], candidates[num_missing:]
            answers = await asyncio.gather(*(node.protocol.call_find(peer, [key_id]) for peer in chosen))
            for peer, answer in zip(chosen, answers, strict=True):
                if not answer or key_id not in answer:
                    self._forget_holder(key_id, peer)
                    continue
                num_answers += 1
                entries += _entries(answer[key_id][0])
        return entries if num_answers == num_wanted and entries else None

    async def _search(self, node: Any, key: str, key_id: DHTID) -> list[tuple[Any, bytes, float]]:
        found = await node.get_many_by_id([key_id], sufficient_expiration_time=float("inf"), beam_size=BEAM_SIZE)
        item = found[key_id]
        if item is None:
            return []
        if isinstance(item.value, dict):
            return [(name, pack_value(*entry.value), entry.expiration_time) for name, entry in item.value.items()]
        return [(None, pack_value(*item.value), item.expiration_time)]


def _note_end(task: asyncio.Task[None]) -> None:
    # hivemind leaves these tasks to themselves; when the daemon dies they end with an error nobody asks for.
    if not task.cancelled() and task.exception() is not None:
        logger.debug("the DHT's line to the network daemon broke: %s", task.exception())


def _entries(item: Any) -> Iterable[tuple[Any, bytes, float]]:
    if item is None:
        return []
    if isinstance(item.value, DictionaryDHTValue):
        return [(subkey, entry.value, entry.expiration_time) for subkey, entry in item.value.items()]
    return [(None, item.value, item.expiration_time)]
