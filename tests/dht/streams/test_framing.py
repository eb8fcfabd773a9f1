"""Frames: what was sent comes out whole and in order, or the stream ends with the right blame."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import FRAME_HEADER_BYTES
from dht.identity.keys import Identity
from dht.streams.framing import MAX_FRAME_BYTES, FramedStream, frame_header
from tests.kit.network.byte_streams import byte_stream

REMOTE = Identity.generate().peer_id
FRAMES = st.lists(st.binary(max_size=300), max_size=8)


def on_socket(check: Callable[[FramedStream, socket.socket], Awaitable[None]]) -> None:
    """Run `check` with a FramedStream and the non-blocking socket at its other end."""

    async def run() -> None:
        near, far = socket.socketpair()
        far.setblocking(False)
        with far:
            stream = FramedStream(await byte_stream(near), REMOTE)
            try:
                async with asyncio.timeout(20):
                    await check(stream, far)
            finally:
                await stream.close()

    asyncio.run(run())


@pytest.mark.parametrize("num_bytes", [-1, MAX_FRAME_BYTES + 1])
def test_a_length_beyond_32_bits_is_refused(num_bytes: int) -> None:
    with pytest.raises(ValueError, match="in parts"):
        frame_header(num_bytes)


@settings(deadline=None)
@given(frames=FRAMES, cuts=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_frames_survive_any_splitting_of_the_bytes(frames: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)

    async def check(stream: FramedStream, far: socket.socket) -> None:
        async def trickle() -> None:
            position, turn = 0, 0
            while position < len(wire):
                step = cuts[turn % len(cuts)]
                await asyncio.get_running_loop().sock_sendall(far, wire[position : position + step])
                position, turn = position + step, turn + 1
                await asyncio.sleep(0)

        trickling = asyncio.create_task(trickle())
        assert [await stream.receive(300) for _ in frames] == frames
        assert stream.bytes_received == len(wire)
        await trickling

    on_socket(check)


@settings(deadline=None)
@given(frames=FRAMES)
def test_sent_frames_are_header_and_content(frames: list[bytes]) -> None:
    wire = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)

    async def check(stream: FramedStream, far: socket.socket) -> None:
        for frame in frames:
            await stream.send(bytearray(frame))
        assert stream.bytes_sent == len(wire)
        await stream.close()
        received = b""
        while part := await asyncio.get_running_loop().sock_recv(far, 65536):
            received += part
        assert received == wire

    on_socket(check)


@settings(deadline=None)
@given(frame=st.binary(min_size=1, max_size=50), data=st.data())
def test_a_truncated_frame_is_unreachable(frame: bytes, data: st.DataObject) -> None:
    wire = len(frame).to_bytes(4, "big") + frame
    part = wire[: data.draw(st.integers(0, len(wire) - 1))]

    async def check(stream: FramedStream, far: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(far, part)
        far.close()
        with pytest.raises(PeerUnreachable) as caught:
            await stream.receive(100)
        assert caught.value.peer_id == REMOTE
        assert ("middle of a frame" in str(caught.value)) == bool(part)
        assert not stream.is_open

    on_socket(check)


@settings(deadline=None)
@given(max_bytes=st.integers(0, MAX_FRAME_BYTES - 1), data=st.data())
def test_a_frame_that_is_too_long_is_refused_by_its_header_alone(max_bytes: int, data: st.DataObject) -> None:
    announced = data.draw(st.integers(max_bytes + 1, MAX_FRAME_BYTES))

    async def check(stream: FramedStream, far: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(far, announced.to_bytes(4, "big"))
        with pytest.raises(PeerFault, match=str(announced)) as caught:
            await stream.receive(max_bytes)
        assert not isinstance(caught.value, PeerUnreachable)
        with pytest.raises(PeerUnreachable, match="has ended"):
            await stream.receive(MAX_FRAME_BYTES)

    on_socket(check)


def test_a_cancelled_receive_loses_nothing() -> None:
    async def check(stream: FramedStream, far: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for part in (b"\0\0", b"\0\5he", b"ll"):
            await loop.sock_sendall(far, part)
            receiving = asyncio.create_task(stream.receive(5))
            await asyncio.wait({receiving}, timeout=0.01)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
        await loop.sock_sendall(far, b"o")
        assert await stream.receive(5) == b"hello"

    on_socket(check)


def test_a_cancelled_send_ends_the_stream() -> None:
    async def check(stream: FramedStream, far: socket.socket) -> None:
        sending = asyncio.create_task(stream.send(bytes(64 * 1024 * 1024)))
        await asyncio.wait({sending}, timeout=0.05)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        with pytest.raises(PeerUnreachable, match="given up halfway"):
            await stream.send(b"next")

    on_socket(check)


def test_frames_of_concurrent_senders_do_not_mix() -> None:
    frames = [bytes([number]) * 700_000 for number in range(6)]

    async def check(stream: FramedStream, far: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        sending = asyncio.gather(*(stream.send(frame) for frame in frames))
        expected_bytes = sum(map(len, frames)) + FRAME_HEADER_BYTES * len(frames)
        received = bytearray()
        while len(received) < expected_bytes:
            received += await loop.sock_recv(far, 1 << 20)
        await sending
        for _ in frames:
            num_bytes = int.from_bytes(received[:FRAME_HEADER_BYTES], "big")
            frame = received[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + num_bytes]
            assert len(set(frame)) == 1
            assert num_bytes == 700_000
            del received[: FRAME_HEADER_BYTES + num_bytes]

    on_socket(check)


def test_close_wakes_a_waiting_receiver_and_is_repeatable() -> None:
    async def check(stream: FramedStream, far: socket.socket) -> None:
        receiving = asyncio.create_task(stream.receive(5))
        await asyncio.sleep(0)
        await stream.close()
        await stream.close()
        with pytest.raises(PeerUnreachable):
            await receiving
        with pytest.raises(PeerUnreachable, match="closed on this side"):
            await stream.send(b"late")

    on_socket(check)


def test_close_does_not_wait_for_a_remote_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dht.streams.framing.CLOSE_SECONDS", 0.05)

    async def check(stream: FramedStream, far: socket.socket) -> None:
        sending = asyncio.create_task(stream.send(bytes(8 * 1024 * 1024)))
        await asyncio.wait({sending}, timeout=0.02)
        assert not sending.done()
        async with asyncio.timeout(5):
            await stream.close()
        with pytest.raises(PeerUnreachable):
            await sending

    on_socket(check)


def test_a_stream_that_is_closed_while_a_frame_is_being_sent_ends_that_send():
    async def check(stream: FramedStream, far: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        sending = asyncio.create_task(stream.send(bytes(8 << 20)))
        await loop.sock_recv(far, 1)
        closing = asyncio.create_task(stream.close())
        await asyncio.sleep(0)
        # What was written before is flushed, which is what ends the transport.
        while await loop.sock_recv(far, 1 << 20):
            pass
        await closing
        with pytest.raises(PeerUnreachable):
            await sending

    on_socket(check)
