"""Liars of the simulator: peers that train and follow the protocol, but do not send what they worked out.

A liar is honest software on a lying host. What it sends is exchanged on its way out, so that the rest of it, which has
no idea, keeps its own books right. Only its own contributions and offers are touched.

- sign_flipped: the work turned round, times `scale`; scaled: the work times `scale`;
- random: noise, `scale` times as long as the work; constant: one number everywhere, as long as that;
- nan, inf: bytes that decode to no numbers;
- replayed: its first contribution to the fragment, again and again;
- copied: the mean of an earlier round, which others worked out;
- forged_tokens: honest work, offered with `scale` times its tokens;
- two_histories: as a leader, one commit for every other member, and a second one, signed as well, for the rest.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import get_args

import numpy as np

from averaging.arrays import F32
from averaging.codec.blocks import CODE_FORMATS
from averaging.codec.codec import Codec
from averaging.fragment.shard_store import payload_digest
from averaging.lanes.links import ROUND_PROTOCOL
from averaging.signing.notary import Notary
from averaging.wire import frames
from averaging.wire.checks import Limits
from averaging.wire.messages import DIGEST_BYTES, AuditShare, Commit, Contribution, Message, Offer, Result
from dht.host import PeerId, Stream, StreamHandler
from dht.simulated.host import MemoryHost, MemoryNetwork
from dht.simulated.lines import LineSettings
from peer.simulation.scenarios.spec import Lie, LieKind

LIES_IN_FRAMES: frozenset[LieKind] = frozenset({*get_args(LieKind)[:9], "two_histories"})
"""The kinds that this module knows."""

MAX_TOLD = 256
"""Shards of lies that are remembered."""

Spoil = Callable[[PeerId, bytes], bytes]
"""(receiver, an honest frame of the round protocol) -> the one that is sent."""
Overhear = Callable[[bytes], None]
"""Is told each frame of the round protocol that comes in."""


def lying_host(
    network: MemoryNetwork,
    peer_id: PeerId,
    line: LineSettings,
    lie: Lie,
    codec: Codec,
    limits: Limits,
    notary: Notary,
    seed: int,
) -> MemoryHost:
    """A host that lies; `seed` chooses the noise."""
    tongue = _Tongue(peer_id, lie, codec, limits, notary, seed)
    return _LyingHost(network, peer_id, line, tongue.spoil, tongue.overhear)


class _LyingHost(MemoryHost):
    def __init__(
        self, network: MemoryNetwork, peer_id: PeerId, line: LineSettings, spoil: Spoil, overhear: Overhear
    ) -> None:
        super().__init__(network, peer_id, line=line)
        self._spoil = spoil
        self._overhear = overhear

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        """See the port."""
        stream = await super().open_stream(peer_id, protocol, timeout_seconds)
        return _LyingStream(stream, self._spoil, _ignore) if protocol == ROUND_PROTOCOL else stream

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """See the port."""

        async def overheard(stream: Stream) -> None:
            await handler(_LyingStream(stream, _unchanged, self._overhear))

        super().handle(protocol, overheard if protocol == ROUND_PROTOCOL else handler)


def _ignore(frame: bytes) -> None:
    pass


def _unchanged(remote: PeerId, frame: bytes) -> bytes:
    return frame


class _LyingStream:
    def __init__(self, honest: Stream, spoil: Spoil, overhear: Overhear) -> None:
        self._honest = honest
        self._spoil = spoil
        self._overhear = overhear
        self._has_greeted = False
        self._was_greeted = False

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
        if self._has_greeted and content:
            content = self._spoil(self.remote, content)
        self._has_greeted = True  # the first frame is the hello
        await self._honest.send(content)

    async def receive(self, max_bytes: int) -> bytes:
        frame = await self._honest.receive(max_bytes)
        if self._was_greeted and frame:
            self._overhear(frame)
        self._was_greeted = True
        return frame

    async def close(self) -> None:
        await self._honest.close()


class _Tongue:
    def __init__(self, me: PeerId, lie: Lie, codec: Codec, limits: Limits, notary: Notary, seed: int) -> None:
        self._me = me
        self._notary = notary
        self._lie = lie
        self._codec = codec
        self._limits = limits
        self._noise = np.random.RandomState(seed)
        self._old: dict[int, F32] = {}
        """Per fragment, what is sent again: float32 [num_values]."""
        self._first_version: dict[int, int] = {}
        self._told: OrderedDict[tuple[int, int, int, int], bytes] = OrderedDict()

    def spoil(self, remote: PeerId, frame: bytes) -> bytes:
        """The frame that is sent in place of an honest one."""
        message, payload = frames.decode(frame, PeerId("a liar"), self._limits)
        if self._lie.kind == "two_histories":
            is_mine = isinstance(message, Commit) and message.leader == self._me
            return self._other_history(message) if is_mine and sha256(remote.encode()).digest()[0] % 2 else frame
        if self._lie.kind == "forged_tokens":
            if not isinstance(message, Offer):
                return frame
            return frames.encode(replace(message, tokens=round(self._lie.scale * message.tokens)))
        if not isinstance(message, Contribution | AuditShare):
            return frame
        false = self._same_payload(message, bytes(payload))
        if message.signature:
            message = replace(message, signature=self._notary.sign_contribution(message, payload_digest(false)))
        return frames.encode(message) + false

    def _other_history(self, message: Message) -> bytes:
        """The commit without its first mean; where there is only one, after another commit than it was."""
        assert isinstance(message, Commit)
        results = [index for index, shard in enumerate(message.shards) if shard.digest]
        if len(results) < 2:
            return frames.encode(self._notary.sign_commit(replace(message, previous=b"\x01" * DIGEST_BYTES)))
        shards = list(message.shards)
        shards[results[0]] = replace(shards[results[0]], digest=b"", included=(), signature=b"")
        return frames.encode(self._notary.sign_commit(replace(message, shards=tuple(shards))))

    def _same_payload(self, message: Contribution | AuditShare, payload: bytes) -> bytes:
        """The lie that an auditor is shown is the one that the reducer was told."""
        key = (message.fragment, message.version, message.start, message.end)
        if key not in self._told:
            self._told[key] = self._false_payload(message, payload)
            while len(self._told) > MAX_TOLD:
                self._told.popitem(last=False)
        return self._told[key]

    def overhear(self, frame: bytes) -> None:
        """Remember the means of others."""
        if self._lie.kind != "copied":
            return
        message, payload = frames.decode(frame, PeerId("a liar"), self._limits)
        if isinstance(message, Result):
            self._values_of(message.fragment)[message.start : message.end] = self._decoded(
                message.end - message.start, bytes(payload)
            )

    def _values_of(self, fragment: int) -> F32:
        return self._old.setdefault(fragment, np.zeros(self._limits.fragment_sizes[fragment], dtype=np.float32))

    def _decoded(self, num_values: int, payload: bytes) -> F32:
        values: F32 = np.empty(num_values, dtype=np.float32)
        self._codec.decode(self._codec.unpack(num_values, payload), values)
        return values

    def _false_payload(self, message: Contribution | AuditShare, payload: bytes) -> bytes:
        kind, codec = self._lie.kind, self._codec
        if kind == "nan":
            return b"\xff" * len(payload)
        if kind == "inf":
            return _infinite(codec, payload)
        values = self._decoded(message.end - message.start, payload)
        if kind in ("replayed", "copied"):
            old = self._values_of(message.fragment)[message.start : message.end]
            first = self._first_version.setdefault(message.fragment, message.version)
            if kind == "replayed" and message.version == first:
                old[:] = values
            values = old
        elif kind in ("random", "constant"):
            length = self._lie.scale * math.sqrt(np.square(values, dtype=np.float64).mean())
            if kind == "random":
                # Uniform: of 24 bits each, so that they are float32 numbers.
                values[:] = self._noise.randint(0, 2**24, values.size, dtype=np.uint32)
                values *= 2.0**-23
                values -= 1.0
                values *= 3**0.5 * length
            else:
                values.fill(length)
        else:
            values *= -self._lie.scale if kind == "sign_flipped" else self._lie.scale
        return b"".join(bytes(part) for part in codec.encode(values).pack())


def _infinite(codec: Codec, payload: bytes) -> bytes:
    """The payload with an infinite number in front: a scale, or a value where there are no scales."""
    pattern = {
        "bf16": b"\x80\x7f",
        "fp32": b"\x00\x00\x80\x7f",
        "pow2": b"\xff",
    }[codec.scale]
    if not CODE_FORMATS[codec.name].has_scales:
        pattern = b"\x00\x7c" if codec.name == "fp16" else b"\x00\x00\x80\x7f"
    return pattern + payload[len(pattern) :]
