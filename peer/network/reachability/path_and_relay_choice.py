"""Classifies the path to a peer, and chooses relays. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

from dht.ground.host import PeerId
from dht.identity.multiaddr import Multiaddr, parse_multiaddr
from dht.records.peer_record import PeerRecord

PathKind = Literal["direct", "punched", "relayed"]

MAX_RELAYS: Final = 3
NUM_CONFIRMING: Final = 2
"""Number of networks that must confirm a public address before it is announced; one if there is only one network."""
NETWORK_BITS: Final = {4: 16, 6: 32}
"""Prefix length of a network per IP version: one provider's range, so that two keys on one machine have one vote."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def kind_of(connections: Sequence[Multiaddr], me_dialable: bool, remote_dialable: bool) -> PathKind | None:
    """Return the kind of path; None: not connected. A direct path between two undialable peers goes through a punched
    hole.
    """
    if not connections:
        return None
    direct = [address for address in connections if not address.is_relayed]
    if not direct:
        return "relayed"
    is_near = any(address.ip is not None and address.ip.is_private for address in direct)
    return "direct" if me_dialable or remote_dialable or is_near else "punched"


def choose_relays(
    members: Iterable[PeerRecord], addresses: dict[PeerId, list[str]], avoided: Collection[PeerId]
) -> dict[PeerId, str]:
    """Choose at most `MAX_RELAYS` publicly dialable members, seeds first, with an address of each.

    libp2p makes relay addresses only from public addresses.
    """
    ranked = sorted(members, key=lambda record: (record.peer_id in avoided, record.role != "seed", record.peer_id))
    chosen = {}
    for record in ranked:
        public = [address for address in addresses.get(record.peer_id, []) if is_public(parse_multiaddr(address))]
        if record.reachable and public:
            chosen[record.peer_id] = public[0]
    return dict(list(chosen.items())[:MAX_RELAYS])


def is_public(address: Multiaddr) -> bool:
    """Return whether an address is an IP address routed on the internet, and not a relayed one."""
    return address.ip is not None and address.ip.is_global and not address.is_relayed


def networks_of(addresses: Iterable[Multiaddr]) -> frozenset[Network]:
    """Return the networks of public addresses."""
    ips = {address.ip for address in addresses if address.ip is not None and is_public(address)}
    return frozenset(ipaddress.ip_network((ip, NETWORK_BITS[ip.version]), strict=False) for ip in ips)


def by_turns(members: Iterable[PeerId], networks: Mapping[PeerId, frozenset[Network]]) -> list[PeerId]:
    """Return the first member of each network, then the second of each, and so on; otherwise in the given order."""
    numbers, places = Counter[frozenset[Network]](), dict[PeerId, int]()
    for member in members:
        places[member] = numbers[networks[member]]
        numbers[networks[member]] += 1
    return sorted(places, key=places.__getitem__)


def confirmed(reached: Mapping[PeerId, Sequence[str]], networks: Mapping[PeerId, frozenset[Network]]) -> list[str]:
    """Return addresses that members of enough networks have reached; one network suffices if none is known.

    Otherwise one liar could make this peer announce another machine's address, or consider itself dialable because of
    an address in its home network.

    Args:
        reached: the reached addresses of each member that answered.
        networks: the networks of each member that answered or may answer.
    """
    found = []
    for text in dict.fromkeys(text for texts in reached.values() for text in texts):
        address = parse_multiaddr(text)
        version = address.ip.version if address.ip is not None and is_public(address) else None
        able = {network for each in networks.values() for network in each if version in (None, network.version)}
        agreeing = {network for member, texts in reached.items() if text in texts for network in networks[member]}
        if not able or len(able & agreeing) >= min(NUM_CONFIRMING, len(able)):
            found.append(text)
    return found


def relays_in(addresses: Iterable[str]) -> tuple[PeerId, ...]:
    """Return the relays in a peer's addresses."""
    relays = []
    for address in map(parse_multiaddr, addresses):
        relay = address.value("p2p") if address.is_relayed else None
        if relay is not None:
            relays.append(PeerId(relay))
    return tuple(dict.fromkeys(relays))
