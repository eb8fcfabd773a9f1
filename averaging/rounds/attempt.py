"""A member's view of its present attempt at a round, and of peers at later versions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from averaging.wire.messages import MAX_ROSTER, Plan
from dht.ground.host import PeerId


@dataclass
class RoundAttempt:
    """One attempt: its leader and plan. `redirects` counts how often the member was redirected."""

    attempt: int
    leader: PeerId
    heard_at: float
    plan: Plan | None = None
    planned_at: float = 0.0
    redirects: int = 0
    has_asked: bool = False
    is_heard: bool = False
    """Whether the leader gave a sign of life."""

    def hear(self, now: float) -> None:
        """Note a sign of life of the leader."""
        self.heard_at, self.is_heard = now, True

    def follow(self, plan: Plan, now: float) -> None:
        self.plan, self.planned_at = plan, now
        self.hear(now)

    def misses_plan(self, quorum: int) -> bool:
        """Return whether the leader's `wait` announces a plan that has not arrived; true once in an attempt."""
        misses = quorum == 0 and self.plan is None and not self.has_asked
        self.has_asked |= misses
        return misses

    def redirect(self) -> int:
        """Count a redirect. Return the number so far."""
        self.redirects += 1
        return self.redirects


@dataclass
class LaterVersions:
    """Peers known to be at later versions. Each of them is asked once for each version of this peer."""

    _version_of: dict[PeerId, int] = field(default_factory=dict)
    _asked: set[PeerId] = field(default_factory=set)

    def note(self, peer_id: PeerId, version: int) -> None:
        """Note that a peer is at least at `version`."""
        if len(self._version_of) < MAX_ROSTER or peer_id in self._version_of:
            self._version_of[peer_id] = max(version, self._version_of.get(peer_id, 0))

    def ahead(self, me: PeerId) -> list[PeerId]:
        """Return the peers that are ahead, beginning with the next one after `me`, so that peers ask different
        members.
        """
        return sorted(self._version_of, key=lambda peer_id: (peer_id <= me, peer_id))

    def was_asked(self, peer_id: PeerId) -> bool:
        """Return whether a peer was asked for the commit after this peer's version, and may still answer."""
        return peer_id in self._asked

    def ask(self, peer_id: PeerId) -> bool:
        """Return whether a peer may be asked for that commit now, which marks it as asked. At most a roster of peers is
        asked.
        """
        if len(self._asked) >= MAX_ROSTER:
            return False
        self._asked.add(peer_id)
        return True

    def forget(self, peer_id: PeerId) -> None:
        """Forget a peer whose link broke: the question or the answer was lost, and may be repeated."""
        self._version_of.pop(peer_id, None)
        self._asked.discard(peer_id)

    def advance(self, version: int) -> list[tuple[PeerId, int]]:
        """Set this peer's version, and return the peers still ahead with their versions, sorted, to be noted again."""
        still_ahead = sorted((peer_id, theirs) for peer_id, theirs in self._version_of.items() if theirs > version)
        self._version_of.clear()
        self._asked.clear()
        return still_ahead
