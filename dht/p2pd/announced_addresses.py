"""IPv4 addresses that daemons keep to themselves, and how they are written so that others hear of them. Pure.

Two peers that have met a third one learn each other's addresses from it. What a remote announces is filtered there
(libp2p's identify). Over loopback all is kept, and over a private network all but loopback addresses. Elsewhere only
addresses of the internet are. The ranges below are neither private nor of the internet. So nobody would learn any
address of a peer that is connected from there, and streams to it would fail ("routing: not found").

Names count as addresses of the internet, and no name server is asked about a name that is a number. So such an address
is announced as a name. What comes from a daemon is read back as a number (`multiaddr.py`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from dht.identity.multiaddr import Multiaddr

_ODD_RANGES: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "192.0.0.0/26",  # protocol assignments (RFC 6890)
        "192.0.2.0/24",  # documentation (RFC 5737)
        "192.88.99.0/24",  # relays from IPv6, given up (RFC 7526)
        "198.18.0.0/15",  # measurements of devices (RFC 2544)
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "240.0.0.0/4",  # reserved (RFC 1112)
    )
)
"""Each was tried with three daemons that had only one such address. Those of carrier-grade NAT, of a link without a
server, of docker's bridges and all of IPv6 are passed on."""


def is_odd(address: Multiaddr) -> bool:
    """Whether nobody would pass this address on."""
    return isinstance(address.ip, ipaddress.IPv4Address) and any(address.ip in one for one in _ODD_RANGES)


def announceable(address: Multiaddr) -> str:
    """What the daemon is told to announce: the address, an odd one as a name."""
    return f"/dns4{str(address).removeprefix('/ip4')}" if is_odd(address) else str(address)


def must_announce(visible: Iterable[Multiaddr]) -> Sequence[Multiaddr]:
    """The addresses to announce in place of `visible`, which a daemon has found; none: those are passed on.

    A daemon that is told what to announce adds nothing that it finds later. So it is told only where all of its
    IPv4 addresses are odd.
    """
    outside = [address for address in visible if not address.is_loopback and not address.is_relayed]
    ipv4 = [address for address in outside if isinstance(address.ip, ipaddress.IPv4Address)]
    return outside if ipv4 and all(map(is_odd, ipv4)) else ()
