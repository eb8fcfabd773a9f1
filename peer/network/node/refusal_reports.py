"""Reports refusals of remotes as events; a flood of refusals makes one event every few seconds."""

from __future__ import annotations

import math
from collections.abc import Callable

from averaging.rounds.round_facts import Fact, PeerRefused
from dht.ground.bounds import Newest
from dht.ground.host import PeerId
from peer.events.peer_events import RefusedPeer

REFUSAL_SECONDS = 10.0
"""Pause between two events about one remote, so that a flood takes only 20 bytes of disk per second."""
MAX_REFUSED_PEERS = 1000


class RefusalReports:
    """The refusals of one node.

    Args:
        clock: seconds that never go back.
        wall_clock: unix seconds.
        report: receives each event.
    """

    def __init__(
        self, clock: Callable[[], float], wall_clock: Callable[[], float], report: Callable[[Fact], None]
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._report = report
        self._reported = Newest[PeerId, tuple[float, frozenset[str]]](MAX_REFUSED_PEERS)
        """The time of each remote's last report, and the kinds reported so far."""

    def add(self, refusal: PeerRefused) -> None:
        """Report that a remote was refused, at most once in `REFUSAL_SECONDS`, because the remote could fill the log.

        A first refusal of its kind, and an exclusion, are rare and reported at once.
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
