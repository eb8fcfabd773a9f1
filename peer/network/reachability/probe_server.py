"""The server of the probe protocol: bounded bytes, one measurement at a time, few dials (`probe_messages.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from averaging.lanes.handshake import HandshakePolicy, greet_incoming
from dht.ground.errors import LocalFault, PeerFault, PeerUnreachable
from dht.ground.fields import clean_text, pack
from dht.ground.host import PeerId, Stream
from dht.identity.multiaddr import Multiaddr
from dht.p2pd.host import P2pdHost
from dht.streams.fair_turns import FairTurns, NoTurn
from dht.streams.streams_per_remote import StreamCounts
from peer.network.reachability import probe_messages as messages

REQUEST_SECONDS: Final = 30.0
"""Time limit for one request and for the pause before it: 8 MiB at 2.3 Mbit/s. A slower client sends fewer bytes."""
WINDOW_SECONDS: Final = 60.0
MAX_BYTES_PER_PEER: Final = 32 * 1024 * 1024
"""Limit per minute: one run of `peer doctor`, which needs at most 13 MiB each way."""
MAX_BYTES_IN_ALL: Final = 64 * 1024 * 1024
"""Limit per minute: 8.5 Mbit/s of a member's bandwidth if clients ask all the time. Each client has half of what
the others have left, so that two of them do not use up the minute of a third."""
WAIT_SECONDS: Final = 5.0
"""Longest wait for a turn to measure; then the client gets the answer busy."""
MAX_STREAMS_PER_PEER: Final = 4
"""A client uses one stream; the others are those that it has just closed."""
MAX_DIALLING: Final = 3
"""Clients dialled at once: each needs a daemon per address, 40 MB and 0.3 s of one core."""
DIAL_PAUSE_SECONDS: Final = 2.0
"""Pause between two dials for any clients."""
OWN_DIAL_PAUSE_SECONDS: Final = 3 * DIAL_PAUSE_SECONDS
"""Pause between two dials for the same client, which leaves two of three turns for others."""
MAX_ASKERS: Final = 256
"""Number of clients whose usage is recorded; more within a minute are refused until the next minute."""

Dial = Callable[[Sequence[str]], Awaitable[dict[str, str]]]
"""Dials addresses from a fresh connection; returns address -> error, empty if the address answered."""


@dataclass(eq=False)
class ProbeServer:
    """Answers measurement requests of members and observers.

    Attributes:
        dial: dials from a fresh connection.
        wall_clock: unix seconds.
        clock: seconds that never go back.
    """

    host: P2pdHost
    handshake_policy: HandshakePolicy
    dial: Dial
    wall_clock: Callable[[], float]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._streams = StreamCounts(MAX_STREAMS_PER_PEER)
        self._turns = FairTurns(1, 1)
        self._dialled_at: dict[PeerId, float] = {}
        self._window_from = self.clock()
        self._used: dict[PeerId, int] = {}
        self._next_dial_at = self.clock()
        self._num_dialling = 0
        self.host.handle(messages.PROBE_PROTOCOL, self._serve)

    async def _serve(self, stream: Stream) -> None:
        try:
            with self._streams.one_more(stream.remote):
                await greet_incoming(stream, self.handshake_policy)
                # No overall limit: each request has its own, and libp2p has no half-close, so the client closes.
                while True:
                    async with asyncio.timeout(REQUEST_SECONDS):
                        request = messages.unpacked(await stream.receive(messages.MAX_PROBE_FRAME_BYTES), stream.remote)
                    async with asyncio.timeout(REQUEST_SECONDS):
                        await self._answer(stream, request)
        except TimeoutError as error:
            raise PeerUnreachable(stream.remote, f"measured for more than {REQUEST_SECONDS:.0f} s") from error

    async def _answer(self, stream: Stream, request: list[Any]) -> None:
        match request:
            case ["clock"]:
                await stream.send(pack(["clock", self.wall_clock()]))
            case ["give" | "take" as kind, num_bytes] if messages.is_amount(num_bytes):
                measure = self._give if kind == "give" else self._take
                try:
                    async with self._turns.turn(
                        stream.remote, lambda: stream.bytes_sent + stream.bytes_received, WAIT_SECONDS
                    ):
                        wait_seconds = self._wait_seconds(stream.remote, num_bytes)
                        if not wait_seconds:
                            await measure(stream, num_bytes)
                            return
                except NoTurn:
                    wait_seconds = 1.0
                await stream.send(pack(["busy", max(1.0, wait_seconds)]))
            case ["dial", addresses]:
                await self._dial_back(stream, messages.read_addresses(addresses, stream.remote))
            case _:
                raise PeerFault(stream.remote, f"sent a probe of unknown form {request!r:.60}; expected a known kind")

    async def _give(self, stream: Stream, num_bytes: int) -> None:
        await stream.send(pack(["give", num_bytes]))
        await send_pieces(stream, num_bytes)

    async def _take(self, stream: Stream, num_bytes: int) -> None:
        await stream.send(pack(["take", num_bytes]))
        await take_pieces(stream, num_bytes)
        await stream.send(pack(["took", num_bytes]))

    async def _dial_back(self, stream: Stream, named: list[Multiaddr]) -> None:
        now = self.clock()
        self._dialled_at = {asker: at for asker, at in self._dialled_at.items() if now - at < OWN_DIAL_PAUSE_SECONDS}
        own_next_at = self._dialled_at.get(stream.remote, -math.inf) + OWN_DIAL_PAUSE_SECONDS
        if now < max(own_next_at, self._next_dial_at) or self._num_dialling >= MAX_DIALLING:
            await stream.send(pack(["busy", max(1.0, own_next_at - now, self._next_dial_at - now)]))
            return
        self._next_dial_at = now + DIAL_PAUSE_SECONDS
        self._dialled_at[stream.remote] = now
        self._num_dialling += 1
        outcomes: dict[str, str] = {}
        seen: Sequence[Multiaddr] = []
        try:
            # A daemon that fails to start here proves nothing about the client.
            with contextlib.suppress(LocalFault):
                seen = (await self.host.connections()).get(stream.remote, [])
                if wanted := messages.to_dial(seen, named, stream.remote):
                    outcomes = await self.dial(wanted)
        finally:
            self._num_dialling -= 1
        told = [[address, clean_text(why, messages.MAX_REASON_LENGTH)] for address, why in outcomes.items()]
        await stream.send(pack(["dialled", [str(address) for address in seen][: len(named)], told]))

    def _wait_seconds(self, remote: PeerId, num_bytes: int) -> float:
        """Return the seconds until `remote` may transfer `num_bytes`; if it may now, return 0 and count them."""
        now = self.clock()
        if now - self._window_from >= WINDOW_SECONDS:
            self._window_from = now
            self._used.clear()
        used = self._used.get(remote, 0)
        is_known = remote in self._used or len(self._used) < MAX_ASKERS
        left_by_others = MAX_BYTES_IN_ALL - (sum(self._used.values()) - used)
        if not is_known or used + num_bytes > min(MAX_BYTES_PER_PEER, left_by_others // 2):
            return WINDOW_SECONDS - (now - self._window_from)
        self._used[remote] = used + num_bytes
        return 0.0


async def send_pieces(stream: Stream, num_bytes: int) -> None:
    """Send `num_bytes` bytes for a measurement."""
    for start in range(0, num_bytes, messages.PIECE_BYTES):
        await stream.send(bytes(min(messages.PIECE_BYTES, num_bytes - start)))


async def take_pieces(stream: Stream, num_bytes: int) -> None:
    """Receive `num_bytes` bytes.

    Raises:
        PeerFault: a frame is empty.
    """
    while num_bytes > 0:
        frame = await stream.receive(messages.PIECE_BYTES)
        if not frame:
            raise PeerFault(stream.remote, "sent an empty frame to measure with")
        num_bytes -= len(frame)
