"""What this peer had to refuse, per remote and kind, and whom it leaves out: a fold of its events. Pure.

Every peer keeps such books for itself; nobody announces them, so they are known where the peer runs and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from averaging.trust.exclusions import OFFENCE_TEXT, Offence
from dht.ground.host import PeerId
from dht.ground.quantities import seconds_text
from dht.identity.speakable import speakable_name
from peer.events.peer_events import Event, JoinedRun, PartRestarted, RefusedPeer

MAX_REMOTES = 64
"""As many as anybody looks through; those refused last stay."""

_TEXTS: dict[str, str] = {kind: OFFENCE_TEXT[kind] for kind in get_args(Offence)}


@dataclass(frozen=True, slots=True)
class Refusals:
    """Of one remote, as counted by the network process that runs now.

    Attributes:
        counts: (kind, how often), since it was last forgiven.
        left_out_until: unix seconds; None when it was not left out.
        at: of the last refusal, unix seconds.
    """

    remote: PeerId
    counts: tuple[tuple[str, int], ...]
    left_out_until: float | None
    at: float

    def is_left_out(self, now: float) -> bool:
        return self.left_out_until is not None and now < self.left_out_until

    def sentence(self, now: float) -> str:
        """For people, without a full stop."""
        kinds = ", ".join(
            f"{_TEXTS.get(kind, kind)} {'once' if count == 1 else f'{count} times'}" for kind, count in self.counts
        )
        left_out = ""
        if self.left_out_until is not None and self.is_left_out(now):
            left_out = f"; left out for another {seconds_text(round(self.left_out_until - now))}"
        return f"{speakable_name(self.remote)} {kinds}{left_out}"

    def facts(self, now: float) -> dict[str, Any]:
        """As plain values."""
        return {
            "peer_id": self.remote,
            "counts": dict(self.counts),
            "last_at": self.at,
            "left_out_until": self.left_out_until if self.is_left_out(now) else None,
        }


def with_refusal(known: tuple[Refusals, ...], event: Event) -> tuple[Refusals, ...]:
    """The books after `event`, the newest refusal first. Another network process begins with empty ones."""
    if isinstance(event.fact, JoinedRun) or (isinstance(event.fact, PartRestarted) and event.fact.part == "network"):
        return ()
    refused = event.fact
    if not isinstance(refused, RefusedPeer) or not refused.kinds:
        return known
    before = next((one for one in known if one.remote == refused.remote), None)
    until = refused.left_out_until
    if until is None and before is not None:
        until = before.left_out_until
    new = Refusals(refused.remote, tuple(zip(refused.kinds, refused.num_times, strict=False)), until, event.at)
    return (new, *(one for one in known if one.remote != refused.remote))[:MAX_REMOTES]
