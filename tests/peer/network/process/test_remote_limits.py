"""Memory for each remote, IP versions to listen on, and the upload for newcomers."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.lanes.links import Traffic
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import PeerId
from dht.streams.framing import FramedStream
from dht.streams.remote_memory import RemoteMemory
from dht.streams.streams_per_remote import MAX_INCOMING_STREAMS_PER_PEER
from dht.streams.upload_and_download_limits import URGENT_BYTES
from peer.network.node.node import bits_for_newcomers
from tests.kit.network.byte_streams import byte_stream
from tests.kit.network.memory_networks import named

BUDGET = 1_000_000
FRAME = BUDGET // 2 - 100
"""One fits beside small ones, two do not."""


@given(sizes=st.lists(st.integers(1, BUDGET // 2), min_size=1, max_size=40), seed=st.integers(0, 2**32))
def test_frames_under_way_stay_within_the_budget_and_all_get_their_turn(sizes: list[int], seed: int) -> None:
    async def scene() -> None:
        memory, chance = RemoteMemory(BUDGET), random.Random(seed)
        reading: list[int] = []

        async def read(num_bytes: int) -> None:
            await memory.reserve(named(1), num_bytes)
            reading.append(num_bytes)
            assert sum(size for size in reading if size > URGENT_BYTES) <= memory.frame_bytes
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            reading.remove(num_bytes)
            memory.release(named(1), num_bytes)

        tasks = [asyncio.ensure_future(read(size)) for size in sizes]
        cancelled = chance.sample(range(len(tasks)), len(tasks) // 3)
        waits_only = [task for index, task in enumerate(tasks) if index not in cancelled]
        await asyncio.sleep(0)
        for index in cancelled:
            # Only one that still waits: a reader that has its turn gives it back itself.
            if sizes[index] not in reading:
                tasks[index].cancel()
        await asyncio.gather(*waits_only)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert memory.used_bytes(named(1)) == 0

    asyncio.run(scene())


def test_a_frame_that_never_fits_is_a_fault_until_more_is_allowed() -> None:
    async def scene() -> None:
        memory = RemoteMemory(BUDGET)
        with pytest.raises(PeerFault, match="announced a frame of 600000 bytes; expected at most 500000"):
            await memory.reserve(named(1), 600_000)
        memory.raise_to(2 * BUDGET)
        memory.raise_to(1)
        await memory.reserve(named(1), 600_000)
        assert memory.used_bytes(named(1)) == 600_000

    asyncio.run(scene())


@pytest.mark.parametrize("megabytes", [4, 256, 4096])
def test_read_buffers_take_at_most_the_other_half(megabytes: int) -> None:
    memory = RemoteMemory(megabytes * 10**6)
    smallest = 2 * 16 * 1024 * MAX_INCOMING_STREAMS_PER_PEER
    assert 2 * memory.read_buffer_bytes * MAX_INCOMING_STREAMS_PER_PEER <= max(megabytes * 10**6 // 2, smallest)


async def _stream(memory: RemoteMemory, remote: PeerId) -> tuple[FramedStream, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    return FramedStream(await byte_stream(ours, memory.read_buffer_bytes), remote, None, memory), theirs


def test_a_remote_with_a_large_frame_under_way_waits_with_the_next_and_others_do_not() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        memory = RemoteMemory(BUDGET)
        first, first_end = await _stream(memory, named(1))
        second, second_end = await _stream(memory, named(1))
        other, other_end = await _stream(memory, named(2))
        half_read = asyncio.ensure_future(first.receive(BUDGET))
        # Announced and then held back: the oldest way to keep somebody's memory.
        await loop.sock_sendall(first_end, struct.pack(">I", FRAME) + bytes(1000))
        while memory.used_bytes(named(1)) == 0:  # noqa: ASYNC110 (nothing here signals)
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(second.receive(BUDGET))
        pushing = asyncio.ensure_future(loop.sock_sendall(second_end, struct.pack(">I", FRAME) + bytes(FRAME)))
        await loop.sock_sendall(other_end, struct.pack(">I", 20_000) + bytes(20_000))
        assert len(await other.receive(BUDGET)) == 20_000
        assert not waiting.done()
        assert memory.used_bytes(named(1)) == FRAME
        # Small frames pass all the same, and a reader that gives up keeps its place in the stream.
        await loop.sock_sendall(other_end, struct.pack(">I", 3) + b"ok!")
        assert await other.receive(3) == b"ok!"
        await first.close()
        with pytest.raises(PeerUnreachable):
            await half_read
        assert len(await waiting) == FRAME
        await pushing
        assert memory.used_bytes(named(1)) == 0
        for stream, end in ((second, second_end), (other, other_end)):
            await stream.close()
            end.close()
        first_end.close()

    asyncio.run(scene())


class Lanes:
    """What `bits_for_newcomers` reads of the links."""

    def __init__(self, upload_bits_per_second: float, has_bulk_waiting: bool) -> None:
        self.traffic = Traffic(upload_bits_per_second=upload_bits_per_second)
        self.has_bulk_waiting = has_bulk_waiting


@pytest.mark.parametrize(
    ("limit", "rate", "is_busy", "allowed"),
    [
        (math.inf, 10e6, False, math.inf),
        (math.inf, 10e6, True, 5e6),
        (math.inf, 0.0, True, math.inf),
        (2e6, 10e6, False, 2e6),
        (2e6, 10e6, True, 2e6),
        (8e6, 10e6, True, 5e6),
    ],
)
def test_newcomers_get_no_more_than_the_cap_and_half_the_line_during_rounds(
    limit: float, rate: float, is_busy: bool, allowed: float
) -> None:
    assert bits_for_newcomers(limit, Lanes(rate, is_busy)) == allowed  # type: ignore[arg-type]
