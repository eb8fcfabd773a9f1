"""Facts about the paths by which other members reach this peer."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.rounds.round_facts import Fact
from dht.ground.host import PeerId
from dht.ground.quantities import seconds_text, short_peer

_OWN_RELAY = {
    "full": "This peer relays for members that no other member can dial.",
    "limited": (
        "This peer's relay passes only 128 KiB per connection, too little for rounds; whether the libp2p daemon has "
        "this limit varies from start to start."
    ),
    "none": "This peer does not relay: its relay accepted no member.",
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
            return f"Members can dial this peer at {where}, according to {short_peer(self.asked)}."
        return (
            f"No member can dial this peer at {where}, according to {short_peer(self.asked)}; this peer still "
            "contributes, but averages nothing for others."
        )


@dataclass(frozen=True, slots=True)
class RelayChanged(Fact):
    """News about relays: either a change of the relays that this peer uses, or a test of this peer's own relay.

    After a change, other members reach this peer through `relays`; if `relays` is empty, this peer has had no relay
    for `seconds`. After a test, `own_relay` is the result: "full", "limited" or "none".
    """

    relays: tuple[PeerId, ...] = ()
    seconds: float = 0.0
    own_relay: str = ""

    def sentence(self) -> str:
        if self.own_relay:
            return _OWN_RELAY.get(self.own_relay, "This peer tested its own relay; the result is unknown.")
        if self.relays:
            return f"Members reach this peer through {', '.join(map(short_peer, self.relays))}."
        return f"This peer has had no relay for {seconds_text(self.seconds)} and is looking for one."
