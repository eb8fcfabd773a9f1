"""The donor's side of state transfer: sends anchors, digests and old commits to members that request them.

Each resource of a remote is bounded: streams, turns, copies, time per frame. Remotes share turns and copies
(`dht/streams/fair_turns.py`, `snapshots.py`), so a remote that reads nothing does not block others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from averaging.lanes.handshake import HandshakePolicy, greet_incoming
from averaging.transfer import snapshots
from averaging.transfer.messages import (
    ACKNOWLEDGE,
    BUSY,
    FRAME_SECONDS,
    KNOWN_AROUND,
    MAX_RANGE_CHUNKS,
    MAX_REQUEST_BYTES,
    MAX_STREAMS_PER_PEER,
    MAX_TRANSFERS,
    MAX_TRANSFERS_PER_PEER,
    NONE,
    QUEUE_SECONDS,
    STATE_PROTOCOL,
    WHOLE_DIGEST_BYTES,
    in_time,
    unpack,
)
from dht.ground.compute import Compute, compute_inline
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.fields import pack
from dht.ground.host import Host, PeerId, Stream
from dht.streams.fair_turns import FairTurns, NoTurn, Turn
from dht.streams.streams_per_remote import StreamCounts

LONGEST_PAUSE_SECONDS = FRAME_SECONDS / 2
"""Longest pause before a chunk of a running transfer: a joiner waits twice as long for the chunk."""


class FileSource(Protocol):
    """Port: the files of the run that a donor sends, by their digests in the manifest."""

    def chunk_digests(self, digest: bytes) -> Sequence[bytes]:
        """Return the BLAKE3 of each chunk of a file; empty if the file is not here."""

    def chunk(self, digest: bytes, index: int) -> Awaitable[bytes]:
        """Return one chunk that matches its digest; empty if the file was damaged or removed meanwhile."""


@dataclass
class _Guest:
    """A stream being served, and the copy that it read last."""

    stream: Stream
    held: snapshots.HeldSnapshot | None = None
    num_state_bytes: int = 0
    """Bytes of state, without headers and old commits."""

    @property
    def remote(self) -> PeerId:
        return self.stream.remote

    def moved_bytes(self) -> int:
        """Return the bytes that the remote has accepted."""
        return self.stream.bytes_sent

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises PeerUnreachable if the remote does not accept it in time."""
        await in_time(self.stream.send(frame), self.remote)


