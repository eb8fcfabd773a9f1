"""State transfer: how a late or returned peer gets the current anchors, and how anyone checks a digest.

Protocol `/murmuration/state/1`, one request per stream, after the usual hello:

    ["digest", fragment, version]            -> ["digest", digest or empty]
    ["state", fragment]                      -> ["state", version, lineage_tokens, chunk digests] + one frame per chunk
    ["commits", fragment, from_version]      -> ["commits", commit frames ...]

The chunks are the little-endian float32 bytes of A, then of m, `outer.DIGEST_CHUNK_BYTES` each. Every chunk is checked
on arrival against the digests of the header, and the header against the digest that the swarm announces, so a donor
can delay a joiner but not mislead it. The receiver ends with an acknowledgement frame (libp2p has no half-close).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgpack
import numpy as np
import torch
from torch import Tensor

from averaging import wire
from averaging.links import Doorkeeper, greet_incoming, open_greeted_stream
from averaging.messages import Commit
from averaging.outer import DIGEST_CHUNK_BYTES, chunk_digests, digest_of_chunks
from dht.errors import PeerFault, PeerUnreachable
from dht.host import Host, PeerId, Stream

STATE_PROTOCOL = "/murmuration/state/1"
MAX_REQUEST_BYTES = 256
FRAME_SECONDS = 30.0
"""For one chunk of a MiB: 280 kbit/s, slower than any line that could take part in rounds."""
MAX_TRANSFERS = 4
"""Served at once: each holds one fragment's snapshot; more joiners wait their turn or ask another donor."""
_ACKNOWLEDGE = b"ok"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One fragment's committed state at one version. Tensors: float32 [num_values]."""

    version: int
    lineage_tokens: int
    anchor: Tensor
    momentum: Tensor
    digest: bytes
    commits: tuple[Commit, ...] = ()


class StateSource(Protocol):
    """Port: what a donor can give away."""

    def snapshot(self, fragment: int) -> Awaitable[Snapshot | None]:
        """A copy of the current state (None: this peer has none yet)."""
        ...

    def digest_at(self, fragment: int, version: int) -> bytes:
        """The anchor digest this peer had at a recent version; empty when it does not know."""
        ...

    def commits_from(self, fragment: int, version: int) -> Sequence[Commit]:
        """Recent commits that left `version` or a later one, oldest first."""
        ...


class StateServer:
    """Serves this peer's state to members that ask."""

    def __init__(self, host: Host, doorkeeper: Doorkeeper, source: StateSource, num_fragments: int) -> None:
        self._doorkeeper = doorkeeper
        self._source = source
        self._num_fragments = num_fragments
        self._slots = asyncio.Semaphore(MAX_TRANSFERS)
        self.served_bytes = 0
        host.handle(STATE_PROTOCOL, self._serve)

    async def _serve(self, stream: Stream) -> None:
        await greet_incoming(stream, self._doorkeeper)
        request = _unpack(await _in_time(stream.receive(MAX_REQUEST_BYTES), stream.remote), stream.remote, 3)
        kind, arguments = request[0], request[1:]
        if not all(type(value) is int and value >= 0 for value in arguments) or not arguments:
            raise PeerFault(stream.remote, f"sent a state request {request!r:.60}; expected a kind and whole numbers")
        fragment = arguments[0]
        if fragment >= self._num_fragments:
            raise PeerFault(stream.remote, f"asked for fragment {fragment}; expected 0..{self._num_fragments - 1}")
        if kind == "digest" and len(arguments) == 2:
            await stream.send(_pack(["digest", self._source.digest_at(fragment, arguments[1])]))
        elif kind == "commits" and len(arguments) == 2:
            commits = self._source.commits_from(fragment, arguments[1])
            await stream.send(_pack(["commits", *[wire.encode(commit) for commit in commits]]))
        elif kind == "state" and len(arguments) == 1:
            async with self._slots:
                await self._send_state(stream, fragment)
        else:
            raise PeerFault(stream.remote, f"sent a state request of unknown form {request!r:.60}")
        await _in_time(stream.receive(len(_ACKNOWLEDGE)), stream.remote)

    async def _send_state(self, stream: Stream, fragment: int) -> None:
        snapshot = await self._source.snapshot(fragment)
        if snapshot is None:
            await stream.send(_pack(["none"]))
            return
        digests = chunk_digests(snapshot.anchor, snapshot.momentum)
        await stream.send(_pack(["state", snapshot.version, snapshot.lineage_tokens, b"".join(digests)]))
        for tensor in (snapshot.anchor, snapshot.momentum):
            view = _bytes_of(tensor)
            for start in range(0, len(view), DIGEST_CHUNK_BYTES):
                chunk = view[start : start + DIGEST_CHUNK_BYTES]
                await _in_time(stream.send(chunk), stream.remote)
                self.served_bytes += len(chunk)


