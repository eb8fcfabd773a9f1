"""Checks whether this machine has a route to other networks, the first cause to rule out when no peer answers."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Final

_ELSEWHERE: Final = ("198.51.100.1", "2001:db8::1")
"""Addresses assigned to no machine (RFC 5737, RFC 3849), which use the default route."""
CONNECT: Final = "connect it, by cable or wireless, and try again"
NO_NETWORK: Final = "this machine has no network connection"


def has_way_out() -> bool:
    """Whether the system has a route to external addresses; sends no packets."""
    return any(map(_has_route, _ELSEWHERE))


def has_way_to(hosts: Iterable[str]) -> bool:
    """Whether one of these IP addresses or names may be reachable: it is local, or the machine has a route to the
    internet.
    """
    return has_way_out() or any(host == "localhost" or _has_route(host) for host in hosts)


def _has_route(host: str) -> bool:
    try:
        family = socket.AF_INET if ipaddress.ip_address(host).version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
    except (OSError, ValueError):
        return False
    return True
