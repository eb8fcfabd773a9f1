"""Where a peer listens unless its owner says otherwise: each IP version that this machine has, at one port."""

from __future__ import annotations

import socket
from typing import Final, Literal

IpVersion = Literal["auto", "4", "6"]

IPV4_ANYWHERE: Final = "/ip4/0.0.0.0/tcp/0"
IPV6_ANYWHERE: Final = "/ip6/::/tcp/0"


def default_listen(ip_version: IpVersion) -> tuple[str, ...]:
    """Multiaddrs with port 0; of version 6 alone even where this machine has none, so that its owner is told."""
    if ip_version == "4":
        return (IPV4_ANYWHERE,)
    if ip_version == "6":
        return (IPV6_ANYWHERE,)
    return (IPV4_ANYWHERE, IPV6_ANYWHERE) if has_ipv6() else (IPV4_ANYWHERE,)


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 address, if only its own."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
