"""Yamux against remotes that keep to nothing, on a channel in memory."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.pylibp2p import yamux
from dht.pylibp2p.yamux import MAX_QUEUED_REPLIES, WINDOW_BYTES, Yamux, YamuxStream

DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


class Pipe:
    """One end of a channel; what is written comes out at `other`."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._unsent = bytearray()
        self._changed = asyncio.Event()
        self._ended = False
        self.may_drain = asyncio.Event()
        self.may_drain.set()
        self.other = self

    @classmethod
    def pair(cls) -> tuple[Pipe, Pipe]:
        one, other = cls(), cls()
        one.other, other.other = other, one
        return one, other

    async def readexactly(self, num_bytes: int) -> bytes:
        while len(self._received) < num_bytes:
            await self._more()
        return self._take(num_bytes)

    async def read_some(self, max_bytes: int) -> bytes:
        while not self._received:
            await self._more()
        return self._take(max_bytes)

    def write(self, data: bytes) -> None:
        self._unsent += data

    async def drain(self) -> None:
        self.other._received += self._unsent
        self._unsent.clear()
        self.other._changed.set()
        await self.may_drain.wait()

    def end(self) -> None:
        self.other._ended = True
        self.other._changed.set()

    async def _more(self) -> None:
        if self._ended:
            raise EOFError
        self._changed.clear()
        await self._changed.wait()

    def _take(self, max_bytes: int) -> bytes:
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        return data


def frame(kind: int, flags: int, stream_id: int, value: int, data: bytes = b"") -> bytes:
    return struct.pack(">BBHII", 0, kind, flags, stream_id, value) + data


class Scene:
    """A muxer under test, and the raw end of the remote that it dialled."""

    def __init__(self) -> None:
        own, self.remote = Pipe.pair()
        self.own = own
        self.muxer = Yamux(own)
        self.running = asyncio.ensure_future(self.muxer.run())

    async def send(self, *frames: bytes) -> None:
        for data in frames:
            self.remote.write(data)
        await self.remote.drain()

    async def next_frame(self) -> tuple[int, int, int, int, bytes]:
        _, kind, flags, stream_id, value = struct.unpack(">BBHII", await self.remote.readexactly(12))
        return kind, flags, stream_id, value, await self.remote.readexactly(value if kind == DATA else 0)

    async def stream(self) -> YamuxStream:
        stream = await self.muxer.open()
        assert await self.next_frame() == (WINDOW_UPDATE, SYN, 1, 0, b"")
        await self.send(frame(WINDOW_UPDATE, ACK, 1, 0))
        return stream


