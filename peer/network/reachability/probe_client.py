"""The client of the probe protocol: measures clock offset, rates and reachability with one member."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from averaging.lanes.handshake import HandshakePolicy, open_greeted_stream
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.fields import pack
from dht.ground.host import Host, PeerId, Stream
from dht.identity.multiaddr import Multiaddr, parse_multiaddr
from peer.network.reachability import probe_messages as messages
from peer.network.reachability.probe_server import REQUEST_SECONDS, send_pieces, take_pieces

NUM_CLOCK_READS: Final = 5
"""Number of clock reads; the one with the shortest round trip has the smallest error (RFC 5905, section 10)."""
FIRST_MEASURED_BYTES: Final = 256 * 1024
MEASURED_GROWTH: Final = 4
ENOUGH_SECONDS: Final = 0.8
"""A measurement of this length exceeds TCP's slow start on any line; shorter ones are repeated with more bytes."""


@dataclass(frozen=True, slots=True)
class DialBack:
    """The result of a member's dial to this peer from a fresh connection.

    Attributes:
        seen: addresses at which the member sees this peer.
        reached: addresses at which this peer answered, with its PeerId.
        failed: (address, reason) of each other address.
    """

    seen: tuple[Multiaddr, ...] = ()
    reached: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether any address was dialled."""
        return bool(self.reached or self.failed)


class Busy(PeerFault):
    """The member has no turn for this peer now."""


@dataclass(frozen=True, slots=True)
class Probe:
    """An open stream to a member; made by `probing`."""

    stream: Stream
    clock: Callable[[], float]
    wall_clock: Callable[[], float]

    async def read_clock(self) -> tuple[float, float]:
        """Return the member's clock minus this peer's, and the round-trip time in seconds; the error is up to half of
        that.
        """
        readings = [await self._read_clock() for _ in range(NUM_CLOCK_READS)]
        return min(readings, key=lambda reading: reading[1])

    async def download_bits_per_second(self) -> float:
        """Download growing numbers of bytes from the member, until the duration is long enough for a measurement."""
        return await self._growing(self._download_seconds)

    async def upload_bits_per_second(self) -> float:
        """Upload growing numbers of bytes to the member, which confirms their arrival."""
        return await self._growing(self._upload_seconds)

    async def dial_back(self, addresses: Sequence[str]) -> DialBack:
        """Ask the member to dial this peer, with the ports and transports of `addresses` and the IP that it sees."""
        named = list(addresses)[: messages.MAX_LISTED]
        answer = await self._ask(["dial", named])
        asked = [parse_multiaddr(address) for address in named]
        match answer:
            case ["dialled", seen, list(outcomes)] if len(outcomes) <= messages.MAX_LISTED:
                reached, failed = [], []
                for outcome in outcomes:
                    address, why = self._outcome(outcome, asked)
                    if why:
                        failed.append((address, why))
                    else:
                        reached.append(address)
                return DialBack(tuple(messages.read_addresses(seen, self.stream.remote)), tuple(reached), tuple(failed))
            case _:
                raise self._strange(answer)

    def _outcome(self, outcome: object, asked: Sequence[Multiaddr]) -> tuple[str, str]:
        match outcome:
            case [str(text), str(why)] if len(why) <= messages.MAX_REASON_LENGTH and why.isprintable():
                address = messages.read_addresses([text], self.stream.remote)[0]
                # Checked because this peer would announce the address, and its daemon does not start with every
                # address.
                if messages.is_of_one(address, asked):
                    return str(address), why
        raise self._strange(outcome)

    async def _read_clock(self) -> tuple[float, float]:
        asked_at, asked_wall = self.clock(), self.wall_clock()
        answer = await self._ask(["clock"])
        round_trip = self.clock() - asked_at
        match answer:
            case ["clock", float(told)] if abs(told) < 1e12:
                return told - (asked_wall + round_trip / 2), round_trip
            case _:
                raise self._strange(answer)

    async def _growing(self, measure: Callable[[int], Any]) -> float:
        num_bytes = FIRST_MEASURED_BYTES
        while True:
            seconds: float = await measure(num_bytes)
            if seconds >= ENOUGH_SECONDS or num_bytes >= messages.MAX_MEASURED_BYTES:
                return 8 * num_bytes / max(seconds, 1e-6)
            num_bytes = min(MEASURED_GROWTH * num_bytes, messages.MAX_MEASURED_BYTES)

    async def _download_seconds(self, num_bytes: int) -> float:
        began = await self._begin("give", num_bytes)
        async with asyncio.timeout(REQUEST_SECONDS):
            await take_pieces(self.stream, num_bytes)
        return self.clock() - began

    async def _upload_seconds(self, num_bytes: int) -> float:
        began = await self._begin("take", num_bytes)
        async with asyncio.timeout(REQUEST_SECONDS):
            await send_pieces(self.stream, num_bytes)
            took = messages.unpacked(await self.stream.receive(messages.MAX_PROBE_FRAME_BYTES), self.stream.remote)
        if took != ["took", num_bytes]:
            raise self._strange(took)
        return self.clock() - began

    async def _begin(self, kind: str, num_bytes: int) -> float:
        """Return the time at which the member agreed to transfer `num_bytes`."""
        answer = await self._ask([kind, num_bytes])
        if answer != [kind, num_bytes]:
            raise self._strange(answer)
        return self.clock()

    async def _ask(self, request: Sequence[Any]) -> list[Any]:
        async with asyncio.timeout(REQUEST_SECONDS):
            await self.stream.send(pack(request))
            answer = messages.unpacked(await self.stream.receive(messages.MAX_PROBE_FRAME_BYTES), self.stream.remote)
        match answer:
            case ["busy", int(seconds) | float(seconds)] if 0 <= seconds < 3600:
                raise Busy(self.stream.remote, f"is measuring with other peers; ask again in {seconds:.0f} s")
        return answer

    def _strange(self, answer: object) -> PeerFault:
        return PeerFault(self.stream.remote, f"answered a probe with {answer!r:.60}; expected an answer to the request")


@asynccontextmanager
async def probing(
    host: Host,
    handshake_policy: HandshakePolicy,
    member: PeerId,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
) -> AsyncIterator[Probe]:
    """Open a stream to `member` for probes.

    Raises:
        PeerFault: the member is gone, refuses this peer, sends invalid answers, or has no turn for this peer (`Busy`).
    """
    stream = await open_greeted_stream(host, handshake_policy, member, messages.PROBE_PROTOCOL)
    try:
        yield Probe(stream, clock, wall_clock)
    except TimeoutError as error:
        raise PeerUnreachable(member, f"a measurement took more than {REQUEST_SECONDS:.0f} s") from error
    finally:
        await stream.close()
