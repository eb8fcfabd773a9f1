"""Copies of fragments that a donor keeps while joiners fetch them, shared by all of them.

A transfer takes longer than a round, so the copy must outlive its version; and ten simultaneous joiners must not cost
ten copies. At most `MAX_SNAPSHOTS` large copies exist at a time, each until no remote has requested it for
`HOLD_SECONDS`. While a remote without a copy waits for room, a copy must be worth its memory: the donor drops a copy
that is read slowly, or one of several that only the same remote uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from averaging.arrays import F32
from averaging.codec.digests import digest_of
from averaging.outer.outer_step import DIGEST_CHUNK_BYTES
from averaging.transfer.messages import FRAME_SECONDS, chunks_of
from averaging.wire.messages import Commit
from dht.ground.compute import Compute, compute_inline
from dht.ground.host import PeerId
from dht.streams.fair_turns import NoTurn

HOLD_SECONDS = 30.0
"""The longest time that a joiner may take for one chunk; after that it has given up."""
IDLE_SECONDS = 10.0
"""A copy that was not requested for this time makes room for another copy: a joiner asks again within a range or
two."""
DONE_SECONDS = 1.0
"""The same after all streams that read the copy have ended in order, because a waiting remote asks again at once."""
MAX_SNAPSHOTS = 2
"""Two fragments in turn: joiners fetch the fragments in the same order, two at a time."""
SMALL_BYTES = 32 * 1024 * 1024
"""Copies with at most this total size are not limited in number."""
LEAST_BYTES_PER_SECOND = DIGEST_CHUNK_BYTES / FRAME_SECONDS
"""Lowest rate at which a copy must be read while others wait for room: 280 kbit/s, the slowest allowed transfer."""
MOST_URGENT = 4
"""Largest factor on that rate, reached after this many times `HOLD_SECONDS` of waiting: 1.1 Mbit/s, less than a good
donor sends."""
ASKS_WITHIN_SECONDS = 10.0
"""A remote that waits for room asks again within this time: a joiner pauses for a second, and queues for five."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One fragment's committed state at one version. Arrays: float32 [num_values]."""

    version: int
    lineage_tokens: int
    anchor: F32
    momentum: F32
    digest: bytes
    commits: tuple[Commit, ...] = ()


class StateSource(Protocol):
    """Port: the state that a donor can send."""

    def snapshot(self, fragment: int) -> Awaitable[Snapshot | None]:
        """Return a copy of the current state; None if this peer has no state."""

    def digest_at(self, fragment: int, version: int) -> bytes:
        """Return this peer's anchor digest at a recent version; empty if unknown."""

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        """Return the oldest signed commits of `version` and later ones, as frames; see `CommitLog.page`."""


@dataclass(eq=False)
class HeldSnapshot:
    """A copy being served.

    Attributes:
        chunk_digests: BLAKE3 of each chunk of A, then of m.
        chunks: views of its values; empty after it was dropped, so that no transfer keeps its memory.
        num_streams: number of streams that request its chunks.
        is_done: whether the last stream ended because the joiner needed nothing more.
        asked: when each remote last requested it.
        taken_bytes: bytes read by each remote.
    """

    fragment: int
    snapshot: Snapshot
    chunk_digests: Sequence[bytes]
    chunks: list[memoryview] = field(repr=False)
    asked_at: float
    num_streams: int = 0
    is_done: bool = False
    asked: dict[PeerId, float] = field(default_factory=dict, repr=False)
    taken_bytes: dict[PeerId, int] = field(default_factory=dict, repr=False)
    expiry: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def num_bytes(self) -> int:
        return 8 * self.snapshot.anchor.size

    @property
    def useful_bytes(self) -> int:
        """Bytes that remotes have read, each byte at most once for each remote."""
        return sum(min(taken, self.num_bytes) for taken in self.taken_bytes.values())

    def askers(self, now: float) -> set[PeerId]:
        """Return the remotes that requested the copy recently."""
        return {remote for remote, at in self.asked.items() if now - at < IDLE_SECONDS}


@dataclass
class _Wait:
    """A remote without a copy that waits for room: since when, its last request, and the bytes of each copy read by
    then.
    """

    since: float
    asked_at: float
    useful_bytes: dict[HeldSnapshot, int]


