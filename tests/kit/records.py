"""A peer's record, for tests that care about a few of its fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dht.ground.host import PeerId
from dht.records.peer_record import PeerRecord

RUN_ID = "tiny.abcdefghij234567abcd"
NOW = 1000.0
LIFE_SECONDS = 90.0

_NEW_TRAINER = PeerRecord(
    run_id=RUN_ID,
    peer_id=PeerId("A"),
    session=1,
    sequence=1,
    expires_at=NOW + LIFE_SECONDS,
    manifest_hash=bytes(32),
    state="training",
    role="trainer",
    device="cpu",
    name="",
    software="0.1.0",
    reachable=True,
    inner_steps=0,
    tokens=0,
    rounds_contributed=0,
    tokens_per_second=0.0,
    upload_bits_per_second=0.0,
    train_loss=None,
    evaluation=None,
    versions=(),
    digests=(),
    lineage_tokens=(),
    started_at=NOW - 100.0,
)


def make_record(peer_id: str = "A", **changes: Any) -> PeerRecord:
    """Of a trainer that began 100 s before `NOW`, but for `changes`."""
    return replace(_NEW_TRAINER, peer_id=PeerId(peer_id), **changes)


def anchored(peer_id: str, version: int, digest: bytes, lineage_tokens: int, **changes: Any) -> PeerRecord:
    """Of one that has this anchor of fragment 1."""
    return make_record(
        peer_id,
        versions=(0, version),
        digests=(bytes(8), digest * 8),
        lineage_tokens=(0, lineage_tokens),
        **changes,
    )
