"""Multiaddrs: the text form for people and the binary form for the libp2p daemon. Pure.

Only protocols that can occur in addresses of this software are known (multiformats specification, table
``multicodec``). Addresses with other protocols are refused as text, and skipped when they come from the network.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import base58

from dht.ground.delimited import decode_varint, delimited, encode_varint
from dht.ground.errors import UsageFault
from dht.ground.host import PeerId
from dht.identity.keys import public_key_of

MAX_MULTIADDR_LENGTH: Final = 1024
"""A relayed address with two PeerIds and a long DNS name has about 400 characters."""


def _port_bytes(text: str) -> bytes:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        raise ValueError(f"{text[:80]!r} is not a port from 0 to 65535")
    return int(text).to_bytes(2, "big")


def _host_name(text: str) -> str:
    if not text or not text.isprintable() or len(text) > 253:
        raise ValueError(f"{text[:80]!r} is not a host name")
    return text


def _peer(text: str) -> str:
    public_key_of(text)
    return text


@dataclass(frozen=True, slots=True)
class _Kind:
    """Conversions of values between both forms. Each raises ValueError for invalid values.

    `num_bytes`: length of all values; None: the length precedes the value.
    """

    to_bytes: Callable[[str], bytes]
    to_text: Callable[[bytes], str]
    num_bytes: int | None = None


_NONE = _Kind(lambda _: b"", lambda _: "", 0)
_IP4 = _Kind(lambda text: ipaddress.IPv4Address(text).packed, lambda data: str(ipaddress.IPv4Address(data)), 4)
_IP6 = _Kind(lambda text: ipaddress.IPv6Address(text).packed, lambda data: str(ipaddress.IPv6Address(data)), 16)
_PORT = _Kind(_port_bytes, lambda data: str(int.from_bytes(data, "big")), 2)
_NAME = _Kind(lambda text: _host_name(text).encode(), lambda data: _host_name(data.decode()))
_PEER = _Kind(lambda text: base58.b58decode(_peer(text)), lambda data: _peer(base58.b58encode(data).decode()))
_PATH = _Kind(lambda text: text.encode(), lambda data: data.decode())

_PROTOCOLS: Final[dict[str, tuple[int, _Kind]]] = {
    "ip4": (4, _IP4),
    "tcp": (6, _PORT),
    "ip6": (41, _IP6),
    "dns": (53, _NAME),
    "dns4": (54, _NAME),
    "dns6": (55, _NAME),
    "dnsaddr": (56, _NAME),
    "udp": (273, _PORT),
    "p2p-circuit": (290, _NONE),
    "unix": (400, _PATH),
    "p2p": (421, _PEER),
    "quic": (460, _NONE),
    "quic-v1": (461, _NONE),
    "ws": (477, _NONE),
    "wss": (478, _NONE),
}
_OWN_NETWORKS: Final = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
"""Private use (RFC 1918), behind a provider's translation (RFC 6598), and unique local (RFC 4193)."""
_NAMES: Final = {code: name for name, (code, _) in _PROTOCOLS.items()}
_EXAMPLE = "expected something like /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW..."
"""Example of a dialable address."""


