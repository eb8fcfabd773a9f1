"""Liars of the simulator: peers that train and follow the protocol, but do not send what they worked out.

A liar is honest software on a lying host: what it sends is exchanged on its way out, so that the rest of it, which has
no idea, keeps its own books right. Only its own contributions and offers are touched.

- sign_flipped: the work turned round, times `scale`; scaled: the work times `scale`;
- random: noise, `scale` times as long as the work; nan: bytes that decode to no numbers;
- forged_tokens: honest work, offered with `scale` times its tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from averaging import wire
from averaging.codec import Codec
from averaging.encoded import EncodedBlocks
from averaging.links import ROUND_PROTOCOL
from averaging.messages import Contribution, Offer
from averaging.wire import Limits
from dht.host import PeerId, Stream
from dht.memory_host import LineSettings, MemoryHost, MemoryNetwork
from peer.simulated_spec import Lie

Spoil = Callable[[bytes], bytes]
"""Turns one honest frame of the round protocol into the one that is sent."""


def lying_host(
    network: MemoryNetwork, peer_id: PeerId, line: LineSettings, lie: Lie, codec: Codec, limits: Limits, seed: int
) -> MemoryHost:
    """A host that lies; `seed` chooses the noise."""
    return _LyingHost(network, peer_id, line, _Tongue(lie, codec, limits, seed).spoil)


class _LyingHost(MemoryHost):
    def __init__(self, network: MemoryNetwork, peer_id: PeerId, line: LineSettings, spoil: Spoil) -> None:
        super().__init__(network, peer_id, line=line)
        self._spoil = spoil

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        """See the port."""
        stream = await super().open_stream(peer_id, protocol, timeout_seconds)
        return _LyingStream(stream, self._spoil) if protocol == ROUND_PROTOCOL else stream


class _LyingStream:
    def __init__(self, honest: Stream, spoil: Spoil) -> None:
        self._honest = honest
        self._spoil = spoil
        self._has_greeted = False

    @property
    def remote(self) -> PeerId:
        return self._honest.remote

    @property
    def bytes_sent(self) -> int:
        return self._honest.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._honest.bytes_received

    async def send(self, frame: bytes | bytearray | memoryview) -> None:
        content = bytes(frame)
        if self._has_greeted:
            content = self._spoil(content)
        self._has_greeted = True  # the first frame is the hello
        await self._honest.send(content)

    async def receive(self, max_bytes: int) -> bytes:
        return await self._honest.receive(max_bytes)

    async def close(self) -> None:
        await self._honest.close()


class _Tongue:
    def __init__(self, lie: Lie, codec: Codec, limits: Limits, seed: int) -> None:
        self._lie = lie
        self._codec = codec
        self._limits = limits
        self._generator = torch.Generator().manual_seed(seed)

    def spoil(self, frame: bytes) -> bytes:
        """The frame that is sent in place of an honest one."""
        message, payload = wire.decode(frame, PeerId("a liar"), self._limits)
        if self._lie.kind == "forged_tokens":
            if not isinstance(message, Offer):
                return frame
            return wire.encode(replace(message, tokens=round(self._lie.scale * message.tokens)))
        if not isinstance(message, Contribution):
            return frame
        return wire.encode(message) + self._false_payload(message.end - message.start, bytes(payload))

    def _false_payload(self, num_values: int, payload: bytes) -> bytes:
        if self._lie.kind == "nan":
            return b"\xff" * len(payload)
        values = torch.empty(num_values)
        codec = self._codec
        codec.decode(EncodedBlocks.unpack(codec.name, codec.block_size, num_values, payload), values)
        if self._lie.kind == "random":
            length = values.square().mean().sqrt()
            values.uniform_(-1, 1, generator=self._generator).mul_(3**0.5 * self._lie.scale * length)
        else:
            values.mul_(-self._lie.scale if self._lie.kind == "sign_flipped" else self._lie.scale)
        return b"".join(bytes(part) for part in codec.encode(values).pack())
