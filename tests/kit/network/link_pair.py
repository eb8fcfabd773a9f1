"""Two peers joined by links over a network in memory."""

from __future__ import annotations

import asyncio

from averaging.lanes.links import LinkPorts, Links
from averaging.wire import frames
from averaging.wire.field_checks import Limits
from averaging.wire.messages import Contribution
from dht.ground.errors import PeerUnreachable
from dht.ground.host import PeerId
from dht.streams.upload_and_download_limits import Pace
from tests.kit.network.memory_networks import named
from tests.kit.rounds.exchange_swarm import OpenDoor
from tests.simulator.network.host import MemoryHost, MemoryNetwork

A, B = named(1), named(2)
LIMITS = Limits((1_000_000,), 1_000_000)
PAYLOAD = bytes(4096)
UPLOAD_BITS_PER_SECOND = 20e6


def contribution(number):
    return frames.encode(Contribution(0, 0, 0, A, number, 1, 0, 8192, 1))


class Pair:
    """Two hosts with links; what B heard, and what A lost."""

    def __init__(self):
        self.network = network = MemoryNetwork(seed=1, upload_bits_per_second=UPLOAD_BITS_PER_SECOND)
        self.heard, self.lost, self.opened = [], [], 0
        self.changed = asyncio.Event()
        self.here = here = MemoryHost(network, A)
        self.there = MemoryHost(network, B)
        open_stream = here.open_stream

        async def counted(remote, protocol, seconds):
            self.opened += 1
            if self.opened in self.refused:
                raise PeerUnreachable(remote, "takes no more streams")
            stream = await open_stream(remote, protocol, seconds)
            send = stream.send

            async def paced(frame):
                await self.line.let_pass(len(frame))
                await send(frame)

            stream.send = paced
            return stream

        self.refused = set()
        here.open_stream = counted
        clock = asyncio.get_running_loop().time
        self.line = Pace(None, clock)
        ports = LinkPorts(self._hear, self._lose, self._lose)
        self.sending = Links(here, OpenDoor(), LIMITS, ports, clock, self.line)
        self.receiving = Links(self.there, OpenDoor(), LIMITS, ports, clock)

    def _hear(self, sender: PeerId, message, payload, num_bytes):
        self.heard.append(message)
        self.changed.set()

    def _lose(self, peer_id, reason):
        self.lost.append((peer_id, reason))
        self.changed.set()

    def post(self, count):
        for number in range(count):
            self.sending.post(B, [contribution(number), PAYLOAD], "data")

    async def until_heard(self, count):
        await self.until(lambda: len(self.heard) >= count)

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def close(self):
        await self.sending.close()
        await self.receiving.close()


def shards(messages):
    return sorted(message.shard for message in messages if isinstance(message, Contribution))
