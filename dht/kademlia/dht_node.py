"""This peer's member of the DHT: hivemind's `DHTNode` on a host, rebuilt after each restart of the host's daemon.

It finds members and holders of keys; `dht/kademlia/dht_store.py` reads and writes records through it. The forked `DHT`
process is not used, because it cannot be rebuilt when the daemon dies.
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
from dht.kademlia.rpc import StreamHost, open_line
from dht.p2pd.host import P2pdHost

NUM_REPLICAS: Final = 5
"""If records are refreshed every 30 s and peers stay 2 minutes, all five holders are gone at once in 5 of 10 000
cases."""

BUCKET_SIZE: Final = 20
BEAM_SIZE: Final = 8
"""Half of the default's traffic, and still finds the true nearest five in each of 200 nodes."""

CALL_SECONDS: Final = 3.0
"""Time for one DHT call: the remote answers from memory, so this is a few round trips over a bad home line."""

OPERATION_SECONDS: Final = 12.0
"""Time for one publish, fetch or look-up: four calls that all time out."""

REBUILD_PAUSE_SECONDS: Final = 2.0
HOLDER_LIFE_SECONDS: Final = 300.0
"""A look-up of holders is reused for this time; newly met nearer nodes are used at once."""
GLANCE_HOLDER_LIFE_SECONDS: Final = 1500.0
"""The same for keys that are only read from time to time: most of five holders are still there, and one is enough."""

GLANCE_BEAM_SIZE: Final = 5
"""Beam of these look-ups. It sometimes misses all five holders; a wide look-up then follows."""

MAX_PINGS: Final = 16
NUM_FRIENDS_PINGED: Final = 3
MAX_CLOCKS: Final = 64
"""Members whose clocks are stored."""
CLOCK_LIFE_SECONDS: Final = 300.0
"""A clock that was read earlier may have been set since."""

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
"""Errors of a hivemind call when the remote is gone, refuses, or does not answer as DHT; includes `GateRefusal`."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Holders:
    nodes: dict[DHTID, PeerID]
    found_at: float
    beam_size: int


class HivemindNode:
    """One member of the DHT, across restarts of the daemon.

    Args:
        host: a started host.
        records: the validator, which also ranks revisions.
        serves: whether others may call this member and use it as a holder of records.
        admission: the proofs of a private run.
        now: returns unix seconds.

    The storage outlives the DHTNode, so a restart of the daemon loses no record held for others.
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
        # hivemind lets strangers write into a member's cache, so this cache accepts nothing.
        self._cache = BoundedStorage(now, max_keys=0)
        self._host = host
        self._serves = serves
        self._admission = admission
        self._now = now
        self._records = records
        self._clocks: Newest[PeerID, tuple[float, float]] = Newest(MAX_CLOCKS)
        """Member -> its clock's time when it answered, and the steady seconds at that moment."""
        self._node: Any = None
        self._line: Any = None
        self._ready = asyncio.Event()
        self._closed = False
        self._holders: dict[DHTID, _Holders] = {}

    @property
    def num_members(self) -> int:
        """Number of other members in the routing table."""
        return len(self._node.protocol.routing_table.uid_to_peer_id) if self._node is not None else 0

    async def start(self) -> None:
        """Start the member with an empty routing table.

        Raises:
            LocalFault: the daemon does not answer.
        """
        use_hivemind_log_handler("nowhere")
        await self._build()
        self._host.add_restart_listener(self._rebuild)

    async def ready(self) -> Any:
        """Return the live DHTNode, waiting while the daemon is down.

        Raises:
            LocalFault: the member is closed, or the DHT did not restart within `OPERATION_SECONDS`.
        """
        await self._host.wait_up(OPERATION_SECONDS)
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                await self._ready.wait()
        except TimeoutError as error:
            raise LocalFault(
                f"the DHT did not restart within {OPERATION_SECONDS:.0f} s; expected it right after the daemon; see "
                "the log"
            ) from error
        if self._node is None:
            raise LocalFault("the record store is closed; expected an open one; join again")
        return self._node

    async def greet_connected(self) -> int:
        """Ping the peers that the daemon is connected to, and look up this id and a random one. Return
        `num_members`.
        """
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
        # Also ping a few known members, to see whether they are alive.
        friends = random.sample(friends, min(NUM_FRIENDS_PINGED, len(friends)))
        strangers = random.sample(strangers, min(MAX_PINGS, len(strangers)))
        await asyncio.gather(*(self._ping(node, peer) for peer in strangers + friends))
        if self.num_members:
            await self._look_around(node)
        return self.num_members

    async def find_holders(
        self, node: Any, key_id: DHTID, life_seconds: float = HOLDER_LIFE_SECONDS, beam_size: int = BUCKET_SIZE
    ) -> list[PeerID]:
        """Return the members nearest to the key, nearest first: those of the last look-up and those met since.

        A look-up with at least this beam is reused for `life_seconds`. A small beam asks fewer members, and in a large
        swarm sometimes misses the nearest.

        The look-up uses the neighbouring id, which has no value: a search for the key itself would download its whole
        dictionary from each member on the way.
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
        """Return the present unix seconds by the clocks of members that answered in the last `CLOCK_LIFE_SECONDS`."""
        now = steady_seconds()
        return [shown + now - at for shown, at in self._clocks.values() if now - at <= CLOCK_LIFE_SECONDS]

    def forget_holder(self, key_id: DHTID, peer: PeerID) -> None:
        """Drop a holder that did not answer, and look up holders again next time."""
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
                f"the network daemon does not serve the DHT ({words_of(error)}); expected an answer; this peer tries "
                "again"
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
        # The old node's handlers died with the old daemon, so there are no peers to say goodbye to.
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
        parts = (
            (leaving, "the DHT left without telling its neighbours"),
            (line, "the DHT's connection to the daemon did not close"),
        )
        for part, fault in parts:
            if part is not None:
                try:
                    async with asyncio.timeout(CALL_SECONDS):
                        await part.shutdown()
                except (P2PDaemonError, OSError) as error:
                    logger.debug("%s: %s", fault, words_of(error))

    async def _ping(self, node: Any, peer: PeerID) -> None:
        # Unlike DHTProtocol.call_ping, this leaves the routing table up to date.
        protocol = node.protocol
        try:
            response = await protocol.get_stub(peer).rpc_ping(
                dht_pb2.PingRequest(peer=protocol.node_info), timeout=CALL_SECONDS
            )
            node_id, shown = DHTID.from_bytes(response.peer.node_id), float(response.dht_time)
        except _CALL_ERRORS as error:
            logger.debug("no DHT answer from %s: %r", peer, error)
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
                # hivemind adds the nodes that answered to the routing table in separate tasks.
                await asyncio.sleep(0)
        except TimeoutError:
            logger.info("a look-up of members was cut off after %.0f s", OPERATION_SECONDS)
