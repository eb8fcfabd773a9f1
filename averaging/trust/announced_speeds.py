"""The speeds that peers announced lately: a claim is held against the fastest of them. Pure: time is an argument.

Work may have been done while another speed was announced than now. That was before a machine got warm, before its owner
began to play, or before it slept so long that its record expired. Only a peer that never announced a speed has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from dht.ground.bounds import Newest
from dht.ground.host import PeerId

WINDOW_SECONDS = 1800.0
"""Longer than work waits for its round in any run that was measured. A speed counts for this long, up to twice that."""
MAX_PEERS = 16_384
"""A hundred bytes each; a view has fewer."""


@dataclass(slots=True)
class _Speeds:
    since: float
    best: float
    best_before: float = 0.0


class AnnouncedSpeeds:
    """Per peer the fastest speed of this window and of the one before."""

    def __init__(self) -> None:
        self._speeds: Newest[PeerId, _Speeds] = Newest(MAX_PEERS)

    def note(self, peer_id: PeerId, tokens_per_second: float, now: float) -> None:
        """A peer announces this speed at `now`. However long it said nothing, what it said last counts once more."""
        known = self._speeds.pop(peer_id, None)
        if known is None:
            known = _Speeds(now, tokens_per_second)
        elif 0 <= now - known.since < WINDOW_SECONDS:
            known.best = max(known.best, tokens_per_second)
        else:
            known = _Speeds(now, tokens_per_second, known.best)
        self._speeds[peer_id] = known

    def fastest(self, peer_id: PeerId) -> float:
        """Tokens per second; 0 when the peer announced none."""
        known = self._speeds.get(peer_id)
        return 0.0 if known is None else max(known.best, known.best_before)
