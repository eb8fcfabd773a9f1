"""Facts about the paths by which other members reach this peer."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.rounds.round_facts import Fact
from dht.ground.host import PeerId
from dht.ground.quantities import seconds_text, short_peer

_OWN_RELAY = {
    "full": "This peer relays for members that nobody can dial.",
    "limited": "This peer's relay lets only 128 KiB pass, too little for rounds; that is the daemon's chance.",
    "none": "This peer does not relay: its relay gave nobody a place.",
}


@dataclass(frozen=True, slots=True)
class ReachabilityFound(Fact):
    """`asked`, a member without a connection to this peer, tried to dial this peer at `addresses`.

    `reachable` is true if one of the addresses answered.
    """

    asked: PeerId
    reachable: bool
    addresses: tuple[str, ...]

    def sentence(self) -> str:
        where = ", ".join(address.partition("/p2p/")[0] for address in self.addresses) or "any address"
        if self.reachable:
            return f"Others can dial this peer at {where}, says {short_peer(self.asked)}."
        return (
            f"Nobody can dial this peer at {where}, says {short_peer(self.asked)}; it still contributes, and "
            "reduces nothing for others."
        )


@dataclass(frozen=True, slots=True)
class RelayChanged(Fact):
    """The relays through which other members reach this peer have changed.

    If `relays` is empty, this peer has had no relay for `seconds`. If `own_relay` is set ("full", "limited" or "none"),
    the event is instead the result of a test of this peer's own relay.
    """

    relays: tuple[PeerId, ...] = ()
    seconds: float = 0.0
    own_relay: str = ""

    def sentence(self) -> str:
        if self.own_relay:
            return _OWN_RELAY.get(self.own_relay, "This peer tried its own relay, with an unknown outcome.")
        if self.relays:
            return f"Others reach this peer through {', '.join(map(short_peer, self.relays))}."
        return f"No relay has led to this peer for {seconds_text(self.seconds)}; it looks for another one."
