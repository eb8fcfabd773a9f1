"""`RecordStore`: the port for signed, expiring records. It treats records as bytes; `dht/records/` interprets them.

Adapters: `MemoryStore` (simulation, tests) and `HivemindStore` (hivemind's DHTNode on a P2pdHost or a Libp2pHost).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from dht.ground.host import PeerId

NUM_HOLDERS_READ: Final = 2
"""One holder can be new or lying; two holders together had 1000 of 1000 records."""

MAX_ENTRIES_PER_DICTIONARY: Final = 128
"""Entries under one key of peer records. When it is full, existing entries stay and new ones are refused until one
expires."""
NUM_PEER_SHARDS: Final = 4
"""Number of keys at level 0."""


class PeerKey(NamedTuple):
    """Key of one part of a run's peer records."""

    level: int
    shard: int
    """0 to `num_keys(level)` - 1."""


LEVEL_0_KEYS: Final = tuple(PeerKey(0, shard) for shard in range(NUM_PEER_SHARDS))


class RecordStore(Protocol):
    """Expiring key/value store shared by the swarm. Only valid records are stored or returned."""

    async def publish_run(self, run_id: str, record: bytes, expires_at: float) -> int:
        """Store the run's signed manifest record, which any member may do. Return the number of remote copies."""

    async def fetch_run(self, run_id: str) -> bytes | None:
        """Return the newest valid run record, or None if no reachable holder has one."""

    async def publish_peer(
        self, run_id: str, peer_id: PeerId, record: bytes, expires_at: float, levels: Sequence[int] = (0,)
    ) -> int:
        """Store this peer's signed record under its key of each level (`dht/records/key_levels.py`), replacing its
        earlier ones.

        Returns the number of remote copies at the level with the most.
        """

    async def fetch_peers(
        self, run_id: str, keys: Sequence[PeerKey] = LEVEL_0_KEYS, num_holders: int = NUM_HOLDERS_READ
    ) -> list[bytes]:
        """Return the live, valid peer records under these keys that `num_holders` holders of each have, one for each
        peer.

        The keys of level 0 hold all records of a small swarm; `dht.kademlia.census.fetch_everyone` reads those of any
        swarm.
        """

    async def publish_profile(self, run_id: str, contributor_id: PeerId, record: bytes, expires_at: float) -> int:
        """Store a contributor's signed profile (`dht/records/profiles.py`). Return the number of remote copies."""

    async def fetch_profiles(self, run_id: str) -> list[bytes]:
        """Return all live, valid profiles of the run at the reachable holders."""

    async def bootstrap(self, multiaddrs: list[str]) -> int:
        """Dial the given members, and look up this peer's id and random ids. Return the number of known members.

        Cheap enough to be repeated forever: it joins, heals and merges swarms.
        """

    def member_clocks(self) -> list[float]:
        """Return the present unix seconds by the clocks of members that answered recently."""

    async def close(self) -> None: ...
