"""The donor's side of state transfer: answers members that ask for anchors, digests or old commits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from averaging import wire
from averaging.links import Doorkeeper, greet_incoming
from averaging.snapshots import HeldSnapshot, HeldSnapshots, NoRoom, SnapshotCompute, StateSource, compute_inline
from averaging.state_messages import (
    ACKNOWLEDGE,
    BUSY,
    FRAME_SECONDS,
    KNOWN_AROUND,
    MAX_RANGE_CHUNKS,
    MAX_REQUEST_BYTES,
    MAX_TRANSFERS,
    MAX_TRANSFERS_PER_PEER,
    NONE,
    QUEUE_SECONDS,
    STATE_PROTOCOL,
    chunks_of,
    in_time,
    pack,
    unpack,
)
from dht.errors import PeerFault
from dht.host import Host, PeerId, Stream


class StateServer:
    """Serves this peer's state to members that ask.

    Args:
        compute: where the digests of a snapshot are computed.
        most_bits_per_second: what all transfers together may take of the line now.
        max_transfers: pieces that are served at once.
    """

    def __init__(
        self,
        host: Host,
        doorkeeper: Doorkeeper,
        source: StateSource,
        num_fragments: int,
        compute: SnapshotCompute = compute_inline,
        most_bits_per_second: Callable[[], float] = lambda: math.inf,
        max_transfers: int = MAX_TRANSFERS,
    ) -> None:
        self._most_bits_per_second = most_bits_per_second
        self._free_at = 0.0
        self._doorkeeper = doorkeeper
        self._source = source
        self._num_fragments = num_fragments
        self._snapshots = HeldSnapshots(source, compute)
        self._slots = asyncio.Semaphore(max_transfers)
        self._num_transfers: dict[PeerId, int] = {}
        self.served_bytes = 0
        host.handle(STATE_PROTOCOL, self._serve)

    @property
    def held_bytes(self) -> int:
        """Memory of the snapshots that are being served."""
        return self._snapshots.num_bytes

    async def _serve(self, stream: Stream) -> None:
        await greet_incoming(stream, self._doorkeeper)
        used: list[HeldSnapshot] = []
        is_done = False
        try:
            frame = await in_time(stream.receive(MAX_REQUEST_BYTES), stream.remote)
            while frame != ACKNOWLEDGE:
                await self._answer(stream, unpack(frame, stream.remote, 6), used)
                frame = await in_time(stream.receive(MAX_REQUEST_BYTES), stream.remote)
            is_done = True
        finally:
            for held in used:
                self._snapshots.end(held, is_done=is_done)

    async def _answer(self, stream: Stream, request: list[Any], used: list[HeldSnapshot]) -> None:
        """Answer one request; copies of which this stream takes chunks are added to `used`."""
        match request:
            case ["digest", int(fragment), int(version)] if self._is_well_formed(fragment, version):
                await stream.send(pack(["digest", self._source.digest_at(fragment, version)]))
            case ["commits", int(fragment), int(version)] if self._is_well_formed(fragment, version):
                commits = self._source.commits_from(fragment, version)
                await stream.send(pack(["commits", *[wire.encode(commit) for commit in commits]]))
            case ["log", int(fragment), int(version)] if self._is_well_formed(fragment, version):
                await in_time(stream.send(pack(["log", *self._source.commit_frames(fragment, version)])), stream.remote)
            case ["header", int(fragment)] if self._is_well_formed(fragment):
                await self._send_header(stream, fragment)
            case ["chunks", int(fragment), int(version), bytes(digest), int(first), int(count)] if (
                self._is_well_formed(fragment, version, first, count) and 0 < count <= MAX_RANGE_CHUNKS
            ):
                await self._send_range(stream, fragment, version, digest, range(first, first + count), used)
            case ["state", int(fragment)] if self._is_well_formed(fragment):
                async with self._slots:
                    await self._send_state(stream, fragment, used)
            case [str(), int(fragment), *_] if fragment >= self._num_fragments:
                raise PeerFault(stream.remote, f"asked for fragment {fragment}; expected 0..{self._num_fragments - 1}")
            case _:
                raise PeerFault(
                    stream.remote, f"sent a state request of unknown form {request!r:.60}; expected a kind and numbers"
                )

    def _is_well_formed(self, fragment: int, *others: int) -> bool:
        return fragment < self._num_fragments and all(
            type(value) is int and value >= 0 for value in (fragment, *others)
        )

    async def _send_header(self, stream: Stream, fragment: int) -> None:
        try:
            held = await self._snapshots.newest(fragment)
        except NoRoom:
            await stream.send(BUSY)
            return
        await in_time(stream.send(NONE if held is None else _header_frame("header", held)), stream.remote)

    async def _send_range(
        self, stream: Stream, fragment: int, version: int, digest: bytes, part: range, used: list[HeldSnapshot]
    ) -> None:
        remote = stream.remote
        if self._num_transfers.get(remote, 0) >= MAX_TRANSFERS_PER_PEER:
            await stream.send(BUSY)
            return
        self._num_transfers[remote] = self._num_transfers.get(remote, 0) + 1
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            await stream.send(BUSY)
        else:
            try:
                await self._send_held_range(stream, fragment, version, digest, part, used)
            finally:
                self._slots.release()
        finally:
            self._num_transfers[remote] -= 1
            if not self._num_transfers[remote]:
                del self._num_transfers[remote]

    async def _send_held_range(
        self, stream: Stream, fragment: int, version: int, digest: bytes, part: range, used: list[HeldSnapshot]
    ) -> None:
        try:
            held = await self._snapshots.at(fragment, version, digest)
        except NoRoom:
            await stream.send(BUSY)
            return
        if held is None:
            await stream.send(pack(["version", self._newest_version(fragment, version)]))
            return
        self._begin(held, used)
        chunks = chunks_of(held.snapshot.anchor, held.snapshot.momentum)
        if part.stop > len(chunks):
            raise PeerFault(stream.remote, f"asked for chunk {part.stop - 1}; expected 0..{len(chunks) - 1}")
        await in_time(stream.send(pack(["chunks"])), stream.remote)
        for index in part:
            await self._send_chunk(stream, chunks[index])

    def _begin(self, held: HeldSnapshot, used: list[HeldSnapshot]) -> None:
        if not any(held is other for other in used):
            used.append(held)
            self._snapshots.begin(held)

    def _newest_version(self, fragment: int, version: int) -> int:
        """The newest version known here that is not far above `version`; 0 when there is none."""
        around = range(version + KNOWN_AROUND, max(-1, version - KNOWN_AROUND), -1)
        return next((known for known in around if self._source.digest_at(fragment, known)), 0)

    async def _send_state(self, stream: Stream, fragment: int, used: list[HeldSnapshot]) -> None:
        try:
            held = await self._snapshots.newest(fragment)
        except NoRoom:
            await stream.send(BUSY)
            return
        if held is None:
            await stream.send(NONE)
            return
        self._begin(held, used)
        await stream.send(_header_frame("state", held))
        for chunk in chunks_of(held.snapshot.anchor, held.snapshot.momentum):
            await self._send_chunk(stream, chunk)

    async def _send_chunk(self, stream: Stream, chunk: memoryview) -> None:
        now = asyncio.get_running_loop().time()
        begins_at = max(now, self._free_at)
        self._free_at = begins_at + 8 * len(chunk) / self._most_bits_per_second()
        if begins_at > now:
            # A joiner that sees nothing for longer takes this donor for dead.
            await asyncio.sleep(min(begins_at - now, FRAME_SECONDS / 2))
        await in_time(stream.send(chunk), stream.remote)
        self.served_bytes += len(chunk)


def _header_frame(kind: str, held: HeldSnapshot) -> bytes:
    snapshot = held.snapshot
    return pack([kind, snapshot.version, snapshot.lineage_tokens, b"".join(held.chunk_digests)])
