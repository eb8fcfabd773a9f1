"""Refusals of remotes as events: a flood of them makes one event every few seconds."""

from __future__ import annotations

import math
from collections.abc import Callable

from averaging.rounds.round_facts import Fact, PeerRefused
from dht.ground.bounds import Newest
from dht.ground.host import PeerId
from peer.events.peer_events import RefusedPeer

REFUSAL_SECONDS = 10.0
"""Pause between two events about one remote; so a flood costs 20 bytes per second of disk."""
MAX_REFUSED_PEERS = 1000


class RefusalReports:
    """Of one node.

    Args:
        clock: seconds that never go back.
        wall_clock: unix seconds.
        report: takes each event.
    """

    def __init__(
        self, clock: Callable[[], float], wall_clock: Callable[[], float], report: Callable[[Fact], None]
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._report = report
        self._reported = Newest[PeerId, tuple[float, frozenset[str]]](MAX_REFUSED_PEERS)
        """When each remote was reported last, and for which kinds so far."""

    def add(self, refusal: PeerRefused) -> None:
        """A remote was turned away; reported at most once in `REFUSAL_SECONDS`, or it could fill the log.

        What a remote did for the first time, and that it is left out from now on, is rare and reported at once.
        """
        now, remote = self._clock(), refusal.peer_id
        kinds = frozenset(kind for kind, _ in refusal.counts)
        reported_at, known = self._reported.get(remote, (-math.inf, frozenset[str]()))
        if not refusal.is_left_out and kinds <= known and now - reported_at < REFUSAL_SECONDS:
            return
        self._reported[remote] = now, kinds | known
        self._report(
            RefusedPeer(
                remote=remote,
                reason=refusal.reason,
                kinds=tuple(kind for kind, _ in refusal.counts),
                left_out_until=self._wall_clock() + refusal.left_out_seconds if refusal.is_left_out else None,
            )
        )
