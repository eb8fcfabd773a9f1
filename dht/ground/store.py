"""`RecordStore`: where signed, expiring records live. Ports only know bytes; `dht/records/` knows
meaning.

Adapters: `MemoryStore` (simulation, tests) and `HivemindStore` (hivemind's DHTNode on a P2pdHost or a Libp2pHost).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from dht.ground.host import PeerId

NUM_HOLDERS_READ: Final = 2
"""One holder can be new or lying; two merged saw 1000 of 1000 records."""

MAX_ENTRIES_PER_DICTIONARY: Final = 128
"""Under one key of peer records; what is there stays, and newcomers are refused until something expires."""
NUM_PEER_SHARDS: Final = 4
"""Keys at level 0."""


class PeerKey(NamedTuple):
    """A part of the peer records of a run."""

    level: int
    shard: int
    """0 to `num_keys(level)` - 1."""


LEVEL_0_KEYS: Final = tuple(PeerKey(0, shard) for shard in range(NUM_PEER_SHARDS))


class RecordStore(Protocol):
    """Expiring key/value store shared by the swarm. Only valid records are stored or returned."""

    async def publish_run(self, run_id: str, record: bytes, expires_at: float) -> int:
        """Store the run's signed manifest record; any member may do it. Returns the number of remote copies."""

    async def fetch_run(self, run_id: str) -> bytes | None:
        """The newest valid run record, or None when nobody reachable holds one."""

    async def publish_peer(
        self, run_id: str, peer_id: PeerId, record: bytes, expires_at: float, levels: Sequence[int] = (0,)
    ) -> int:
        """Store this peer's own signed record under its key of each level (`dht/records/key_levels.py`), replacing its
        earlier ones.

        Returns the number of remote copies, of the level that has most.
        """

    async def fetch_peers(
        self, run_id: str, keys: Sequence[PeerKey] = LEVEL_0_KEYS, num_holders: int = NUM_HOLDERS_READ
    ) -> list[bytes]:
        """The live, valid peer records under these keys, one per peer, that so many holders of each have.

        Those under the keys of level 0 are all of a small swarm; `dht.kademlia.census.fetch_everyone` reads those of
        any swarm.
        """

    async def publish_profile(self, run_id: str, contributor_id: PeerId, record: bytes, expires_at: float) -> int:
        """Store a contributor's signed profile (`dht/records/profiles.py`). Returns the number of remote copies."""

    async def fetch_profiles(self, run_id: str) -> list[bytes]:
        """All live, valid profiles of the run that the reachable holders have."""

    async def bootstrap(self, multiaddrs: list[str]) -> int:
        """Dial the given members and look up own and random ids; returns how many members are known now.

        Cheap enough to be repeated without end: it joins, heals and merges swarms with one mechanism.
        """

    def member_clocks(self) -> list[float]:
        """Return the present time by the clocks of members that answered lately, in unix seconds."""

    async def close(self) -> None: ...
