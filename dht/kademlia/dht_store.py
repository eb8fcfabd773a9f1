"""`HivemindStore`: the `RecordStore` port over hivemind's DHT, in this process's own event loop.

Reads and writes go directly to remembered holders of a key. One refresh then takes 5 KiB instead of 200, because a
search downloads the whole dictionary from each member on the way. A search is the fallback.

Importing this module loads hivemind, including torch unless `dht.p2pd.lazy_hivemind` was called before.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

from dht.admission.admission import Admission
from dht.ground.errors import LocalFault, PeerFault, PeerUnreachable, UsageFault, words_of
from dht.ground.host import PeerId
from dht.ground.store import LEVEL_0_KEYS, NUM_HOLDERS_READ, NUM_PEER_SHARDS, PeerKey
from dht.identity.multiaddr import parse_peer_multiaddr
from dht.kademlia.dht_guards import SignedRecords, key_id_of, pack_value, unpack_value
from dht.kademlia.dht_node import (
    BEAM_SIZE,
    BUCKET_SIZE,
    GLANCE_BEAM_SIZE,
    GLANCE_HOLDER_LIFE_SECONDS,
    NUM_REPLICAS,
    OPERATION_SECONDS,
    HivemindNode,
)
from dht.kademlia.rpc import StreamHost
from dht.p2pd.host import P2pdHost
from dht.records.key_levels import key_at, peers_key, shard_of
from dht.records.profiles import profiles_key
from dht.records.signed_manifest import run_key

MAX_HOLDERS_GLANCED: Final = 3
"""Holders asked for a key that is read briefly, one after the other until one has an entry."""

DIAL_SECONDS: Final = 5.0
MAX_BOOTSTRAP_DIALS: Final = 16

logger = logging.getLogger(__name__)


class HivemindStore:
    """A member of the DHT. Call `start` after the host's `start`, and `close` before the host's `close`.

    Args:
        host: a started `P2pdHost`, after whose daemon restarts the store is rebuilt, or a `Libp2pHost`.
        serves: False makes a client, which reads and publishes, is in no routing table and holds no records for others:
            other members must not rely on an observer that may leave at any time. Without a daemon it is always a
            client.
        admission: the proofs of a private run; without it no proofs are sent.
        after_dial: awaited in each `bootstrap` with the dialled addresses, before any peer is pinged; its exceptions
            leave `bootstrap`.
        now: returns unix seconds.

    Operations never fail because of the network: they end in about `OPERATION_SECONDS` with the members reached by
    then.
    """

    def __init__(
        self,
        host: P2pdHost | StreamHost,
        *,
        serves: bool = True,
        admission: Admission | None = None,
        after_dial: Callable[[list[str]], Awaitable[None]] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._after_dial = after_dial
        self._now = now
        self._records = SignedRecords(now)
        serves = serves and isinstance(host, P2pdHost)
        self._member = HivemindNode(host, self._records, serves, admission, now)
        self._bootstrap_lock = asyncio.Lock()
        self._dial_faults: dict[str, str] = {}

    @property
    def dial_faults(self) -> dict[str, str]:
        """Address -> reason of the failed dials of the last `bootstrap`."""
        return dict(self._dial_faults)

    async def start(self) -> None:
        """Start as a DHT member with an empty routing table.

        Raises:
            LocalFault: the daemon does not answer.
        """
        await self._member.start()

    async def publish_run(self, run_id: str, record: bytes, expires_at: float) -> int:
        """Store the run's record; see the port. Holders refuse a revision older than theirs."""
        return await self._publish(run_key(run_id), None, record, expires_at)

    async def publish_peer(
        self, run_id: str, peer_id: PeerId, record: bytes, expires_at: float, levels: Sequence[int] = (0,)
    ) -> int:
        keys = [peers_key(run_id, key_at(peer_id, level)) for level in levels]
        return max(await asyncio.gather(*(self._publish(key, peer_id, record, expires_at) for key in keys)))

    async def fetch_run(self, run_id: str) -> bytes | None:
        """Return the run record with the highest revision; see the port."""
        return next(iter(await self._newest([run_key(run_id)])), None)

    async def fetch_peers(
        self, run_id: str, keys: Sequence[PeerKey] = LEVEL_0_KEYS, num_holders: int = NUM_HOLDERS_READ
    ) -> list[bytes]:
        """Return live peer records; see the port. With `num_holders` of one, no search follows if that holder has
        none.
        """
        return await self._newest([peers_key(run_id, key) for key in keys], num_holders)

    async def publish_profile(self, run_id: str, contributor_id: PeerId, record: bytes, expires_at: float) -> int:
        """Store a contributor's profile; see the port. Holders refuse a profile older than theirs."""
        key = profiles_key(run_id, shard_of(contributor_id))
        return await self._publish(key, contributor_id, record, expires_at)

    async def fetch_profiles(self, run_id: str) -> list[bytes]:
        keys = [profiles_key(run_id, shard) for shard in range(NUM_PEER_SHARDS)]
        return await self._newest(keys)

    async def bootstrap(self, multiaddrs: list[str]) -> int:
        """Dial members, ping all connected peers, and look up this id and a random one; see the port.

        Invalid or unresponsive addresses are skipped; from a long list, random ones are tried.
        """
        async with self._bootstrap_lock:
            chosen = random.sample(multiaddrs, min(MAX_BOOTSTRAP_DIALS, len(multiaddrs)))
            self._dial_faults.clear()
            await asyncio.gather(*(self._dial(multiaddr) for multiaddr in chosen))
            if self._after_dial is not None:
                await self._after_dial(chosen)
            return await self._member.greet_connected()

    def member_clocks(self) -> list[float]:
        """Return the clocks of members that `bootstrap` pinged in the last minutes; see the port."""
        return self._member.member_clocks()

    async def close(self) -> None:
        """Leave the DHT. Never raises; the host stays open."""
        await self._member.close()

    async def _dial(self, multiaddr: str) -> None:
        try:
            if parse_peer_multiaddr(multiaddr)[0] != self._host.peer_id:
                await self._host.connect(multiaddr, DIAL_SECONDS)
        except (PeerUnreachable, UsageFault) as fault:
            logger.info("skipped an address: %s", fault)
            self._dial_faults[multiaddr] = str(fault)

    # Writing

    async def _publish(self, key: str, subkey: PeerId | None, record: bytes, expires_at: float) -> int:
        key_id, value = key_id_of(key), pack_value(key, record)
        try:
            self._records.check(key_id.to_bytes(), MSGPackSerializer.dumps(subkey), value, expires_at)
        except (PeerFault, UsageFault, ValueError) as error:
            raise LocalFault(
                f"a record that no member would accept: {error}; expected a valid record; check this machine's clock"
            ) from error
        self._member.storage.store(key_id, value, expires_at, subkey)
        copies: list[PeerID] = []
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                await self._spread(await self._member.ready(), key_id, subkey, value, expires_at, copies)
        except (LocalFault, TimeoutError) as error:
            logger.info("a record reached only %d members: %s", len(copies), words_of(error, "the time ran out"))
        return len(copies)

    async def _spread(
        self, node: Any, key_id: DHTID, subkey: PeerId | None, value: bytes, expires_at: float, copies: list[PeerID]
    ) -> None:
        candidates = await self._member.find_holders(node, key_id)
        subkeys = [subkey] if subkey else None

        async def store_at(peer: PeerID) -> Any:
            return await node.protocol.call_store(peer, [key_id], [value], float(expires_at), subkeys)

        async for peer, answer in self._answers(key_id, candidates, NUM_REPLICAS, store_at):
            if answer[0]:
                copies.append(peer)

    async def _answers(
        self, key_id: DHTID, candidates: list[PeerID], num_wanted: int, ask: Callable[[PeerID], Awaitable[Any]]
    ) -> AsyncIterator[tuple[PeerID, Any]]:
        """Yield the answers of the first `num_wanted` candidates that answer, and drop the others as holders."""
        while candidates and num_wanted > 0:
            chosen, candidates = candidates[:num_wanted], candidates[num_wanted:]
            for peer, answer in zip(chosen, await asyncio.gather(*map(ask, chosen)), strict=True):
                if answer:
                    num_wanted -= 1
                    yield peer, answer
                else:
                    self._member.forget_holder(key_id, peer)

    # Reading

    async def _newest(self, keys: Iterable[str], num_holders: int = NUM_HOLDERS_READ) -> list[bytes]:
        """Return for each subkey under `keys` the record with the highest rank and, of equal ones, the longest life."""
        newest: dict[Any, tuple[int, float, bytes]] = {}
        for found in await asyncio.gather(*(self._read(key, num_holders) for key in keys)):
            for subkey, value, expires_at in found:
                rank = (self._records.rank_of(value), expires_at)
                if subkey not in newest or rank > newest[subkey][:2]:
                    newest[subkey] = (*rank, value)
        return [unpack_value(value)[1] for *_, value in newest.values()]

    async def _read(self, key: str, num_holders: int = NUM_HOLDERS_READ) -> list[tuple[Any, bytes, float]]:
        """Return (subkey, value, expires_at) of all live entries under `key`, here and at its holders, with
        duplicates.
        """
        key_id = key_id_of(key)
        found = list(_entries(self._member.storage.get(key_id)))
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                node = await self._member.ready()
                if num_holders < NUM_HOLDERS_READ:
                    found += await self._glance(node, key_id)
                else:
                    remote = await self._ask_holders(node, key_id)
                    found += remote if remote is not None else await self._search(node, key, key_id)
        except (LocalFault, TimeoutError) as error:
            logger.info("%s was read only from this peer's own storage: %s", key, words_of(error, "the time ran out"))
        return [item for item in found if item[2] > self._now()]

    async def _ask_holders(self, node: Any, key_id: DHTID) -> list[tuple[Any, bytes, float]] | None:
        """Return the entries of `NUM_HOLDERS_READ` holders; None if too few answered or they had none."""
        candidates = await self._member.find_holders(node, key_id)
        if not candidates:
            return []
        nearest = candidates[:NUM_REPLICAS]
        candidates = random.sample(nearest, len(nearest)) + candidates[NUM_REPLICAS:]
        num_wanted = min(NUM_HOLDERS_READ, len(candidates))
        entries: list[tuple[Any, bytes, float]] = []
        num_answers = 0
        async for _, item in self._answers(key_id, candidates, num_wanted, partial(_found_at, node, key_id)):
            num_answers += 1
            entries += _entries(item[0])
        return entries if num_answers == num_wanted and entries else None

    async def _glance(self, node: Any, key_id: DHTID) -> list[tuple[Any, bytes, float]]:
        """Return the entries of the first holder, in random order, that has any. If none has, search for others
        once.
        """
        for beam_size in (GLANCE_BEAM_SIZE, BUCKET_SIZE):
            holders = await self._member.find_holders(node, key_id, GLANCE_HOLDER_LIFE_SECONDS, beam_size)
            nearest = holders[:NUM_REPLICAS]
            for peer in random.sample(nearest, min(MAX_HOLDERS_GLANCED, len(nearest))):
                item = await _found_at(node, key_id, peer)
                if not item:
                    self._member.forget_holder(key_id, peer)
                elif entries := list(_entries(item[0])):
                    return entries
        return []

    async def _search(self, node: Any, key: str, key_id: DHTID) -> list[tuple[Any, bytes, float]]:
        found = await node.get_many_by_id([key_id], sufficient_expiration_time=float("inf"), beam_size=BEAM_SIZE)
        item = found[key_id]
        if item is None:
            return []
        if isinstance(item.value, dict):
            return [(name, pack_value(*entry.value), entry.expiration_time) for name, entry in item.value.items()]
        return [(None, pack_value(*item.value), item.expiration_time)]


async def _found_at(node: Any, key_id: DHTID, peer: PeerID) -> Any:
    """Return (the peer's value under the key or None, members nearer to it); None without an answer."""
    answer = await node.protocol.call_find(peer, [key_id])
    return answer.get(key_id) if answer else None


def _entries(item: Any) -> Iterable[tuple[Any, bytes, float]]:
    if item is None:
        return []
    if isinstance(item.value, DictionaryDHTValue):
        return [(subkey, entry.value, entry.expiration_time) for subkey, entry in item.value.items()]
    return [(None, item.value, item.expiration_time)]