class StateServer:
    """Serves this peer's state to members that request it.

    Args:
        compute: runs the computation of a snapshot's digests.
        most_bits_per_second: returns the rate that all transfers together may use now.
        on_served: called with a remote and the bytes of state that it accepted, when its stream ends.
        files: the files of the run; None: the run has none.
    """

    def __init__(
        self,
        host: Host,
        handshake_policy: HandshakePolicy,
        source: snapshots.StateSource,
        num_fragments: int,
        compute: Compute = compute_inline,
        most_bits_per_second: Callable[[], float] = lambda: math.inf,
        on_served: Callable[[PeerId, int], None] = lambda _remote, _num_bytes: None,
        files: FileSource | None = None,
    ) -> None:
        self._most_bits_per_second = most_bits_per_second
        self._free_at = 0.0
        self._on_served = on_served
        self._handshake_policy = handshake_policy
        self._source = source
        self._num_fragments = num_fragments
        self._files = files
        self._snapshots = snapshots.HeldSnapshots(source, compute)
        self._streams = StreamCounts(MAX_STREAMS_PER_PEER)
        self._transfers = FairTurns(MAX_TRANSFERS, MAX_TRANSFERS_PER_PEER)
        self._pages = FairTurns(MAX_TRANSFERS, 1)
        host.handle(STATE_PROTOCOL, self._serve)

    async def _serve(self, stream: Stream) -> None:
        with self._streams.one_more(stream.remote):
            await greet_incoming(stream, self._handshake_policy)
            guest, is_done = _Guest(stream), False
            try:
                while (frame := await in_time(stream.receive(MAX_REQUEST_BYTES), stream.remote)) != ACKNOWLEDGE:
                    await self._answer(guest, unpack(frame, stream.remote, 6))
                is_done = True
            finally:
                self._let_go(guest, is_done=is_done)
                if guest.num_state_bytes:
                    self._on_served(stream.remote, guest.num_state_bytes)

    async def _answer(self, guest: _Guest, request: list[Any]) -> None:
        match request:
            case ["digest", int(fragment), int(version)] if self._is_well_formed(fragment, version):
                await guest.send(pack(["digest", self._source.digest_at(fragment, version)]))
            case ["log", int(fragment), int(version)] if self._is_well_formed(fragment, version):
                await self._send_page(guest, fragment, version)
            case ["header", int(fragment)] if self._is_well_formed(fragment):
                await self._send_header(guest, fragment)
            case ["chunks", int(fragment), int(version), bytes(digest), int(first), int(count)] if (
                self._is_well_formed(fragment, version, first, count) and 0 < count <= MAX_RANGE_CHUNKS
            ):
                part = range(first, first + count)
                await self._in_turn(guest, lambda turn: self._send_range(guest, turn, fragment, version, digest, part))
            case ["file-header", bytes(digest)] if len(digest) == WHOLE_DIGEST_BYTES:
                joined = b"".join(self._chunk_digests(digest))
                await guest.send(pack(["file-header", joined]) if joined else NONE)
            case ["file-chunks", bytes(digest), int(first), int(count)] if (
                len(digest) == WHOLE_DIGEST_BYTES and _are_counts(first, count) and 0 < count <= MAX_RANGE_CHUNKS
            ):
                part = range(first, first + count)
                await self._in_turn(guest, lambda turn: self._send_file(guest, turn, digest, part))
            case [str(), int(fragment), *_] if fragment >= self._num_fragments:
                raise PeerFault(guest.remote, f"asked for fragment {fragment}; expected 0..{self._num_fragments - 1}")
            case _:
                raise PeerFault(
                    guest.remote, f"sent a state request of unknown form {request!r:.60}; expected a kind and numbers"
                )

    def _is_well_formed(self, fragment: int, *others: int) -> bool:
        return fragment < self._num_fragments and _are_counts(fragment, *others)

    async def _in_turn(self, guest: _Guest, send: Callable[[Turn], Coroutine[None, None, None]]) -> None:
        """Run a transfer in its turn. Without a turn or room, answer that the donor is busy."""
        try:
            async with self._transfers.turn(guest.remote, guest.moved_bytes, QUEUE_SECONDS) as turn:
                if self._wait_seconds > LONGEST_PAUSE_SECONDS:
                    # A joiner that receives nothing for longer considers this donor dead, and serving it now would
                    # exceed the limit.
                    raise NoTurn
                await send(turn)
        except NoTurn:
            await guest.send(BUSY)

    async def _send_page(self, guest: _Guest, fragment: int, version: int) -> None:
        """Send old commits: up to a MiB, one answer at a time to each remote."""
        try:
            async with self._pages.turn(guest.remote, guest.moved_bytes, FRAME_SECONDS) as turn:
                page = pack(["log", *self._source.commit_frames(fragment, version)])
                await self._pause(len(page), turn)
                await guest.send(page)
        except NoTurn as error:
            raise PeerUnreachable(guest.remote, "waited too long for its turn to read old commits") from error

    async def _send_header(self, guest: _Guest, fragment: int) -> None:
        try:
            held = await self._snapshots.newest(fragment, guest.remote)
        except NoTurn:
            await guest.send(BUSY)
            return
        if held is None:
            await guest.send(NONE)
            return
        snapshot = held.snapshot
        await guest.send(pack(["header", snapshot.version, snapshot.lineage_tokens, b"".join(held.chunk_digests)]))

    async def _send_range(
        self, guest: _Guest, turn: Turn, fragment: int, version: int, digest: bytes, part: range
    ) -> None:
        held = await self._snapshots.at(fragment, version, digest, guest.remote)
        if held is None:
            await guest.send(pack(["version", self._newest_version(fragment, version)]))
            return
        self._begin(guest, held)
        if part.stop > len(held.chunks):
            raise PeerFault(guest.remote, f"asked for chunk {part.stop - 1}; expected 0..{len(held.chunks) - 1}")
        await guest.send(pack(["chunks"]))
        for index in part:
            await self._send_next(guest, turn, held, index)

    async def _send_file(self, guest: _Guest, turn: Turn, digest: bytes, part: range) -> None:
        num_chunks = len(self._chunk_digests(digest))
        if num_chunks and part.stop > num_chunks:
            raise PeerFault(guest.remote, f"asked for chunk {part.stop - 1} of a file; expected 0..{num_chunks - 1}")
        files = self._files if num_chunks else None
        chunk = b"" if files is None else await files.chunk(digest, part.start)
        if files is None or not chunk:
            await guest.send(NONE)
            return
        await guest.send(pack(["file-chunks"]))
        for index in part:
            chunk = chunk if index == part.start else await files.chunk(digest, index)
            if not chunk:
                raise PeerUnreachable(guest.remote, "asked for a file that has since been damaged on this machine")
            await self._pause(len(chunk), turn)
            await self._send_chunk(guest.stream, memoryview(chunk))

    def _chunk_digests(self, digest: bytes) -> Sequence[bytes]:
        return () if self._files is None else self._files.chunk_digests(digest)

    def _begin(self, guest: _Guest, held: snapshots.HeldSnapshot) -> None:
        if guest.held is not held:
            self._let_go(guest, is_done=True)
            guest.held = held
            self._snapshots.begin(held)

    def _let_go(self, guest: _Guest, *, is_done: bool) -> None:
        if guest.held is not None:
            self._snapshots.end(guest.held, is_done=is_done)
        guest.held = None

    def _newest_version(self, fragment: int, version: int) -> int:
        """Return the newest known version that is not far above `version`; 0 if there is none."""
        around = range(version + KNOWN_AROUND, max(-1, version - KNOWN_AROUND), -1)
        return next((known for known in around if self._source.digest_at(fragment, known)), 0)

    async def _send_next(self, guest: _Guest, turn: Turn, held: snapshots.HeldSnapshot, index: int) -> None:
        if index >= len(held.chunks):
            raise PeerUnreachable(guest.remote, "read so slowly that its copy was dropped to make room for others")
        # A copy of the chunk: a remote that does not read then keeps only a chunk in memory, not the whole copy.
        chunk = memoryview(bytes(held.chunks[index]))
        await self._pause(len(chunk), turn)
        await self._send_chunk(guest.stream, chunk)
        guest.num_state_bytes += len(chunk)
        self._snapshots.took(held, guest.remote, len(chunk))

    async def _send_chunk(self, stream: Stream, chunk: memoryview) -> None:
        """Send one chunk. A test's donor overrides this method to lie or die at any chunk."""
        await in_time(stream.send(chunk), stream.remote)

    async def _pause(self, num_bytes: int, turn: Turn) -> None:
        """Pause to keep all transfers together within their rate."""
        loop, wait_seconds = asyncio.get_running_loop(), self._wait_seconds
        self._free_at = loop.time() + wait_seconds + 8 * num_bytes / self._most_bits_per_second()
        if wait_seconds > 0:
            await asyncio.sleep(min(wait_seconds, LONGEST_PAUSE_SECONDS))
            turn.rested(loop.time())

    @property
    def _wait_seconds(self) -> float:
        """Seconds until the line has carried the bytes that transfers have sent so far."""
        return max(0.0, self._free_at - asyncio.get_running_loop().time())


def _are_counts(*values: int) -> bool:
    return all(type(value) is int and value >= 0 for value in values)
