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
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import get_args

import numpy as np

from averaging.arrays import F32
from averaging.codec.codec import Codec
from averaging.fragment.shard_store import payload_digest
from averaging.lanes.links import ROUND_PROTOCOL
from averaging.signing.round_signatures import Notary
from averaging.wire import frames
from averaging.wire.field_checks import Limits
from averaging.wire.messages import DIGEST_BYTES, AuditShare, Commit, Contribution, Message, Offer, Result
from dht.ground.host import PeerId, Stream, StreamHandler
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.network.lines import LineSettings
from tests.simulator.scenarios.spec import Lie, LieKind

LIES_IN_FRAMES: frozenset[LieKind] = frozenset({*get_args(LieKind)[:9], "two_histories"})
"""The kinds that this module knows."""

MAX_TOLD = 256
"""Shards of lies that are remembered."""


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
    return _LyingHost(network, peer_id, line, _Tongue(peer_id, lie, codec, limits, notary, np.random.RandomState(seed)))


class _LyingHost(MemoryHost):
    def __init__(self, network: MemoryNetwork, peer_id: PeerId, line: LineSettings, tongue: _Tongue) -> None:
        super().__init__(network, peer_id, line=line)
        self._tongue = tongue

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        stream = await super().open_stream(peer_id, protocol, timeout_seconds)
        return _LyingStream(stream, spoil=self._tongue.spoil) if protocol == ROUND_PROTOCOL else stream

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        async def overheard(stream: Stream) -> None:
            await handler(_LyingStream(stream, overhear=self._tongue.overhear))

        super().handle(protocol, overheard if protocol == ROUND_PROTOCOL else handler)


class _LyingStream:
    """`spoil` is given (receiver, an honest frame) and returns the one that is sent; `overhear` hears what comes in."""

    def __init__(
        self,
        honest: Stream,
        spoil: Callable[[PeerId, bytes], bytes] = lambda remote, frame: frame,
        overhear: Callable[[bytes], None] = lambda frame: None,
    ) -> None:
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


@dataclass
class _Tongue:
    me: PeerId
    lie: Lie
    codec: Codec
    limits: Limits
    notary: Notary
    noise: np.random.RandomState
    _old: dict[int, F32] = field(default_factory=dict)
    """Per fragment, what is sent again: float32 [num_values]."""
    _first_version: dict[int, int] = field(default_factory=dict)
    _told: OrderedDict[tuple[int, int, int, int], bytes] = field(default_factory=OrderedDict)

    def spoil(self, remote: PeerId, frame: bytes) -> bytes:
        """The frame that is sent in place of an honest one."""
        message, payload = frames.decode(frame, PeerId("a liar"), self.limits)
        if self.lie.kind == "two_histories":
            is_mine = isinstance(message, Commit) and message.leader == self.me
            return self._other_history(message) if is_mine and sha256(remote.encode()).digest()[0] % 2 else frame
        if self.lie.kind == "forged_tokens":
            if not isinstance(message, Offer):
                return frame
            return frames.encode(replace(message, tokens=round(self.lie.scale * message.tokens)))
        if not isinstance(message, Contribution | AuditShare):
            return frame
        false = self._same_payload(message, bytes(payload))
        if message.signature:
            message = replace(message, signature=self.notary.sign_contribution(message, payload_digest(false)))
        return frames.encode(message) + false

    def _other_history(self, message: Message) -> bytes:
        """The commit without its first mean; where there is only one, after another commit than it was."""
        assert isinstance(message, Commit)
        results = [index for index, shard in enumerate(message.shards) if shard.digest]
        if len(results) < 2:
            return frames.encode(self.notary.sign_commit(replace(message, previous=b"\x01" * DIGEST_BYTES)))
        shards = list(message.shards)
        shards[results[0]] = replace(shards[results[0]], digest=b"", included=(), signature=b"")
        return frames.encode(self.notary.sign_commit(replace(message, shards=tuple(shards))))

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
        if self.lie.kind != "copied":
            return
        message, payload = frames.decode(frame, PeerId("a liar"), self.limits)
        if isinstance(message, Result):
            self._values_of(message.fragment)[message.start : message.end] = self._decoded(
                message.end - message.start, bytes(payload)
            )

    def _values_of(self, fragment: int) -> F32:
        return self._old.setdefault(fragment, np.zeros(self.limits.fragment_sizes[fragment], dtype=np.float32))

    def _decoded(self, num_values: int, payload: bytes) -> F32:
        values: F32 = np.empty(num_values, dtype=np.float32)
        self.codec.decode(self.codec.unpack(num_values, payload), values)
        return values

    def _false_payload(self, message: Contribution | AuditShare, payload: bytes) -> bytes:
        kind, codec = self.lie.kind, self.codec
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
            length = self.lie.scale * math.sqrt(np.square(values, dtype=np.float64).mean())
            if kind == "random":
                # Uniform: of 24 bits each, so that they are float32 numbers.
                values[:] = self.noise.randint(0, 2**24, values.size, dtype=np.uint32)
                values *= 2.0**-23
                values -= 1.0
                values *= 3**0.5 * length
            else:
                values.fill(length)
        else:
            values *= -self.lie.scale if kind == "sign_flipped" else self.lie.scale
        return b"".join(bytes(part) for part in codec.encode(values).pack())


def _infinite(codec: Codec, payload: bytes) -> bytes:
    """The payload with an infinite number in front: a scale, or a value where there are no scales."""
    pattern = b"\x80\x7f" if codec.name != "fp32" else b"\x00\x00\x80\x7f"
    return pattern + payload[len(pattern) :]
