"""Small simulated networks and a handler that keeps what arrives, for the tests of memory hosts."""

from __future__ import annotations

import asyncio
from typing import Any

from dht.ground.errors import PeerFault
from dht.ground.host import PeerId, Stream, StreamHandler
from dht.identity.keys import peer_id_of
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.network.lines import LineSettings

TALK = "/murmuration/test/talk/1"
MIB = 1024 * 1024
LATENCY = 0.05


def named(number: int) -> PeerId:
    return peer_id_of(number.to_bytes(32, "big"))


def now() -> float:
    return asyncio.get_running_loop().time()


def fixed_network(**options: Any) -> MemoryNetwork:
    defaults: dict[str, Any] = {"upload_bits_per_second": 8e6, "download_bits_per_second": 80e6}
    return MemoryNetwork(1, latency_seconds=(LATENCY, LATENCY), **{**defaults, **options})


class Inbox:
    """A handler that keeps what arrives, with its time."""

    def __init__(self) -> None:
        self.frames: list[tuple[float, PeerId, bytes]] = []
        self.end: PeerFault | None = None
        self.ended = asyncio.Event()

    async def __call__(self, stream: Stream) -> None:
        try:
            while True:
                frame = await stream.receive(64 * MIB)
                self.frames.append((now(), stream.remote, frame))
        except PeerFault as fault:
            self.end = fault
            raise
        finally:
            self.ended.set()


async def talker(network: MemoryNetwork, inbox: StreamHandler, **line: float) -> tuple[MemoryHost, MemoryHost, Stream]:
    """(caller, called, the caller's stream) for a fresh network."""
    caller, called = MemoryHost(network, named(1), LineSettings(**line)), MemoryHost(network, named(2))
    called.handle(TALK, inbox)
    return caller, called, await caller.open_stream(named(2), TALK, 10.0)
