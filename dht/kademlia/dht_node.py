"""Our own place in the DHT: hivemind's `DHTNode` on a host, rebuilt after each restart of the host's daemon.

It knows members, and who holds a key; `dht/kademlia/dht_store.py` reads and writes records through it. The
forked `DHT` process is not used: it cannot be rebuilt when the daemon dies.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.logging import use_hivemind_log_handler

from dht.admission.admission import Admission
from dht.ground.bounds import Newest
from dht.ground.clocks import steady_seconds
from dht.ground.errors import LocalFault, words_of
from dht.kademlia.bounded_storage import BoundedStorage
from dht.kademlia.dht_guards import Gate, SignedRecords, node_id_of
from dht.kademlia.rpc import RpcTransport, StreamHost, open_line
from dht.p2pd.host import P2pdHost

NUM_REPLICAS: Final = 5
"""With records refreshed every 30 s and peers that stay 2 minutes, all five are gone at once in 5 of 10 000 cases."""

BUCKET_SIZE: Final = 20
BEAM_SIZE: Final = 8
"""Half of the default's traffic, and still the true nearest five in every one of 200 nodes."""

CALL_SECONDS: Final = 3.0
"""One DHT call: the remote answers from memory, so this is a few round trips over a bad home line."""

OPERATION_SECONDS: Final = 12.0
"""One publish, fetch or look-up: four calls that all time out."""

REBUILD_PAUSE_SECONDS: Final = 2.0
HOLDER_LIFE_SECONDS: Final = 300.0
"""How long a look-up of holders is believed; nearer nodes that turn up in between are used at once."""
GLANCE_HOLDER_LIFE_SECONDS: Final = 1500.0
"""The same for keys that are only read now and then: most of five holders are still there, and one is enough."""

GLANCE_BEAM_SIZE: Final = 5
"""Of their look-ups: misses all five holders now and then, and is made up for by a wide one then."""

MAX_PINGS: Final = 16
NUM_FRIENDS_PINGED: Final = 3
MAX_CLOCKS: Final = 64
"""Members whose clocks are remembered."""
CLOCK_LIFE_SECONDS: Final = 300.0
"""A clock that was read longer ago may have been set since."""