def on_scene(check: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene()
        try:
            async with asyncio.timeout(30):
                await check(scene)
        finally:
            scene.running.cancel()
            await asyncio.gather(scene.running, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_a_remote_that_oversteps_its_window_loses_the_connection() -> None:
    async def check(scene: Scene) -> None:
        stream = await scene.stream()
        half = bytes(WINDOW_BYTES // 2)
        await scene.send(frame(DATA, 0, 1, len(half), half), frame(DATA, 0, 1, len(half), half))
        await scene.send(frame(DATA, 0, 1, 1, b"x"))
        assert "1 bytes in a window of 0" in await scene.running
        # What came within the window can still be read.
        assert len(await stream.readexactly(WINDOW_BYTES)) == WINDOW_BYTES
        with pytest.raises(ConnectionResetError):
            await stream.readexactly(1)

    on_scene(check)


def test_the_length_of_a_frame_is_checked_before_its_bytes_are_read() -> None:
    async def check(scene: Scene) -> None:
        await scene.stream()
        await scene.send(frame(DATA, 0, 1, 2**32 - 1))
        assert "4294967295 bytes" in await scene.running

    on_scene(check)


def test_a_reader_that_waits_for_much_grants_that_much_and_no_more() -> None:
    async def check(scene: Scene) -> None:
        stream = await scene.stream()
        wanted = 4 * WINDOW_BYTES
        reading = asyncio.ensure_future(stream.readexactly(wanted))
        kind, _, _, granted, _ = await scene.next_frame()
        assert (kind, granted) == (WINDOW_UPDATE, wanted)
        payload = bytes(range(256)) * (wanted // 256)
        await scene.send(frame(DATA, 0, 1, wanted, payload))
        assert await reading == payload

    on_scene(check)


def test_a_sender_waits_for_the_window_however_long() -> None:
    async def check(scene: Scene) -> None:
        stream = await scene.stream()
        stream.write(bytes(WINDOW_BYTES + 1))
        sending = asyncio.ensure_future(stream.drain())
        num_bytes = 0
        while num_bytes < WINDOW_BYTES:
            num_bytes += (await scene.next_frame())[3]
        assert num_bytes == WINDOW_BYTES
        assert not sending.done()
        await scene.send(frame(WINDOW_UPDATE, 0, 1, 1))
        assert (await scene.next_frame())[3] == 1
        await sending

    on_scene(check)


def test_streams_that_a_remote_opens_are_reset() -> None:
    async def check(scene: Scene) -> None:
        await scene.send(frame(WINDOW_UPDATE, SYN, 2, 0))
        assert (await scene.next_frame())[:3] == (WINDOW_UPDATE, RST, 2)
        assert scene.muxer.num_streams == 0

    on_scene(check)


def test_a_flood_of_pings_without_reading_the_answers_ends_the_connection() -> None:
    async def check(scene: Scene) -> None:
        scene.own.may_drain.clear()
        await scene.send(*(frame(PING, SYN, 0, number) for number in range(3 * MAX_QUEUED_REPLIES)))
        assert "flood" in await scene.running

    on_scene(check)


def test_pings_are_answered_and_data_for_a_closed_stream_is_refused() -> None:
    async def check(scene: Scene) -> None:
        stream = await scene.stream()
        await scene.send(frame(PING, SYN, 0, 77))
        assert await scene.next_frame() == (PING, ACK, 0, 77, b"")
        stream.close()
        await stream.wait_closed()
        assert (await scene.next_frame())[:3] == (WINDOW_UPDATE, FIN, 1)
        await scene.send(frame(DATA, 0, 1, 5, b"hello"))
        assert (await scene.next_frame())[:3] == (WINDOW_UPDATE, RST, 1)
        assert scene.muxer.num_streams == 0

    on_scene(check)


@pytest.mark.parametrize(
    "frames",
    [
        frame(DATA, 0, 1, 0)[:4] + bytes(1) + b"GET / HTTP",
        b"\1" + frame(PING, SYN, 0, 1)[1:],
        frame(9, 0, 0, 0),
        frame(DATA, 0, 99, 2**31),
        frame(GO_AWAY, 0, 0, 0),
    ],
    ids=["text", "version", "type", "huge for nobody", "goodbye"],
)
def test_nonsense_ends_the_connection_and_its_streams(frames: bytes) -> None:
    async def check(scene: Scene) -> None:
        stream = await scene.muxer.open()
        await scene.send(frames, bytes(64))
        scene.remote.end()
        assert await scene.running
        assert not scene.muxer.is_open
        with pytest.raises(ConnectionResetError):
            await stream.readexactly(1)
        with pytest.raises(ConnectionResetError):
            await scene.muxer.open()

    on_scene(check)


def test_a_silent_remote_is_pinged_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamux, "KEEPALIVE_SECONDS", 0.02)

    async def check(scene: Scene) -> None:
        assert (await scene.next_frame())[:2] == (PING, SYN)
        assert "silent" in await scene.running

    on_scene(check)


@given(st.binary(max_size=400))
def test_no_bytes_do_more_than_end_the_connection(content: bytes) -> None:
    async def check(scene: Scene) -> None:
        await scene.send(frame(WINDOW_UPDATE, SYN, 1, 0), content)
        scene.remote.end()
        assert await scene.running

    on_scene(check)