@dataclass(frozen=True, slots=True)
class Multiaddr:
    """A parsed multiaddr: (protocol name, value) pairs, values as text, empty for protocols without one."""

    parts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "".join(_part_text(name, value) for name, value in self.parts)

    def value(self, name: str) -> str | None:
        """Return the first value of protocol `name`, or None if it does not occur."""
        return next((value for part, value in self.parts if part == name), None)

    @property
    def peer_id(self) -> PeerId | None:
        """The PeerId at the end (in a relayed address: the destination, not the relay)."""
        return PeerId(self.parts[-1][1]) if self.parts and self.parts[-1][0] == "p2p" else None

    def without_peer_id(self) -> Multiaddr:
        """Return the address without its last `/p2p/...`."""
        return Multiaddr(self.parts[:-1]) if self.peer_id is not None else self

    def with_peer_id(self, peer_id: PeerId) -> Multiaddr:
        """Return the address with `peer_id` at its end, replacing any PeerId there."""
        return Multiaddr((*self.without_peer_id().parts, ("p2p", peer_id)))

    @property
    def transport(self) -> str | None:
        """``tcp`` or ``udp``, or None when the address has no port."""
        return next((name for name, _ in self.parts if name in ("tcp", "udp")), None)

    @property
    def port(self) -> int | None:
        text = self.value(self.transport) if self.transport else None
        return None if text is None else int(text)

    def with_port(self, port: int) -> Multiaddr:
        transport = self.transport
        return Multiaddr(tuple((name, str(port) if name == transport else value) for name, value in self.parts))

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The IP address the multiaddr starts with; None for names, relays and sockets."""
        name, value = self.parts[0]
        return ipaddress.ip_address(value) if name in ("ip4", "ip6") else None

    @property
    def is_loopback(self) -> bool:
        return self.ip is not None and self.ip.is_loopback

    @property
    def reach(self) -> int:
        """Distance from which the address can be dialled, as far as it shows: 0 this machine, 1 its own network, 2
        anywhere.
        """
        if self.ip is None:
            return 2
        is_near = self.ip.is_link_local or any(
            self.ip in net for net in _OWN_NETWORKS if net.version == self.ip.version
        )
        return 0 if self.ip.is_loopback else 1 if is_near else 2

    def on_this_machine(self) -> Multiaddr:
        """Return the address that reaches this listener from the same machine; unspecified addresses include
        loopback.
        """
        if self.ip is None or not self.ip.is_unspecified:
            return self
        return Multiaddr(((self.parts[0][0], "127.0.0.1" if self.ip.version == 4 else "::1"), *self.parts[1:]))

    @property
    def is_relayed(self) -> bool:
        return any(name == "p2p-circuit" for name, _ in self.parts)

    def to_bytes(self) -> bytes:
        return b"".join(_encode_part(name, value) for name, value in self.parts)


def parse_multiaddr(text: str, example: str = _EXAMPLE) -> Multiaddr:
    """Read the text form.

    Args:
        example: end of the error sentence.

    Raises:
        UsageFault: not a multiaddr, or one with a protocol that is not used here.
    """
    try:
        if len(text) > MAX_MULTIADDR_LENGTH:
            raise ValueError(f"{len(text)} characters")
        return _parse(text)
    except ValueError as error:
        raise UsageFault(f"{text[:120]!r} is not a multiaddr: {error}; {example}") from error


def parse_peer_multiaddr(text: str) -> tuple[PeerId, Multiaddr]:
    """Read a dialable address with a PeerId. Return the PeerId and the address without it.

    Raises:
        UsageFault: the text is not a multiaddr, does not end in `/p2p/PEER_ID`, or has nothing before that.
    """
    address = parse_multiaddr(text)
    peer_id = address.peer_id
    if peer_id is None or len(address.parts) < 2:
        raise UsageFault(
            f"{text[:120]!r} cannot be dialled; expected an address that ends in /p2p/PEER_ID such as "
            "/ip4/203.0.113.5/tcp/4001/p2p/12D3KooW...; copy the complete address from the other peer"
        )
    return peer_id, address.without_peer_id()


def multiaddr_from_bytes(data: bytes) -> Multiaddr:
    """Read the binary form.

    Raises:
        ValueError: the bytes are damaged, too long, or contain a protocol that is not used here.
    """
    if len(data) > MAX_MULTIADDR_LENGTH:
        raise ValueError(f"a binary multiaddr of {len(data)} bytes; expected at most {MAX_MULTIADDR_LENGTH}")
    parts: list[tuple[str, str]] = []
    position = 0
    while position < len(data):
        code, position = decode_varint(data, position)
        if code not in _NAMES:
            raise ValueError(f"multiaddr protocol {code}; expected one of {sorted(_NAMES)}")
        name = _NAMES[code]
        kind = _PROTOCOLS[name][1]
        if (num_bytes := kind.num_bytes) is None:
            num_bytes, position = decode_varint(data, position)
        if position + num_bytes > len(data):
            raise ValueError(f"a multiaddr that ends inside its {name}; expected {num_bytes} more bytes")
        parts.append(_plain(name, kind.to_text(data[position : position + num_bytes])))
        position += num_bytes
    return Multiaddr(tuple(parts))


def known_multiaddrs(contents: Iterable[bytes]) -> list[Multiaddr]:
    """Return the addresses of known kinds. Newer transports announce others, which is not a fault."""
    addresses = []
    for content in contents:
        with contextlib.suppress(ValueError):
            addresses.append(multiaddr_from_bytes(content))
    return addresses


def _parse(text: str) -> Multiaddr:
    if not text.startswith("/"):
        raise ValueError("it does not begin with '/'")
    words = text.rstrip("/").split("/")[1:]
    parts: list[tuple[str, str]] = []
    position = 0
    while position < len(words):
        name = "p2p" if words[position] == "ipfs" else words[position]
        if name not in _PROTOCOLS:
            raise ValueError(f"protocol {name!r} is not known")
        kind = _PROTOCOLS[name][1]
        position += 1
        if kind is _NONE:
            parts.append((name, ""))
            continue
        if position >= len(words):
            raise ValueError(f"{name} has no value")
        if kind is _PATH:
            parts.append((name, "/" + "/".join(words[position:])))
            break
        parts.append(_plain(name, kind.to_text(kind.to_bytes(words[position]))))
        position += 1
    if not parts:
        raise ValueError("it is empty")
    return Multiaddr(tuple(parts))


def _plain(name: str, value: str) -> tuple[str, str]:
    """Return a part of an address. A name that is an IP address becomes that address (`dht/p2pd/announced_addresses.py`
    writes such names).
    """
    if name in ("dns", "dns4", "dns6") and "%" not in value:
        with contextlib.suppress(ValueError):
            ip = ipaddress.ip_address(value)
            return f"ip{ip.version}", str(ip)
    return name, value


def _part_text(name: str, value: str) -> str:
    kind = _PROTOCOLS[name][1]
    if kind is _NONE:
        return f"/{name}"
    return f"/{name}{value}" if kind is _PATH else f"/{name}/{value}"


def _encode_part(name: str, value: str) -> bytes:
    code, kind = _PROTOCOLS[name]
    content = kind.to_bytes(value)
    return encode_varint(code) + (delimited(content) if kind.num_bytes is None else content)


def is_this_machine(host: str) -> bool:
    """Return whether a host name or an IP address leads each machine to itself."""
    try:
        address: Any = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().rstrip(".").rpartition(".")[2] == "localhost"
    address = getattr(address, "ipv4_mapped", None) or address
    return bool(address.is_loopback or address.is_unspecified)