class HeldSnapshots:
    """All copies of one donor."""

    def __init__(self, source: StateSource, compute: Compute = compute_inline) -> None:
        self._source = source
        self._compute = compute
        self._held: list[HeldSnapshot] = []
        self._waits: dict[PeerId, _Wait] = {}
        self._making = asyncio.Lock()

    @property
    def num_bytes(self) -> int:
        return sum(held.num_bytes for held in self._held)

    async def newest(self, fragment: int, remote: PeerId) -> HeldSnapshot | None:
        """Return a copy of the current state or, without room, the newest existing copy. None: this peer has no state.

        Raises:
            NoTurn: all room is used for other fragments; there will be room later.
        """
        async with self._making:
            copies = [held for held in self._held if held.fragment == fragment]
            newest = max(copies, key=lambda held: held.snapshot.version, default=None)
            if newest is not None and (self._is_current(newest) or not self._make_room(newest.num_bytes)):
                return self._asked(newest, remote)
            return await self._take(fragment, remote)

    async def at(self, fragment: int, version: int, digest: bytes, remote: PeerId) -> HeldSnapshot | None:
        """Return the copy with that version and digest, making it now if it is the current state. None: not here (any
        more).

        Raises:
            NoTurn: see `newest`.
        """
        async with self._making:
            for held in self._held:
                if _is_of(held, fragment, version, digest):
                    return self._asked(held, remote)
            if self._source.digest_at(fragment, version) != digest or self._source.digest_at(fragment, version + 1):
                return None
            taken = await self._take(fragment, remote)
            return taken if taken is not None and _is_of(taken, fragment, version, digest) else None

    def begin(self, held: HeldSnapshot) -> None:
        """Note that a stream begins to read the copy."""
        held.num_streams += 1

    def took(self, held: HeldSnapshot, remote: PeerId, num_bytes: int) -> None:
        """Note that a chunk of the copy was sent."""
        held.taken_bytes[remote] = held.taken_bytes.get(remote, 0) + num_bytes
        held.asked_at = held.asked[remote] = asyncio.get_running_loop().time()

    def end(self, held: HeldSnapshot, *, is_done: bool) -> None:
        """Note that a stream ended; `is_done`: because the joiner needed nothing more of the copy."""
        held.num_streams -= 1
        held.is_done = is_done and not held.num_streams

    def _is_current(self, held: HeldSnapshot) -> bool:
        version = held.snapshot.version
        is_known = self._source.digest_at(held.fragment, version) == held.snapshot.digest
        return is_known and not self._source.digest_at(held.fragment, version + 1)

    async def _take(self, fragment: int, remote: PeerId) -> HeldSnapshot | None:
        if not self._make_room(0) and not self._make_room_for(remote):
            raise NoTurn
        snapshot = await self._source.snapshot(fragment)
        if snapshot is None:
            return None
        chunks = chunks_of(snapshot.anchor, snapshot.momentum)
        digests = await self._compute(lambda: [digest_of(chunk) for chunk in chunks])
        held = HeldSnapshot(fragment, snapshot, digests, chunks, 0.0)
        for other in [other for other in self._held if _is_of(other, fragment, snapshot.version, snapshot.digest)]:
            self._drop(other)
        self._held.append(held)
        return self._asked(held, remote)

    def _make_room(self, num_bytes: int) -> bool:
        """Drop idle copies, and return whether one more copy fits."""
        now = asyncio.get_running_loop().time()
        for held in sorted(self._held, key=lambda held: held.asked_at):
            if self._fits(num_bytes):
                return True
            if now - held.asked_at >= (DONE_SECONDS if held.is_done else IDLE_SECONDS):
                self._drop(held)
        return self._fits(num_bytes)

    def _make_room_for(self, remote: PeerId) -> bool:
        """Drop a copy for a remote that has none and has waited long enough. Return whether there is room."""
        now = asyncio.get_running_loop().time()
        self._waits = {other: wait for other, wait in self._waits.items() if now - wait.asked_at < ASKS_WITHIN_SECONDS}
        if any(remote in held.askers(now) for held in self._held):
            return False
        wait = self._waits.setdefault(remote, _Wait(now, now, {held: held.useful_bytes for held in self._held}))
        wait.asked_at, waited = now, now - wait.since
        if waited < HOLD_SECONDS or any(held not in wait.useful_bytes for held in self._held):
            wait.useful_bytes |= {held: 0 for held in self._held if held not in wait.useful_bytes}
            return False
        taken = {held: held.useful_bytes - wait.useful_bytes[held] for held in self._held}
        least = min(taken, key=lambda held: taken[held])
        is_shared = self._is_kept_by_one(least, now)
        if not is_shared and taken[least] >= min(MOST_URGENT, waited / HOLD_SECONDS) * LEAST_BYTES_PER_SECOND * waited:
            return False
        del self._waits[remote]
        self._drop(least)
        return self._fits(0)

    def _is_kept_by_one(self, held: HeldSnapshot, now: float) -> bool:
        """Return whether only one remote uses this copy, and also uses another one."""
        askers = held.askers(now)
        others = [other for other in self._held if other is not held]
        return len(askers) < 2 and any(askers <= other.askers(now) for other in others)

    def _fits(self, num_bytes: int) -> bool:
        return len(self._held) < MAX_SNAPSHOTS or self.num_bytes + num_bytes <= SMALL_BYTES

    def _asked(self, held: HeldSnapshot, remote: PeerId) -> HeldSnapshot:
        loop = asyncio.get_running_loop()
        self._waits.pop(remote, None)
        held.asked_at, held.is_done = loop.time(), False
        held.asked = {other: at for other, at in held.asked.items() if held.asked_at - at < HOLD_SECONDS}
        held.asked[remote] = held.asked_at
        if held.expiry is None:
            held.expiry = loop.call_later(HOLD_SECONDS, self._expire, held)
        return held

    def _expire(self, held: HeldSnapshot) -> None:
        loop = asyncio.get_running_loop()
        left = held.asked_at + HOLD_SECONDS - loop.time()
        if left > 0:
            held.expiry = loop.call_later(left, self._expire, held)
        else:
            self._drop(held)

    def _drop(self, held: HeldSnapshot) -> None:
        if held.expiry is not None:
            held.expiry.cancel()
        self._held = [other for other in self._held if other is not held]
        nothing = held.snapshot.anchor[:0].copy()
        held.snapshot = replace(held.snapshot, anchor=nothing, momentum=nothing)
        held.chunks = []


def _is_of(held: HeldSnapshot, fragment: int, version: int, digest: bytes) -> bool:
    return (held.fragment, held.snapshot.version, held.snapshot.digest) == (fragment, version, digest)
