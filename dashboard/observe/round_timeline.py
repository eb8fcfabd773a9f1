"""The newest rounds of every peer as lanes of a timeline, gathered from what their records say. Pure and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dashboard.history_facts import LaneFacts
from dht.records.signed_records import PeerRecord

KEPT_SECONDS: Final = 180.0
"""Longer ago is not drawn."""
MAX_LANES_PER_PEER: Final = 60
MAX_LANE_PEERS: Final = 64
"""Those seen first stay, so that a flood of new keys cannot empty the timeline."""
MAX_ROUND_SECONDS: Final = 3600.0
"""A round that says it took longer is not believed."""


def lane_end(lane: LaneFacts) -> float:
    """Unix seconds at which the commit was applied."""
    return lane.started_at + lane.compute_seconds + lane.send_seconds + lane.receive_seconds + lane.apply_seconds


def merge_lanes(known: Sequence[LaneFacts], records: Sequence[PeerRecord], now: float) -> tuple[LaneFacts, ...]:
    """`known` and the newest round of each record, without what is older than `KEPT_SECONDS` at `now`."""
    by_peer: dict[str, list[LaneFacts]] = {}
    for lane in known:
        if lane_end(lane) >= now - KEPT_SECONDS:
            by_peer.setdefault(lane.peer_id, []).append(lane)
    for record in records:
        newest = _lane_of(record, now)
        if newest is None or (record.peer_id not in by_peer and len(by_peer) >= MAX_LANE_PEERS):
            continue
        lanes = by_peer.setdefault(record.peer_id, [])
        # A record is read many times before the next one comes; only one of its readings counts.
        if all(
            (old.compute_seconds, old.send_seconds) != (newest.compute_seconds, newest.send_seconds) for old in lanes
        ):
            lanes.append(newest)
    return tuple(lane for lanes in by_peer.values() for lane in lanes[-MAX_LANES_PER_PEER:])


def _lane_of(record: PeerRecord, now: float) -> LaneFacts | None:
    times = record.newest_round
    if times is None:
        return None
    exchange = (times.send_seconds, times.receive_seconds, times.apply_seconds)
    if sum(exchange) > MAX_ROUND_SECONDS:
        return None
    # By the peer's own clock, which may be fast.
    end = min(now, times.started_at + times.compute_seconds + sum(exchange))
    # Somebody alone for hours computes for hours; only the end of that is drawn.
    compute_seconds = min(times.compute_seconds, KEPT_SECONDS)
    lane = LaneFacts(record.peer_id, compute_seconds, *exchange, started_at=end - compute_seconds - sum(exchange))
    return lane if end >= now - KEPT_SECONDS else None