_CALL_ERRORS: Final = (
    P2PHandlerError,
    P2PDaemonError,
    DecodeError,
    OSError,
    EOFError,
    TimeoutError,
    AssertionError,
    TypeError,
)
"""What a hivemind call raises when the remote is gone, refuses us, or answers something that is not DHT; a
`GateRefusal` is one of them."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Holders:
    nodes: dict[DHTID, PeerID]
    found_at: float
    beam_size: int


class HivemindNode:
    """One member of the DHT, over all lives of the daemon.

    Args:
        host: a started host.
        records: the validator, which also ranks revisions.
        serves: whether others may ask us, and count on us as a holder of records.
        admission: the proofs of a private run.
        now: returns unix seconds.

    The storage outlives the DHTNode, so a restart of the daemon loses nothing that we hold for others.
    """

    def __init__(
        self,
        host: P2pdHost | StreamHost,
        records: SignedRecords,
        serves: bool,
        admission: Admission | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        own_run = None if admission is None else admission.run_id
        self.storage = BoundedStorage(
            now, records.rank_of, lambda value: own_run is not None and records.run_of(value) != own_run
        )
        # hivemind lets strangers write into the cache of others; ours takes nothing.
        self._cache = BoundedStorage(now, max_keys=0)
        self._host = host
        self._serves = serves
        self._admission = admission
        self._now = now
        self._records = records
        self._clocks: Newest[PeerID, tuple[float, float]] = Newest(MAX_CLOCKS)
        """Member -> what its clock showed when it answered, and seconds of the steady clock then."""
        self._node: Any = None
        self._line: RpcTransport | None = None
        self._ready = asyncio.Event()
        self._closed = False
        self._holders: dict[DHTID, _Holders] = {}

    @property
    def num_members(self) -> int:
        """Members in the routing table, without ourselves."""
        return len(self._node.protocol.routing_table.uid_to_peer_id) if self._node is not None else 0

    async def start(self) -> None:
        """Join the daemon as a member that knows nobody yet.

        Raises:
            LocalFault: the daemon does not answer.
        """
        use_hivemind_log_handler("nowhere")
        await self._build()
        self._host.add_restart_listener(self._rebuild)

    async def ready(self) -> Any:
        """The live DHTNode; waits while the daemon is down.

        Raises:
            LocalFault: closed, or not back within `OPERATION_SECONDS`.
        """
        await self._host.wait_up(OPERATION_SECONDS)
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                await self._ready.wait()
        except TimeoutError as error:
            raise LocalFault(
                f"the DHT is not back after {OPERATION_SECONDS:.0f} s; expected it right after the daemon; see the log"
            ) from error
        if self._node is None:
            raise LocalFault("the record store is closed; expected an open one; join again")
        return self._node

    async def greet_connected(self) -> int:
        """Ping the peers the daemon is connected to and look up own and a random id; returns `num_members`."""
        try:
            node = await self.ready()
            connected = await self._host.connected_addresses()
        except LocalFault as fault:
            logger.info("could not look for members: %s", fault)
            return self.num_members
        known = set(node.protocol.routing_table.uid_to_peer_id.values())
        peers = [PeerID.from_base58(peer_id) for peer_id in connected]
        strangers = [peer for peer in peers if peer not in known]
        friends = [peer for peer in peers if peer in known]
        # A few known members too: whether they still live.
        friends = random.sample(friends, min(NUM_FRIENDS_PINGED, len(friends)))
        strangers = random.sample(strangers, min(MAX_PINGS, len(strangers)))
        await asyncio.gather(*(self._ping(node, peer) for peer in strangers + friends))
        if self.num_members:
            await self._look_around(node)
        return self.num_members

    async def find_holders(
        self, node: Any, key_id: DHTID, life_seconds: float = HOLDER_LIFE_SECONDS, beam_size: int = BUCKET_SIZE
    ) -> list[PeerID]:
        """Members nearest to the key, nearest first: those of the last look-up and those met since.

        A look-up with at least this beam is believed for `life_seconds`. One with a small beam asks fewer, and in a
        large swarm misses the nearest now and then.

        Looked up under the neighbouring id, where no value is: a search for the key itself would download its whole
        dictionary from everyone it passes.
        """
        loop_time = asyncio.get_running_loop().time()
        remembered = self._holders.get(key_id)
        is_known = remembered is not None and remembered.beam_size >= beam_size
        if remembered is None or not is_known or loop_time - remembered.found_at > life_seconds:
            adjacent = DHTID(int(key_id) ^ 1)
            found: dict[DHTID, PeerID] = {}
            if self.num_members:
                nearest = await node.find_nearest_nodes(
                    [adjacent], k_nearest=beam_size, beam_size=beam_size, exclude_self=True
                )
                found = dict(nearest[adjacent])
            remembered = _Holders(found, loop_time, beam_size)
            if found:
                self._holders[key_id] = remembered
        met = node.protocol.routing_table.get_nearest_neighbors(key_id, BUCKET_SIZE, exclude=node.node_id)
        candidates = remembered.nodes | dict(met)
        return [candidates[node_id] for node_id in sorted(candidates, key=key_id.xor_distance)]

    def member_clocks(self) -> list[float]:
        """What the clocks of members that answered in the last `CLOCK_LIFE_SECONDS` show now, unix seconds."""
        now = steady_seconds()
        return [shown + now - at for shown, at in self._clocks.values() if now - at <= CLOCK_LIFE_SECONDS]

    def forget_holder(self, key_id: DHTID, peer: PeerID) -> None:
        """`peer` did not answer: leave it out, and look up again next time."""
        remembered = self._holders.get(key_id)
        if remembered is not None:
            remembered.nodes = {node_id: other for node_id, other in remembered.nodes.items() if other != peer}
            remembered.found_at = float("-inf")

    async def close(self) -> None:
        """Leave the DHT. Never raises; the host stays open."""
        self._closed = True
        await self._drop_node(says_goodbye=True)
        self._ready.set()

    async def _build(self) -> None:
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                await self._host.wait_up(OPERATION_SECONDS)
                self._line = await open_line(self._host)
                gate = Gate(self._line, self._admission, self._now)
                self._node = await self._join(gate)
        except (P2PDaemonError, OSError, EOFError) as error:
            await self._drop_node(says_goodbye=False)
            raise LocalFault(
                f"the network daemon does not take the DHT ({words_of(error)}); expected an answer; it is tried again"
            ) from error
        self._node.protocol.storage = self.storage
        self._node.protocol.cache = self._cache
        gate.open()
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
            client_mode=not self._serves,
            ensure_bootstrap_success=False,
            strict=False,
        )

    async def _rebuild(self) -> None:
        self._ready.clear()
        # The old node's handlers died with the old daemon: there is nobody to say goodbye to.
        await self._drop_node(says_goodbye=False)
        self._holders.clear()
        while not self._closed:
            try:
                await self._build()
                await self.greet_connected()
                return
            except LocalFault as fault:
                logger.warning("the DHT is not back yet: %s", fault)
                await asyncio.sleep(REBUILD_PAUSE_SECONDS)

    async def _drop_node(self, *, says_goodbye: bool) -> None:
        node, line, self._node, self._line = self._node, self._line, None, None
        leaving = node if says_goodbye and self._host.is_up else None
        parts = (leaving, "the DHT left without saying goodbye"), (line, "the line of the DHT did not close")
        for part, fault in parts:
            if part is not None:
                try:
                    async with asyncio.timeout(CALL_SECONDS):
                        await part.shutdown()
                except (P2PDaemonError, OSError) as error:
                    logger.debug("%s: %s", fault, words_of(error))

    async def _ping(self, node: Any, peer: PeerID) -> None:
        # Unlike after DHTProtocol.call_ping the routing table is up to date afterwards.
        protocol = node.protocol
        try:
            response = await protocol.get_stub(peer).rpc_ping(
                dht_pb2.PingRequest(peer=protocol.node_info), timeout=CALL_SECONDS
            )
            node_id, shown = DHTID.from_bytes(response.peer.node_id), float(response.dht_time)
        except _CALL_ERRORS as error:
            logger.debug("no DHT answer of %s: %r", peer, error)
            await protocol.update_routing_table(None, peer, responded=False)
            return
        node.blacklist.register_success(peer)
        if math.isfinite(shown) and shown > 0:
            self._clocks[peer] = (shown, steady_seconds())
        await protocol.update_routing_table(node_id, peer, responded=True)

    async def _look_around(self, node: Any) -> None:
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                await node.find_nearest_nodes([node.node_id, DHTID.generate()], beam_size=BUCKET_SIZE)
                # hivemind enters the nodes that answered into the routing table in tasks of their own.
                await asyncio.sleep(0)
        except TimeoutError:
            logger.info("a look-up of members was cut off after %.0f s", OPERATION_SECONDS)
