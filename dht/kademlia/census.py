"""Every peer record of a run, whatever its size: for those who look once and want to see all."""

from __future__ import annotations

from collections import Counter
from typing import Final

from dht.records.key_levels import PUBLISH_SHARE, num_keys
from dht.records.signed_records import claimed_level
from dht.store import PeerKey, RecordStore

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
