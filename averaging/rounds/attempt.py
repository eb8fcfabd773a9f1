"""What a member knows of the attempt at a round that it is in."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.wire.messages import Plan
from dht.host import PeerId


@dataclass
class Membership:
    """One attempt: its leader, since when, and its plan; `redirects` counts how often it was sent on."""

    attempt: int
    leader: PeerId
    asked_at: float
    heard_at: float
    plan: Plan | None = None
    planned_at: float = 0.0
    redirects: int = 0

    def hear(self, now: float) -> None:
        """The leader gave a sign of life."""
        self.heard_at = now

    def follow(self, plan: Plan, now: float) -> None:
        """The leader planned."""
        self.plan, self.planned_at, self.heard_at = plan, now, now

    def redirect(self) -> int:
        """It is sent on; returns how often by now."""
        self.redirects += 1
        return self.redirects
