"""Facts about the ways in which others reach this peer."""

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
    """A member without a connection to this peer dialled it at `addresses`."""

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
    """Others reach this peer through `relays`, or through none for `seconds`.

    With `own_relay` ("full", "limited" or "none") the event is the result of a test of this peer's own relay.
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
