"""Every peer record of a run, whatever its size: for those who look once and want to see all."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Final

from dht.ground.errors import PeerFault
from dht.ground.store import PeerKey, RecordStore
from dht.records.key_levels import PUBLISH_SHARE, num_keys
from dht.records.peer_record import PeerRecord, claimed_level, decode_peer_record
from dht.records.signature_cache import VerifiedRecords
from dht.records.swarm_view import SwarmView

KEYS_AT_ONCE: Final = 16
"""Requests in flight together; a dictionary takes tens of kilobytes."""


async def fetch_everyone(store: RecordStore, run_id: str) -> list[bytes]:
    """The live, valid peer records under all keys that the peers use; several of one peer where it has renewed its own.

    In a swarm of many, level 0 shows a sample, whose votes say which keys hold everybody.
    """
    found = await store.fetch_peers(run_id)
    votes = Counter(map(claimed_level, found))
    levels = [level for level in votes if level and votes[level] >= PUBLISH_SHARE * votes.total()]
    keys = [PeerKey(level, shard) for level in sorted(levels) for shard in range(num_keys(level))]
    for start in range(0, len(keys), KEYS_AT_ONCE):
        found += await store.fetch_peers(run_id, keys[start : start + KEYS_AT_ONCE])
    return list(dict.fromkeys(found))


async def members_here(store: RecordStore, run_id: str) -> list[PeerRecord]:
    """The newest valid record of each member that is here now, sorted by PeerId."""
    now, verified = time.time(), VerifiedRecords()
    records = []
    for data in await fetch_everyone(store, run_id):
        with contextlib.suppress(PeerFault):
            records.append(decode_peer_record(data, run_id=run_id, now=now, verified=verified))
    return list(SwarmView(run_id).merge(records, now).members(now))
