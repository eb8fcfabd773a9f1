"""`murmuration://RUN@HOST:PORT/PEERID`: a run and the addresses to join it, as one link. Pure.

Several addresses are separated by commas. `HOST:PORT/RELAY/PEERID` is reached through a relay, and an IPv6 address is
in brackets. A multiaddr without a short form (another transport than TCP) is written unchanged:

    murmuration://RUN@203.0.113.5:4001/12D3KooWA...,[2001:db8::5]:4001/12D3KooWA...
    murmuration://RUN@203.0.113.5:4001/12D3KooWR.../12D3KooWB...
    murmuration://RUN@/ip4/203.0.113.5/udp/4001/quic-v1/p2p/12D3KooWA...
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dht.ground.errors import UsageFault
from dht.identity.keys import FINGERPRINT_LENGTH, PEER_ID_LENGTH, split_run_id
from dht.identity.multiaddr import Multiaddr, parse_multiaddr, parse_peer_multiaddr

SCHEME: Final = "murmuration://"
MAX_LINK_LENGTH: Final = 4096
MAX_LINK_ADDRESSES: Final = 8
"""Addresses of about 100 characters each; more than a joiner dials at first."""

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_PLACE: Final = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")
_EXAMPLE: Final = "expected something like murmuration://RUN@203.0.113.5:4001/12D3KooW..."


@dataclass(frozen=True, slots=True)
class JoinLink:
    """A run and the addresses to join it.

    Attributes:
        run_id: NAME.FINGERPRINT.
        addresses: multiaddrs of members that end in a PeerId; empty: they are known in another way.
    """

    run_id: str
    addresses: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the link as text, which `parse_join_link` reads."""
        written = ",".join(_written(parse_multiaddr(address)) for address in self.addresses)
        return f"{SCHEME}{self.run_id}@{written}" if written else f"{SCHEME}{self.run_id}"

    @property
    def word(self) -> str:
        """The link as one word of any shell: some treat the brackets of IPv6 as a file name pattern."""
        return shlex.quote(str(self))

    @property
    def command(self) -> str:
        return f"peer join {self.word}"


def join_link(run_id: str, addresses: Iterable[str]) -> JoinLink:
    """Return a link with as many of `addresses` as it can carry, of those that are reachable from farthest.

    Addresses of a home network are included only if there are no public ones, and those of this machine only if there
    are no others.

    Raises:
        UsageFault: an address is not the multiaddr of a peer.
    """
    link = JoinLink(run_id)
    parsed = {str(address): address for address in map(parse_multiaddr, addresses)}
    farthest = max((address.reach for address in parsed.values()), default=0)
    for address in (text for text, one in parsed.items() if one.reach == farthest):
        parse_peer_multiaddr(address)
        longer = JoinLink(run_id, (*link.addresses, address))
        if "," not in address and len(longer.addresses) <= MAX_LINK_ADDRESSES and len(str(longer)) <= MAX_LINK_LENGTH:
            link = longer
    return link


def is_join_link(text: str) -> bool:
    """Return whether the text begins like a link, so that an error in it should be reported."""
    scheme = SCHEME.rstrip("/")
    return text[: len(scheme)].lower() == scheme


def parse_join_link(text: str) -> JoinLink:
    """Read a link, possibly from a stranger.

    A missing end and a wrong part give different errors, because people often copy only the first line.

    Raises:
        UsageFault: the text is not a link, too long, cut off, or without a valid run or peer; the sentence names the
            wrong part.
    """
    if len(text) > MAX_LINK_LENGTH:
        raise UsageFault(f"A link of {len(text)} characters; expected at most {MAX_LINK_LENGTH}; {_EXAMPLE}.")
    if SCHEME.startswith(text.lower()) and is_join_link(text):
        raise _cut_off(text)
    if text[: len(SCHEME)].lower() != SCHEME:
        raise UsageFault(f"{text[:80]!a} is not a link to a run; {_EXAMPLE}.")
    run_id, has_addresses, written = text[len(SCHEME) :].partition("@")
    if not has_addresses and len(run_id.partition(".")[2]) < FINGERPRINT_LENGTH:
        raise _cut_off(text)
    split_run_id(run_id)
    if not has_addresses:
        return JoinLink(run_id)
    texts = written.rstrip(",").split(",")
    if len(texts) > MAX_LINK_ADDRESSES:
        raise UsageFault(f"A link with {len(texts)} addresses; expected at most {MAX_LINK_ADDRESSES}; leave some out.")
    addresses = [_read(one) for one in texts[:-1]]
    try:
        addresses.append(_read(texts[-1]))
    except UsageFault:
        if len(texts[-1].rpartition("/")[2]) < PEER_ID_LENGTH:
            raise _cut_off(text) from None
        raise
    return JoinLink(run_id, tuple(dict.fromkeys(addresses)))


def _cut_off(text: str) -> UsageFault:
    end = f"...{text[-20:]}" if len(text) > 40 else text
    return UsageFault(
        f"The link is cut off: it ends in {end!a}; {_EXAMPLE}; copy all its lines, and put quotes around them."
    )


def _written(address: Multiaddr) -> str:
    """Return the short form, or the multiaddr if the short form would not be read back as the same address."""
    names = [name for name, _ in address.parts]
    if names[:2] not in (["ip4", "tcp"], ["ip6", "tcp"], ["dns", "tcp"]):
        return str(address)
    if names[2:] not in (["p2p"], ["p2p", "p2p-circuit", "p2p"]):
        return str(address)
    host = address.parts[0][1]
    if names[0] == "dns" and (not _HOST_NAME.fullmatch(host) or _is_ip(host)):
        return str(address)
    place = f"[{host}]" if names[0] == "ip6" else host
    peers = "/".join(value for name, value in address.parts if name == "p2p")
    return f"{place}:{address.port}/{peers}"


def _read(text: str) -> str:
    """Return a multiaddr that ends in a PeerId."""
    if text.startswith("/"):
        address = parse_multiaddr(text)
    else:
        place, *peers = text.split("/")
        found = _PLACE.fullmatch(place)
        if found is None or len(peers) not in (1, 2):
            raise UsageFault(f"{text[:80]!a} in the link is not HOST:PORT/PEERID; {_EXAMPLE}; copy the complete link.")
        host, port = found.groups()
        kind = "ip6" if host.startswith("[") else "ip4" if _is_ip(host) else "dns"
        address = parse_multiaddr(f"/{kind}/{host.strip('[]')}/tcp/{port}/p2p/" + "/p2p-circuit/p2p/".join(peers))
    parse_peer_multiaddr(str(address))
    return str(address)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
