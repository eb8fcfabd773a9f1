"""Recently announced speeds of peers: a claim is compared with the fastest of them. Pure: time is an argument.

When the work was done, the peer may have announced another speed: before the machine got warm, before its owner began
to play, or before a sleep so long that the record expired. Only a peer that never announced a speed has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from dht.ground.bounds import Newest
from dht.ground.host import PeerId

WINDOW_SECONDS = 1800.0
"""Longer than work waited for its round in any measured run. A speed counts for this time, up to twice as long."""
MAX_PEERS = 16_384
"""A hundred bytes each; a view has fewer peers."""


@dataclass(slots=True)
class _Speeds:
    since: float
    best: float
    best_before: float = 0.0


class AnnouncedSpeeds:
    """The fastest speed of each peer in this window and the previous one."""

    def __init__(self) -> None:
        self._speeds: Newest[PeerId, _Speeds] = Newest(MAX_PEERS)

    def note(self, peer_id: PeerId, tokens_per_second: float, now: float) -> None:
        """Note that a peer announces this speed at `now`. After any silence, its last announcement counts once more."""
        known = self._speeds.pop(peer_id, None)
        if known is None:
            known = _Speeds(now, tokens_per_second)
        elif 0 <= now - known.since < WINDOW_SECONDS:
            known.best = max(known.best, tokens_per_second)
        else:
            known = _Speeds(now, tokens_per_second, known.best)
        self._speeds[peer_id] = known

    def fastest(self, peer_id: PeerId) -> float:
        """Return the fastest speed in tokens per second; 0 if the peer announced none."""
        known = self._speeds.get(peer_id)
        return 0.0 if known is None else max(known.best, known.best_before)
