"""Messages about the connection between two peers: clocks, rates, and whether the client can be dialled. Pure.

Protocol `/murmuration/probe/1`; after the usual hello, requests one after the other:

    ["clock"]             -> ["clock", unix seconds]
    ["give", num_bytes]   -> ["give", num_bytes] and that many bytes in frames of `PIECE_BYTES`
    ["take", num_bytes]   -> ["take", num_bytes]; then the asker sends that many bytes -> ["took", num_bytes]
    ["dial", addresses]   -> ["dialled", seen addresses, [[address, reason], ...]]

A member that has used up its share answers ["busy", seconds]. It dials only the IP addresses from which it sees the
client, with the ports in the request, and as a new connection. So a client cannot make it dial a third party.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

from dht.ground.errors import PeerFault, UsageFault
from dht.ground.fields import unpack
from dht.ground.host import PeerId
from dht.identity.multiaddr import MAX_MULTIADDR_LENGTH, Multiaddr, parse_multiaddr

PROBE_PROTOCOL: Final = "/murmuration/probe/1"
PIECE_BYTES: Final = 64 * 1024
MAX_MEASURED_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one measurement: more than half a second at 100 Mbit/s."""
MAX_LISTED: Final = 8
"""Most addresses in a request."""
MAX_DIALLED: Final = 4
"""Most addresses that are dialled: one per transport and IP version."""
MAX_PROBE_FRAME_BYTES: Final = 2 * MAX_LISTED * (MAX_MULTIADDR_LENGTH + 256)
MAX_REASON_LENGTH: Final = 200


def unpacked(frame: bytes, remote: PeerId) -> list[Any]:
    """Decode a frame.

    Raises:
        PeerFault: the frame is not a list that begins with a kind.
    """
    try:
        content = unpack(frame)
    except ValueError as error:
        raise PeerFault(remote, f"sent a garbled probe ({error}); expected a short list") from error
    if not isinstance(content, list) or not content or not isinstance(content[0], str):
        raise PeerFault(remote, "sent a probe of unknown form; expected a list that begins with its kind")
    return content


def is_amount(value: object) -> bool:
    """Return whether a value is an allowed number of bytes for a measurement."""
    return type(value) is int and 0 < value <= MAX_MEASURED_BYTES


def read_addresses(value: object, remote: PeerId) -> list[Multiaddr]:
    """Parse the addresses in a request or an answer.

    Raises:
        PeerFault: there are too many, or some are not addresses.
    """
    if not isinstance(value, list) or len(value) > MAX_LISTED or not all(isinstance(text, str) for text in value):
        raise PeerFault(remote, f"listed addresses in an unknown form; expected at most {MAX_LISTED} texts")
    try:
        return [parse_multiaddr(text) for text in value]
    except UsageFault as fault:
        raise PeerFault(remote, f"listed an invalid address ({fault})") from fault


def to_dial(seen: Sequence[Multiaddr], named: Sequence[Multiaddr], remote: PeerId) -> list[str]:
    """Return the addresses to dial: each requested port and transport, at the IP addresses from which `remote` is seen.

    Relayed connections are ignored, because they show the relay's address instead of the client's.
    """
    seen_ips = {address.ip for address in seen if not address.is_relayed}
    wanted = []
    for address in named:
        if address.is_relayed or address.transport is None:
            continue
        version = address.ip.version if address.ip is not None else 6 if address.parts[0][0] == "dns6" else 4
        for ip in sorted(seen_ips, key=str):
            if ip is not None and ip.version == version:
                wanted.append(str(_at(address.without_peer_id(), ip).with_peer_id(remote)))
    return list(dict.fromkeys(wanted))[:MAX_DIALLED]


def is_of_one(dialled: Multiaddr, named: Sequence[Multiaddr]) -> bool:
    """Return whether `to_dial` could have made this address from a requested one: an IP address, with the same
    remaining parts.
    """
    return dialled.ip is not None and any(dialled.parts[1:] == address.parts[1:] for address in named)


def _at(address: Multiaddr, ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Multiaddr:
    return Multiaddr(((f"ip{ip.version}", str(ip)), *address.parts[1:]))