async def fetch_digest(host: Host, doorkeeper: Doorkeeper, donor: PeerId, fragment: int, version: int) -> bytes:
    """The digest that `donor` had of this fragment at `version`; empty when it does not know.

    Raises:
        PeerFault: the donor is gone, refused, or answered nonsense.
    """
    stream = await open_greeted_stream(host, doorkeeper, donor, STATE_PROTOCOL)
    try:
        await stream.send(_pack(["digest", fragment, version]))
        answer = _unpack(await _in_time(stream.receive(MAX_REQUEST_BYTES), donor), donor, 2)
        await stream.send(_ACKNOWLEDGE)
    finally:
        await stream.close()
    if len(answer) != 2 or answer[0] != "digest" or type(answer[1]) is not bytes or len(answer[1]) not in (0, 32):
        raise PeerFault(donor, f"answered a digest request with {answer!r:.60}")
    return bytes(answer[1])


async def fetch_commits(
    host: Host, doorkeeper: Doorkeeper, donor: PeerId, fragment: int, from_version: int, limits: wire.Limits
) -> list[Commit]:
    """Recent commits of a fragment that left `from_version` or a later version, as the donor knows them.

    Raises:
        PeerFault: the donor is gone, refused, or answered nonsense.
    """
    stream = await open_greeted_stream(host, doorkeeper, donor, STATE_PROTOCOL)
    try:
        await stream.send(_pack(["commits", fragment, from_version]))
        answer = _unpack(await _in_time(stream.receive(limits.max_frame_bytes), donor), donor, 64)
        await stream.send(_ACKNOWLEDGE)
    finally:
        await stream.close()
    if answer[0] != "commits" or not all(type(frame) is bytes for frame in answer[1:]):
        raise PeerFault(donor, "answered a request for commits with something else")
    commits = [wire.decode(frame, donor, limits)[0] for frame in answer[1:]]
    return [commit for commit in commits if isinstance(commit, Commit) and commit.fragment == fragment]


async def fetch_state(
    host: Host,
    doorkeeper: Doorkeeper,
    donor: PeerId,
    fragment: int,
    num_values: int,
    on_bytes: Callable[[int], None] = lambda num_bytes: None,
) -> Snapshot | None:
    """Download a fragment's state from one donor and check every chunk. None: the donor has none yet.

    Raises:
        PeerFault: the donor is gone, refused, sent more or other bytes than its header announced, or values that are
            not finite. Nothing that was received before is used.
    """
    stream = await open_greeted_stream(host, doorkeeper, donor, STATE_PROTOCOL)
    try:
        await stream.send(_pack(["state", fragment]))
        num_chunks = 2 * -(-4 * num_values // DIGEST_CHUNK_BYTES)
        header = _unpack(await _in_time(stream.receive(64 + 32 * num_chunks), donor), donor, 4)
        if header == ["none"]:
            return None
        if (
            len(header) != 4
            or header[0] != "state"
            or not all(type(value) is int and 0 <= value < 2**60 for value in header[1:3])
            or type(header[3]) is not bytes
            or len(header[3]) != 32 * num_chunks
        ):
            raise PeerFault(donor, f"announced a state that does not fit {num_values} values")
        digests = [header[3][32 * index : 32 * (index + 1)] for index in range(num_chunks)]
        tensors = [torch.empty(num_values), torch.empty(num_values)]
        position = 0
        for tensor in tensors:
            view = _bytes_of(tensor)
            for start in range(0, len(view), DIGEST_CHUNK_BYTES):
                target = view[start : start + DIGEST_CHUNK_BYTES]
                chunk = await _in_time(stream.receive(len(target)), donor)
                if len(chunk) != len(target) or hashlib.sha256(chunk).digest() != digests[position]:
                    raise PeerFault(donor, f"sent a chunk of fragment {fragment} that does not have its digest")
                target[:] = chunk
                position += 1
                on_bytes(len(chunk))
            if not bool(torch.isfinite(tensor).all()):
                raise PeerFault(donor, f"sent values of fragment {fragment} that are not finite")
        await stream.send(_ACKNOWLEDGE)
    finally:
        await stream.close()
    return Snapshot(header[1], header[2], tensors[0], tensors[1], digest_of_chunks(digests))


async def _in_time(waiting: Awaitable[T], remote: PeerId) -> T:
    try:
        async with asyncio.timeout(FRAME_SECONDS):
            return await waiting
    except TimeoutError as error:
        raise PeerUnreachable(remote, f"sent or took nothing for {FRAME_SECONDS:.0f} s in a state transfer") from error


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.numpy().view(np.uint8).data)


def _pack(value: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def _unpack(data: bytes, remote: PeerId, most: int) -> list[Any]:
    try:
        value = msgpack.unpackb(data, raw=False, max_map_len=0, max_ext_len=0, max_array_len=most)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise PeerFault(remote, f"sent a state message that is not msgpack ({type(error).__name__})") from error
    if type(value) is not list or not value or type(value[0]) is not str:
        raise PeerFault(remote, "sent a state message that is not a list with a kind")
    return value
