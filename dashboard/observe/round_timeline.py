"""The newest rounds of each peer as lanes of a timeline, from the peers' records. Pure and bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from dht.records.peer_record import PeerRecord, RoundTimes

KEPT_SECONDS: Final = 180.0
"""Earlier times are not drawn."""
MAX_LANES_PER_PEER: Final = 60
MAX_LANE_PEERS: Final = 64
"""Peers seen first stay, so that a flood of new keys cannot displace them."""
MAX_ROUND_SECONDS: Final = 3600.0
"""Longest believable duration of a round."""


Lanes = Mapping[str, tuple[RoundTimes, ...]]
"""Newest rounds by PeerId, according to the peers."""


def end_of(times: RoundTimes) -> float:
    """Return when the commit was applied, in unix seconds."""
    return times.started_at + times.compute_seconds + times.send_seconds + times.receive_seconds + times.apply_seconds


def merge_lanes(known: Lanes, records: Sequence[PeerRecord], now: float) -> Lanes:
    """Return `known` with the newest round of each record, without entries older than `KEPT_SECONDS`."""
    recent = {peer_id: [one for one in lane if end_of(one) >= now - KEPT_SECONDS] for peer_id, lane in known.items()}
    lanes = {peer_id: lane for peer_id, lane in recent.items() if lane}
    for record in records:
        newest = _believed(record.newest_round, now)
        if newest is None or (record.peer_id not in lanes and len(lanes) >= MAX_LANE_PEERS):
            continue
        lane = lanes.setdefault(record.peer_id, [])
        # A record is read many times before the next one; it counts once.
        if all((one.fragment, one.version) != (newest.fragment, newest.version) for one in lane):
            lane.append(newest)
    return {peer_id: tuple(lane[-MAX_LANES_PER_PEER:]) for peer_id, lane in lanes.items()}


def _believed(times: RoundTimes | None, now: float) -> RoundTimes | None:
    if times is None:
        return None
    exchange_seconds = times.send_seconds + times.receive_seconds + times.apply_seconds
    # By the peer's own clock, which may be ahead.
    end = min(now, end_of(times))
    if exchange_seconds > MAX_ROUND_SECONDS or end < now - KEPT_SECONDS:
        return None
    # A peer that is alone for hours computes for hours; only the end of that is drawn.
    compute_seconds = min(times.compute_seconds, KEPT_SECONDS)
    return replace(times, started_at=end - compute_seconds - exchange_seconds, compute_seconds=compute_seconds)
