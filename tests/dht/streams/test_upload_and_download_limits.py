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
    URGENT_BYTES,
    Pace,
    Paces,
    RateLimits,
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


@given(takes=st.lists(st.integers(1, 10**6), min_size=1, max_size=60))
def test_whoever_always_wants_more_gets_all_of_the_rate(takes: Sequence[int]) -> None:
    rate, now = 1e5, 0.0
    bucket = TokenBucket(rate, now)
    for num_bytes in takes:
        now += bucket.take(num_bytes, now)
    # The last bytes passed when those before them were paid.
    assert now == pytest.approx(max(0.0, (sum(takes[:-1]) - rate * BURST_SECONDS) / rate))


def test_a_clock_that_stands_still_earns_nothing() -> None:
    bucket = TokenBucket(1000.0, 5.0)
    assert bucket.take(500 + 1000 * BURST_SECONDS, 5.0) == 0
    assert bucket.take(0, 5.0) == pytest.approx(0.5)
    assert bucket.take(0, 4.0) == pytest.approx(0.5)
    assert bucket.take(0, 5.501) == 0


def test_without_a_limit_there_is_nothing_to_wait_for() -> None:
    paces = RateLimits(1e6, None).paces(Clock())
    assert (paces.upload and paces.upload.is_free, paces.download and paces.download.is_free) == (False, True)

    async def run() -> float:
        clock = Clock()
        pace = Pace(None, clock, clock.sleep)
        for _ in range(1000):
            await pace.let_pass(1_000_000)
            pace.count(1_000_000)
        return clock.now

    assert asyncio.run(run()) == 0


def test_a_pace_counts_what_has_passed_whether_it_waited_or_not() -> None:
    async def run() -> None:
        clock = Clock()
        pace = Pace(None, clock, clock.sleep)
        await pace.let_pass(1000)
        pace.count(10)
        pace.follow(1000)
        passing = asyncio.gather(*(pace.let_pass(1000) for _ in range(3)))
        await asyncio.sleep(0)
        assert pace.passed_bytes < 4010
        await passing
        assert pace.passed_bytes == 4010

    asyncio.run(run())


def test_a_pace_follows_its_line() -> None:
    async def run() -> float:
        clock = Clock()
        pace = Pace(None, clock, clock.sleep)
        pace.follow(1_000_000)
        for _ in range(100):
            await pace.let_pass(10_000)
        pace.follow(4_000_000)
        for _ in range(400):
            await pace.let_pass(10_000)
        return clock.now

    assert asyncio.run(run()) == pytest.approx(2.0, rel=0.05)


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


@pytest.mark.parametrize("num_bytes", [0, 1, URGENT_BYTES, URGENT_BYTES + 1, 300_000])
def test_paced_frames_arrive_as_they_were(num_bytes: int) -> None:
    clock = Clock()
    paces = Paces(Pace(MBIT, clock, clock.sleep), Pace(MBIT, clock, clock.sleep))
    frame = bytes(index % 251 for index in range(num_bytes))

    async def check(near: FramedStream, far: FramedStream) -> None:
        await asyncio.gather(near.send(frame), far.send(frame))
        assert await far.receive(num_bytes) == frame
        assert await near.receive(num_bytes) == frame

    on_pair(paces, check)


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
