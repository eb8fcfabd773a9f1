"""Limits of connections to the page: their number, how long they may be idle, how many requests they may send.

A connection costs a descriptor and some memory. So there are at most as many as the descriptor limit allows beside
files and swarm, a part of them for one address. A client that sends no request in time, or takes nothing of an answer,
is cut off. When all places are taken, one of the address with the most connections makes room: the one that has waited
longest for a request. The server of aiohttp limits headers and idle time (`server_options`).

Behind a reverse proxy everybody comes from its address. With `proxies` the limits per address are of those that the
proxy names in ``X-Forwarded-For``, and it may hold all places.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from aiohttp import web

from dht.ground.bounded_dictionary import Newest

MAX_RESERVED: Final = 256
"""Descriptors that stay for the history, the network to the swarm (`dht.pylibp2p.connections.MAX_CONNECTIONS`) and
files; of small limits half."""
MAX_CONNECTIONS: Final = 4096
PARTS_PER_ADDRESS: Final = 4
"""One address gets a quarter: a school behind one router, and not everything."""
MAX_CLIENTS: Final = 4096
"""Addresses whose requests are counted; those that were quiet longest are forgotten first, which costs nothing."""

log = logging.getLogger("dashboard.http")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """How many visitors, and how fast, the page takes.

    Attributes:
        num_connections: open at the same time.
        num_per_address: of them, from one address.
        idle_seconds: for the whole head of a request, the first or the next one.
        send_seconds: in which something of an answer must have been taken, until all that waits is gone.
        requests_per_second: per address, over time; the page takes one every two seconds, without scripts one in five.
        num_burst: that may come at once: a classroom opens the page.
    """

    num_connections: int
    num_per_address: int
    idle_seconds: float = 20.0
    send_seconds: float = 30.0
    requests_per_second: float = 20.0
    num_burst: int = 400

    @property
    def num_viewers(self) -> int:
        """Open event streams, so that the page itself stays reachable when they are all taken."""
        return self.num_connections * 3 // 4


def limits_for(max_descriptors: int) -> DoorLimits:
    """What fits a process that may have so many files open."""
    reserved = min(MAX_RESERVED, max_descriptors // 2)
    num = max(8, min(MAX_CONNECTIONS, max_descriptors - reserved))
    return DoorLimits(num, max(2, num // PARTS_PER_ADDRESS))


def own_limits() -> DoorLimits:
    """What fits this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits_for(MAX_CONNECTIONS * 2 if soft == resource.RLIM_INFINITY else soft)


def client_address(text: str) -> str:
    """An address as it is counted: of IPv6 its network, since a home has 2^64 of them; "" for none."""
    address = _address_of(text)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return "" if address is None else str(address)


