"""IPv4 addresses that daemons do not pass on, and their announcement as names. Pure.

Two peers that have met a third one learn each other's addresses from it. The third peer filters announced addresses
(libp2p's identify): over loopback it keeps all, over a private network all but loopback addresses, and otherwise only
public addresses. The ranges below are neither private nor public. So no peer would learn an address of a peer connected
from them, and streams to it would fail ("routing: not found").

Names count as public addresses, and no name server is asked about a name that is a number. So such an address is
announced as a name, and converted back when it is read (`multiaddr.py`).
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
"""Each range was tested with three daemons that had only one such address. Addresses of carrier-grade NAT, of a link
without a server, of docker's bridges and all of IPv6 are passed on."""


def is_odd(address: Multiaddr) -> bool:
    """Return whether daemons do not pass this address on."""
    return isinstance(address.ip, ipaddress.IPv4Address) and any(address.ip in one for one in _ODD_RANGES)


def announceable(address: Multiaddr) -> str:
    """Return the address as the daemon should announce it: special ones as names."""
    return f"/dns4{str(address).removeprefix('/ip4')}" if is_odd(address) else str(address)


def must_announce(visible: Iterable[Multiaddr]) -> Sequence[Multiaddr]:
    """Return the addresses to announce instead of `visible`, which a daemon has found; empty if those are passed on.

    A daemon with given addresses announces none that it finds later. So addresses are given only if all its IPv4
    addresses are special.
    """
    outside = [address for address in visible if not address.is_loopback and not address.is_relayed]
    ipv4 = [address for address in outside if isinstance(address.ip, ipaddress.IPv4Address)]
    return outside if ipv4 and all(map(is_odd, ipv4)) else ()
