"""What a member knows of the attempt at a round that it is in, and of those that are past that round. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from averaging.wire.messages import MAX_ROSTER, Plan
from dht.ground.host import PeerId


@dataclass
class RoundAttempt:
    """One attempt: its leader and its plan; `redirects` counts how often it was sent on."""

    attempt: int
    leader: PeerId
    heard_at: float
    plan: Plan | None = None
    planned_at: float = 0.0
    redirects: int = 0
    has_asked: bool = False
    is_heard: bool = False
    """Whether its leader gave a sign of life."""

    def hear(self, now: float) -> None:
        """The leader gave a sign of life."""
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
        """It is sent on; returns how often by now."""
        self.redirects += 1
        return self.redirects


@dataclass
class LaterVersions:
    """What one peer knows of those ahead of it; everybody is asked once for each version that this peer is at."""

    _version_of: dict[PeerId, int] = field(default_factory=dict)
    _asked: set[PeerId] = field(default_factory=set)

    def note(self, peer_id: PeerId, version: int) -> None:
        """A peer has shown that it is at `version` at least."""
        if len(self._version_of) < MAX_ROSTER or peer_id in self._version_of:
            self._version_of[peer_id] = max(version, self._version_of.get(peer_id, 0))

    def ahead(self, me: PeerId) -> list[PeerId]:
        """The peers that are ahead, beginning with the next one after `me`, so that not everybody asks the same one."""
        return sorted(self._version_of, key=lambda peer_id: (peer_id <= me, peer_id))

    def was_asked(self, peer_id: PeerId) -> bool:
        """Whether a peer was asked for the commit that leaves the version here, and may still answer."""
        return peer_id in self._asked

    def ask(self, peer_id: PeerId) -> bool:
        """Whether a peer may be asked for that commit now: not when as many as a roster holds were asked before."""
        if len(self._asked) >= MAX_ROSTER:
            return False
        self._asked.add(peer_id)
        return True

    def forget(self, peer_id: PeerId) -> None:
        """The link broke: what was asked, or the answer, went down with it and may be asked again."""
        self._version_of.pop(peer_id, None)
        self._asked.discard(peer_id)

    def advance(self, version: int) -> list[tuple[PeerId, int]]:
        """This peer is at `version` now: those that are still ahead, with their versions, to be noted anew; sorted."""
        still_ahead = sorted((peer_id, theirs) for peer_id, theirs in self._version_of.items() if theirs > version)
        self._version_of.clear()
        self._asked.clear()
        return still_ahead
