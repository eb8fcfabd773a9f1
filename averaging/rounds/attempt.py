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
