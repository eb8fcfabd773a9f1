"""A simulated host with an upload limit of its owner's, as `P2pdHost` keeps it: small frames never wait behind data."""

from __future__ import annotations

import asyncio

from dht.ground.host import PeerId, Stream
from dht.streams.upload_and_download_limits import URGENT_BYTES, Pace
from tests.simulator.network.host import MemoryHost


class LimitedStream:
    """A stream of such a host."""

    def __init__(self, stream: Stream, pace: Pace) -> None:
        self._stream = stream
        self._pace = pace

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    async def send(self, frame: bytes | bytearray | memoryview) -> None:
        """See the port."""
        if len(frame) <= URGENT_BYTES:
            self._pace.count(len(frame))
        else:
            for start in range(0, len(frame), self._pace.piece_bytes):
                await self._pace.let_pass(min(self._pace.piece_bytes, len(frame) - start))
        await self._stream.send(frame)


def limit_uploads(host: MemoryHost, bits_per_second: float) -> None:
    """From now on the streams of `host` share this limit."""
    pace = Pace(bits_per_second, lambda: asyncio.get_running_loop().time())
    open_stream, handle = host.open_stream, host.handle

    async def opened(peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        return LimitedStream(await open_stream(peer_id, protocol, timeout_seconds), pace)  # type: ignore[return-value]

    def handled(protocol, handler):
        async def limited(stream: Stream) -> None:
            await handler(LimitedStream(stream, pace))

        handle(protocol, limited)

    host.open_stream, host.handle = opened, handled  # type: ignore[method-assign]
