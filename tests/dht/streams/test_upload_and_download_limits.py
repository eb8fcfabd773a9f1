"""Upload and download limits: what passes in how long, in a time of the test's own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import PeerUnreachable
from dht.identity.keys import Identity
from dht.streams.framing import FramedStream
from dht.streams.upload_and_download_limits import (
    BURST_SECONDS,
    LINE_BYTES_PER_BYTE,
    Pace,
    Paces,
    TokenBucket,
)
from tests.kit.clock import Clock
from tests.kit.network.byte_streams import byte_stream

REMOTE = Identity.generate().peer_id
MBIT = 1e6


@given(
    rate=st.floats(1e3, 1e9),
    takes=st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 10)), min_size=1, max_size=60),
)
def test_no_more_passes_than_the_rate_and_one_burst(rate: float, takes: Sequence[tuple[int, float]]) -> None:
    bucket = TokenBucket(rate, 0.0)
    now = released_bytes = 0.0
    for num_bytes, pause in takes:
        now += pause
        free_at = now + bucket.take(num_bytes, now)
        assert released_bytes <= rate * (free_at + BURST_SECONDS) * (1 + 1e-9) + 1e-6
        released_bytes += num_bytes


def test_a_limit_comes_and_goes_while_streams_are_open() -> None:
    async def run() -> list[float]:
        clock = Clock()
        whole = Pace(None, clock, clock.sleep)
        line = Pace(None, clock, clock.sleep, within=whole)
        took = []
        for limit in (None, 8 * MBIT, None):
            whole.limit(limit)
            assert line.is_free == (limit is None)
            before = clock.now
            for _ in range(100):
                await line.let_pass(10_000)
            took.append(clock.now - before)
        assert whole.passed_bytes == line.passed_bytes == 3_000_000
        return took

    before, limited, after = asyncio.run(run())
    assert (before, after) == (0, 0)
    assert limited == pytest.approx(1_000_000 * LINE_BYTES_PER_BYTE / MBIT, rel=0.05)


def on_pair(paces: Paces, check: Callable[[FramedStream, FramedStream], Awaitable[None]]) -> None:
    """Run `check` with a stream under `paces`, and the unlimited one at its other end."""

    async def run() -> None:
        ends = socket.socketpair()
        near = FramedStream(await byte_stream(ends[0]), REMOTE, paces)
        far = FramedStream(await byte_stream(ends[1]), REMOTE)
        try:
            async with asyncio.timeout(20):
                await check(near, far)
        finally:
            await asyncio.gather(near.close(), far.close())

    asyncio.run(run())


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_bulk_takes_as_long_as_the_limit_says(direction: str) -> None:
    clock = Clock()
    pace = Pace(8 * MBIT, clock, clock.sleep)
    frame = bytes(2_000_000)

    async def check(near: FramedStream, far: FramedStream) -> None:
        sender, receiver = (near, far) if direction == "upload" else (far, near)
        sending = asyncio.create_task(sender.send(frame))
        assert await receiver.receive(len(frame)) == frame
        await sending

    on_pair(Paces(**{direction: pace}), check)
    assert clock.now == pytest.approx(len(frame) * LINE_BYTES_PER_BYTE / MBIT, rel=0.1)


def test_a_plan_does_not_wait_behind_bulk() -> None:
    clock = Clock()
    pace = Pace(MBIT, clock, clock.sleep)

    async def check(near: FramedStream, far: FramedStream) -> None:
        pace.count(10_000_000)
        await near.send(b"plan")
        assert await far.receive(4) == b"plan"
        assert clock.now == 0.0

    on_pair(Paces(upload=pace), check)


def test_a_paced_receive_that_is_given_up_loses_nothing() -> None:
    clock = Clock()
    pace = Pace(MBIT, clock, clock.sleep)
    frame = bytes(index % 251 for index in range(100_000))

    async def check(near: FramedStream, far: FramedStream) -> None:
        half = len(frame) // 2
        far._channel.write(len(frame).to_bytes(4, "big") + frame[:half])
        receiving = asyncio.create_task(near.receive(len(frame)))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert 0 < len(near._received) <= half
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        far._channel.write(frame[half:])
        assert await near.receive(len(frame)) == frame

    on_pair(Paces(download=pace), check)


def test_a_stream_that_ends_within_a_paced_frame_says_so() -> None:
    clock = Clock()

    async def check(near: FramedStream, far: FramedStream) -> None:
        far._channel.write((100_000).to_bytes(4, "big") + bytes(50_000))
        await far._channel.drain()
        await far.close()
        with pytest.raises(PeerUnreachable, match="in the middle of a frame"):
            await near.receive(100_000)

    on_pair(Paces(download=Pace(MBIT, clock, clock.sleep)), check)