def _address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Without its zone, and as IPv4 where it is one in IPv6; None: it is none."""
    try:
        address = ipaddress.ip_address(text.strip().partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@dataclass(slots=True, eq=False)
class _Place:
    """One connection."""

    address: str
    transport: asyncio.Transport
    since: float
    """When it began to wait for a request."""
    num_requests: int = 0
    """Under way."""


@dataclass
class Viewers:
    """Open event streams of all runs that are shown. When all are taken, the address with most of them makes room for
    one with fewer.
    """

    num_of: Counter[str] = field(default_factory=Counter)
    """By who reads them."""
    _open: dict[asyncio.Transport, str] = field(default_factory=dict)
    """Oldest first."""

    def admit(self, client: str, stream: asyncio.Transport, most: int) -> bool:
        """Whether `client` may read one more, where there may be `most`; who is let in is to `leave` in any case."""
        if client and self.num_of[client] >= max(1, most // PARTS_PER_ADDRESS):
            return False
        if len(self._open) >= most:
            largest, num = self.num_of.most_common(1)[0]
            if num <= self.num_of[client] + 1:
                return False
            oldest = next(other for other, of in self._open.items() if of == largest)
            self.leave(oldest)
            oldest.abort()
        self._open[stream] = client
        self.num_of[client] += 1
        return True

    def leave(self, stream: asyncio.Transport) -> None:
        """It is over."""
        client = self._open.pop(stream, None)
        if client is not None:
            self.num_of[client] -= 1
            if not self.num_of[client]:
                del self.num_of[client]


@dataclass
class Doors:
    """Counts connections and requests. `clock` gives seconds that only grow."""

    limits: DoorLimits
    clock: Callable[[], float]
    proxies: Sequence[Network] = ()
    viewers: Viewers = field(default_factory=Viewers)
    _places: dict[asyncio.BaseTransport, _Place] = field(default_factory=dict)
    _num_of: Counter[str] = field(default_factory=Counter)
    _buckets: Newest[str, tuple[float, float]] = field(default_factory=lambda: Newest(MAX_CLIENTS))
    """Per address: (requests that it may still send, when that was so)."""

    @property
    def server_options(self) -> dict[str, Any]:
        """What aiohttp's server is told: short lines, no waiting for heads, and none for bodies that nobody reads."""
        return {
            "keepalive_timeout": self.limits.idle_seconds,
            "lingering_time": 1.0,
            "max_line_size": 4096,
            "max_field_size": 4096,
            "logger": log,
        }

    def door(self, inner: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """A factory of protocols for a listening socket, in front of `inner`."""
        return lambda: _Door(self, inner)

    def is_proxy(self, address: str) -> bool:
        found = _address_of(address)
        return found is not None and any(found in network for network in self.proxies)

    def client_of(self, request: web.Request) -> str:
        """The sender of a request: the last address before our proxies, as those name it; "" when they name none."""
        # Some proxies add a line of their own below those of the visitor.
        lines = request.headers.getall("X-Forwarded-For", ()) if self.proxies else ()
        told = ",".join(lines).split(",")
        at = request.remote or ""
        while told and self.is_proxy(at):
            at = told.pop().strip()
        return "" if self.is_proxy(at) else client_address(at)

    def admit(self, transport: asyncio.Transport) -> bool:
        """Whether a new connection may stay; somebody who waits may have to go for it."""
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        address = client_address(host)
        if not self.is_proxy(host) and self._num_of[address] >= self.limits.num_per_address:
            log.warning(
                "%s has %d connections open, the most that one address gets; those that send no request are closed, "
                "then new ones (is it your reverse proxy? then say --proxy %s)",
                address,
                self._num_of[address],
                host,
            )
            if not self._make_room(address):
                return False
        if len(self._places) >= self.limits.num_connections:
            log.warning(
                "all %d connections are taken; those that send no request are closed, then new ones", len(self._places)
            )
            if not self._make_room():
                return False
        self._places[transport] = _Place(address, transport, self.clock())
        self._num_of[address] += 1
        return True

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """The connection is gone."""
        place = self._places.pop(transport, None)
        if place is not None:
            self._num_of[place.address] -= 1
            if not self._num_of[place.address]:
                del self._num_of[place.address]

    def begin(self, request: web.Request) -> bool:
        """A request has come; False: its address sends too many. `end` is to follow in any case."""
        place = self._places.get(request.transport) if request.transport is not None else None
        if place is not None:
            place.num_requests += 1
        client = self.client_of(request)
        if not client:
            return True
        now, limits = self.clock(), self.limits
        left, at = self._buckets.pop(client, (float(limits.num_burst), now))
        left = min(float(limits.num_burst), left + (now - at) * limits.requests_per_second)
        self._buckets[client] = (max(0.0, left - 1.0), now)
        return left >= 1.0

    def end(self, request: web.Request) -> None:
        """It is answered."""
        place = self._places.get(request.transport) if request.transport is not None else None
        if place is not None:
            place.num_requests -= 1
            place.since = self.clock()

    def _make_room(self, address: str | None = None) -> bool:
        """Close the connection that has waited longest for a request: of `address`, or of who has most of them."""
        waiting = [
            place
            for place in self._places.values()
            if not place.num_requests and (address is None or place.address == address)
        ]
        if not waiting:
            return False
        longest = max(waiting, key=lambda place: (self._num_of[place.address], -place.since))
        self.leave(longest.transport)
        longest.transport.abort()
        return True


class _Door(asyncio.Protocol):
    """Stands between a connection and aiohttp: lets it in or not, and cuts off who takes nothing."""

    def __init__(self, doors: Doors, inner: Callable[[], asyncio.Protocol]) -> None:
        self._doors = doors
        self._make_inner = inner
        self._inner = asyncio.Protocol()
        """Does nothing until the connection is admitted."""
        self._transport: asyncio.Transport | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast(asyncio.Transport, transport)
        if not self._doors.admit(stream):
            stream.abort()
            return
        # Whatever is not with the kernel yet counts as not taken.
        stream.set_write_buffer_limits(high=0)
        self._inner = self._make_inner()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._stalled = asyncio.get_running_loop().call_later(self._doors.limits.send_seconds, self._cut_off)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._let_be()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_be()
        if self._transport is not None:
            self._doors.leave(self._transport)
        self._inner.connection_lost(exc)

    def _let_be(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _cut_off(self) -> None:
        log.info("a reader took nothing for %.0f s and is cut off", self._doors.limits.send_seconds)
        assert self._transport is not None
        # Closing would wait for it to take the rest.
        self._transport.abort()
