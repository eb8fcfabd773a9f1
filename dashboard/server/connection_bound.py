"""Limits of the server on open connections and event streams.

Each connection costs a descriptor, and history, swarm and files need some too. The reverse proxy in front of a public
page limits single addresses and slow requests (`docs/organiser/nginx.conf`).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

MAX_RESERVED: Final = 256
"""Descriptors reserved for the history, the network to the swarm (`dht.pylibp2p.connections.MAX_CONNECTIONS`) and
files; with a low limit, half of it."""
MAX_CONNECTIONS: Final = 4096
SEND_SECONDS: Final = 30.0
"""A reader that receives nothing for this long is disconnected."""

log = logging.getLogger("dashboard.http")


@dataclass
class ConnectionBound:
    """Counts connections and event streams of all displayed runs."""

    num_connections: int
    """Highest number of open connections."""
    num_streams: int = 0
    """Number of open event streams."""

    @property
    def max_streams(self) -> int:
        """Fewer than connections, so that the page stays reachable when all streams are taken."""
        return self.num_connections * 3 // 4

    def protocols(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """Return a factory of protocols: `server`'s below the limit, otherwise protocols that close at once."""
        return lambda: server() if len(server.connections) < self.num_connections else _Full(self.num_connections)


def bound_for(max_descriptors: int) -> ConnectionBound:
    """Return the limits for a process that may open `max_descriptors` files."""
    reserved = min(MAX_RESERVED, max_descriptors // 2)
    return ConnectionBound(max(8, min(MAX_CONNECTIONS, max_descriptors - reserved)))


def own_bound() -> ConnectionBound:
    """Return the limits for this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return bound_for(MAX_CONNECTIONS * 2 if soft == resource.RLIM_INFINITY else soft)


def cut_off_stalled(listener: asyncio.Server, seconds: float) -> None:
    """Make the kernel close connections of `listener` whose reader receives nothing for `seconds`."""
    # Only on Linux; elsewhere such connections count against the limit until they end.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        for listening in listener.sockets:
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


class _Full(asyncio.Protocol):
    """Closes its connection, because the limit is reached."""

    def __init__(self, num_connections: int) -> None:
        self._num_connections = num_connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        log.warning("all %d connections are taken; new ones are closed", self._num_connections)
        cast(asyncio.Transport, transport).abort()
