"""Phase of a run for the page: live, stalled, resting, silent, ended, or not found yet. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from dashboard.observe.listed_peers import PeerRow
from dht.records.peer_record import PeerRecord
from peer.view.run_clock import has_stalled

Phase = Literal["starting", "looking", "no run", "empty", "live", "stalled", "resting", "silent", "ended"]


def phase_without_peers(*, has_looked: bool, num_members: int, is_run_known: bool) -> Phase:
    """Return the phase while no peer of the run has been seen."""
    if not has_looked:
        return "starting"
    if not num_members:
        return "looking"
    return "empty" if is_run_known else "no run"


def phase_with_peers(
    peers: Sequence[PeerRow],
    here: Sequence[PeerRow],
    trainers: Sequence[PeerRecord],
    now: float,
    moved_at: float | None,
) -> Phase:
    """Return the phase after peers have been seen.

    Args:
        here: the live ones of `peers` on the known manifest.
        trainers: as in `RunView`; newcomers without work in a commit do not stall a run.
        now: unix seconds.
        moved_at: when a commit was last received, or training began after a time without any; unix seconds.
    """
    if any(row.record.role == "trainer" for row in here):
        return "stalled" if _is_stalled(trainers, now, moved_at) else "live"
    return "resting" if here or all(row.condition == "left" for row in peers) else "silent"


def _is_stalled(trainers: Sequence[PeerRecord], now: float, moved_at: float | None) -> bool:
    if moved_at is None or not trainers:
        return False
    rounds = [record.newest_round for record in trainers]
    spent = [one.compute_seconds + one.send_seconds + one.receive_seconds for one in rounds if one is not None]
    return has_stalled(now - moved_at, statistics.median(spent) if spent else 0.0)
