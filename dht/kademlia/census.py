"""All peer records of a run of any size, for single queries."""

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
"""Parallel requests; a dictionary takes tens of kilobytes."""


async def fetch_everyone(store: RecordStore, run_id: str) -> list[bytes]:
    """Return the live, valid peer records under all keys in use. A peer that has renewed its record may have several.

    In a large swarm, level 0 holds a sample, whose votes show which keys hold all peers.
    """
    found = await store.fetch_peers(run_id)
    votes = Counter(map(claimed_level, found))
    levels = [level for level in votes if level and votes[level] >= PUBLISH_SHARE * votes.total()]
    keys = [PeerKey(level, shard) for level in sorted(levels) for shard in range(num_keys(level))]
    for start in range(0, len(keys), KEYS_AT_ONCE):
        found += await store.fetch_peers(run_id, keys[start : start + KEYS_AT_ONCE])
    return list(dict.fromkeys(found))


async def members_here(store: RecordStore, run_id: str) -> list[PeerRecord]:
    """Return the newest valid record of each present member, sorted by PeerId."""
    now, verified = time.time(), VerifiedRecords()
    records = []
    for data in await fetch_everyone(store, run_id):
        with contextlib.suppress(PeerFault):
            records.append(decode_peer_record(data, run_id=run_id, now=now, verified=verified))
    return list(SwarmView(run_id).merge(records, now).members(now))
