"""MemoryStore: the `RecordStore` port on a dictionary that the peers of one MemoryNetwork share.

It behaves as a DHT does where it matters. Records expire, an older one never replaces a newer one, and invalid ones are
neither stored nor returned. Others see a record only after a delay, and a key takes so many peers and no more. During a
partition each side sees the records of its own side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import PeerId
from dht.ground.store import LEVEL_0_KEYS, MAX_ENTRIES_PER_DICTIONARY, NUM_HOLDERS_READ, PeerKey
from dht.records.key_levels import key_at, may_stand, peers_key
from dht.records.peer_record import decode_peer_record
from dht.records.profiles import decode_profile
from dht.records.signature_cache import VerifiedRecords
from dht.records.signed_manifest import decode_run_record
from tests.simulator.network.host import MemoryHost, MemoryNetwork

NUM_COPIES = 5
"""As many holders as a DHT of this software uses."""
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Entry:
    publisher: PeerId
    """Whose record it is; one host may publish those of many keys."""
    host: PeerId
    """That published it: others see it where they reach this host."""
    record: bytes
    rank: float
    """What makes a record newer: a revision, or the time at which it expires."""
    expires_at: float
    visible_at: float


@dataclass
class MemoryRecords:
    """What all `MemoryStore`s of one network share.

    Args:
        network: decides which peers reach each other.
        now: unix seconds.
        delay_seconds: until others see what was published.
    """

    network: MemoryNetwork
    now: Callable[[], float]
    delay_seconds: float = 0.0
    verified: VerifiedRecords = field(default_factory=VerifiedRecords)
    entries: dict[str, dict[PeerId, list[_Entry]]] = field(default_factory=dict)
    """By run id and kind, then by publisher."""
    clocks: dict[PeerId, Callable[[], float]] = field(default_factory=dict)
    """Of members whose wall clocks show something else than `now`."""


class MemoryStore:
    """One peer's door to the shared records."""

    def __init__(self, records: MemoryRecords, host: MemoryHost) -> None:
        self._records = records
        self._host = host

    async def publish_run(self, run_id: str, record: bytes, expires_at: float) -> int:
        """See the port.

        Raises:
            PeerFault: the record is not valid.
        """
        decoded = decode_run_record(record, run_id=run_id, verified=self._records.verified)
        return self._publish(f"{run_id}/run", self._host.peer_id, record, float(decoded.revision), expires_at)

    async def fetch_run(self, run_id: str) -> bytes | None:
        entries = self._visible(f"{run_id}/run")
        return max(entries, key=lambda entry: (entry.rank, entry.record)).record if entries else None

    async def publish_peer(
        self, run_id: str, peer_id: PeerId, record: bytes, expires_at: float, levels: Sequence[int] = (0,)
    ) -> int:
        """See the port.

        Raises:
            PeerFault: the record is not valid, not `peer_id`'s, or votes for a level too far from one of `levels`.
        """
        decoded = decode_peer_record(record, run_id=run_id, now=self._records.now(), verified=self._records.verified)
        if decoded.peer_id != peer_id or decoded.expires_at != expires_at:
            raise PeerFault(decoded.peer_id, f"a record to be stored as {peer_id}'s; expected its own id and expiry")
        far = [level for level in levels if not may_stand(peer_id, decoded.level, level)]
        if far:
            raise PeerFault(peer_id, f"a record for level {decoded.level} to be stored at {far[0]}; expected its own")
        keys = [peers_key(run_id, key_at(peer_id, level)) for level in levels]
        with_room = [key for key in keys if self._has_room(key, peer_id)]
        return max((self._publish(key, peer_id, record, expires_at, expires_at) for key in with_room), default=0)

    async def fetch_peers(
        self, run_id: str, keys: Sequence[PeerKey] = LEVEL_0_KEYS, num_holders: int = NUM_HOLDERS_READ
    ) -> list[bytes]:
        """See the port; in the order of the publishers' PeerIds. All holders have everything."""
        newest: dict[PeerId, _Entry] = {}
        for entry in (entry for key in keys for entry in self._visible(peers_key(run_id, key))):
            known = newest.get(entry.publisher)
            if known is None or entry.rank > known.rank:
                newest[entry.publisher] = entry
        return [newest[publisher].record for publisher in sorted(newest)]

    async def publish_profile(self, run_id: str, contributor_id: PeerId, record: bytes, expires_at: float) -> int:
        """See the port.

        Raises:
            PeerFault: the profile is not valid, or not `contributor_id`'s.
        """
        decoded = decode_profile(record, run_id=run_id, now=self._records.now())
        if decoded.contributor_id != contributor_id or decoded.expires_at != expires_at:
            raise PeerFault(decoded.contributor_id, f"a profile to be stored as {contributor_id}'s")
        key = f"{run_id}/profiles/{contributor_id}"
        return self._publish(key, self._host.peer_id, record, float(decoded.sequence), expires_at)

    async def fetch_profiles(self, run_id: str) -> list[bytes]:
        """See the port; of each contributor the one with the highest sequence."""
        prefix = f"{run_id}/profiles/"
        keys = sorted(key for key in self._records.entries if key.startswith(prefix))
        visible = [self._visible(key) for key in keys]
        return [max(entries, key=lambda entry: (entry.rank, entry.record)).record for entries in visible if entries]

    async def bootstrap(self, multiaddrs: list[str]) -> int:
        for multiaddr in multiaddrs:
            if multiaddr in self._host.addresses():
                continue
            try:
                await self._host.connect(multiaddr, CONNECT_SECONDS)
            except PeerUnreachable:
                continue
        return self._records.network.num_reachable(self._host.peer_id)

    def member_clocks(self) -> list[float]:
        """See the port: of all that can be reached."""
        clocks = self._records.clocks
        return [
            clocks.get(peer_id, self._records.now)() for peer_id in self._records.network.reachable(self._host.peer_id)
        ]

    async def close(self) -> None:
        """See the port. What was published stays until it expires."""

    def _has_room(self, key: str, peer_id: PeerId) -> bool:
        """Whether a key of peer records holds one of `peer_id` already, or takes one more."""
        now, by_publisher = self._records.now(), self._records.entries.get(key, {})
        if len(by_publisher) < MAX_ENTRIES_PER_DICTIONARY:
            return True
        live = {other for other, entries in by_publisher.items() if entries and entries[-1].expires_at > now}
        return peer_id in live or len(live) < MAX_ENTRIES_PER_DICTIONARY

    def _publish(self, key: str, publisher: PeerId, record: bytes, rank: float, expires_at: float) -> int:
        if not self._host.is_live:
            return 0
        now = self._records.now()
        mine = self._records.entries.setdefault(key, {}).setdefault(publisher, [])
        if any(entry.rank > rank for entry in mine if entry.expires_at > now):
            return 0
        # The record that others still see stays until its successor becomes visible.
        seen = [entry for entry in mine if entry.visible_at <= now < entry.expires_at][-1:]
        waiting = [entry for entry in mine if entry.visible_at > now]
        new = _Entry(publisher, self._host.peer_id, record, rank, expires_at, now + self._records.delay_seconds)
        mine[:] = [*seen, *waiting, new]
        return self._records.network.num_reachable(self._host.peer_id, NUM_COPIES)

    def _visible(self, key: str) -> list[_Entry]:
        if not self._host.is_live:
            return []
        now, me = self._records.now(), self._host.peer_id
        by_publisher, network = self._records.entries.get(key, {}), self._records.network
        is_whole = network.is_whole
        newest: list[_Entry] = []
        for publisher in sorted(by_publisher):
            entries = by_publisher[publisher]
            entry = entries[-1] if entries else None
            if entry is None or not entry.visible_at <= now < entry.expires_at:
                entries[:] = [entry for entry in entries if entry.expires_at > now]
                known = [entry for entry in entries if entry.host == me or entry.visible_at <= now]
                entry = known[-1] if known else None
            if entry is not None and (is_whole or entry.host == me or network.on_same_side(me, entry.host)):
                newest.append(entry)
        return newest
