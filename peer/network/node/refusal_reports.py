"""Refusals of remotes as events: a flood of them makes one event every few seconds, and its last counts are right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from averaging.rounds.round_facts import Fact, PeerRefused
from dht.ground.bounds import Newest
from dht.ground.host import PeerId
from peer.events.peer_events import RefusedPeer

REFUSAL_SECONDS = 10.0
"""Pause between two events about one remote; so a flood costs 20 bytes per second of disk."""
MAX_REFUSED_PEERS = 1000


@dataclass
class _Refused:
    """What was reported of one remote and when, and the refusal that came too soon after that."""

    at: float
    kinds: set[str] = field(default_factory=set)
    held_back: PeerRefused | None = None


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
        self._refused = Newest[PeerId, _Refused](MAX_REFUSED_PEERS)

    def add(self, refusal: PeerRefused) -> None:
        """A remote was turned away; reported at most once in `REFUSAL_SECONDS`, or it could fill the log.

        The last refusal is reported in any case, later, so that the counts come out right. What a remote did for the
        first time, and that it is left out from now on, is rare and reported at once.
        """
        now, remote = self._clock(), refusal.peer_id
        kinds = {kind for kind, _ in refusal.counts}
        before = self._refused.get(remote, _Refused(-math.inf))
        is_news = refusal.is_left_out or not kinds <= before.kinds
        if not is_news and now - before.at < REFUSAL_SECONDS:
            before.held_back = refusal
            return
        self._refused[remote] = _Refused(now, kinds | before.kinds)
        self._report(
            RefusedPeer(
                remote=remote,
                reason=refusal.reason,
                kinds=tuple(kind for kind, _ in refusal.counts),
                num_times=tuple(count for _, count in refusal.counts),
                left_out_until=self._wall_clock() + refusal.left_out_seconds if refusal.is_left_out else None,
            )
        )

    def report_held_back(self) -> None:
        """Report what was held back for long enough; call it every few seconds."""
        now = self._clock()
        for one in list(self._refused.values()):
            if one.held_back is not None and now - one.at >= REFUSAL_SECONDS:
                self.add(one.held_back)
