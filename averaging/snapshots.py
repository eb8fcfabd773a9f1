"""What a donor gives away: copies of fragments, kept while they are being fetched and shared by all who ask.

A transfer takes longer than a round, so the copy must outlive its version; and ten joiners at once must not cost ten
copies. At most `MAX_SNAPSHOTS` large copies exist at a time, each until nobody has asked for it for `HOLD_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from averaging.arrays import F32
from averaging.messages import Commit
from averaging.outer import chunk_digests

HOLD_SECONDS = 30.0
"""As long as a joiner may take for one chunk; then it has given up."""
IDLE_SECONDS = 10.0
"""Not asked for during this time, a copy makes room for another one: a joiner asks again within a range or two."""
DONE_SECONDS = 1.0
"""The same once all streams that took from it have ended in order: who was told of it meanwhile asks at once."""
MAX_SNAPSHOTS = 2
"""Two fragments in turn: joiners fetch the fragments in the same order, two at a time."""
SMALL_BYTES = 32 * 1024 * 1024
"""Copies that fit in this together are never too many."""

T = TypeVar("T")


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

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        """The oldest signed commits that left `version` or a later one, as frames; see `CommitLog.page`."""
        ...


class SnapshotCompute(Protocol):
    """Port: where heavy work runs; a thread in real life, inline in virtual time."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def compute_inline(work: Callable[[], T], /) -> T:
    """The simplest `SnapshotCompute`."""
    return work()


@dataclass
class HeldSnapshot:
    """A copy that is being served.

    Attributes:
        chunk_digests: BLAKE3 of each chunk of A, then of m.
        num_streams: on which chunks of it are asked for.
        is_done: the last of them ended because the joiner wanted nothing more.
    """

    fragment: int
    snapshot: Snapshot
    chunk_digests: Sequence[bytes]
    asked_at: float
    num_streams: int = 0
    is_done: bool = False
    expiry: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def num_bytes(self) -> int:
        return 8 * self.snapshot.anchor.size


class HeldSnapshots:
    """All copies of one donor."""

    def __init__(self, source: StateSource, compute: SnapshotCompute = compute_inline) -> None:
        self._source = source
        self._compute = compute
        self._held: list[HeldSnapshot] = []
        self._making = asyncio.Lock()

    @property
    def num_bytes(self) -> int:
        """Of all copies together."""
        return sum(held.num_bytes for held in self._held)

    async def newest(self, fragment: int) -> HeldSnapshot | None:
        """The current state, or without room for it the newest copy there is. None: this peer has no state yet.

        Raises:
            NoRoom: other fragments are being served; later there will be room.
        """
        async with self._making:
            copies = [held for held in self._held if held.fragment == fragment]
            newest = max(copies, key=lambda held: held.snapshot.version, default=None)
            if newest is not None and (self._is_current(newest) or not self._make_room(newest.num_bytes)):
                return self._touch(newest)
            return await self._take(fragment)

    async def at(self, fragment: int, version: int, digest: bytes) -> HeldSnapshot | None:
        """The copy with that version and digest, made now when it is the current one. None: not here (any more).

        Raises:
            NoRoom: see `newest`.
        """
        async with self._making:
            for held in self._held:
                if _is_of(held, fragment, version, digest):
                    return self._touch(held)
            if self._source.digest_at(fragment, version) != digest or self._source.digest_at(fragment, version + 1):
                return None
            taken = await self._take(fragment)
            return taken if taken is not None and _is_of(taken, fragment, version, digest) else None

    def begin(self, held: HeldSnapshot) -> None:
        """A stream takes chunks of it from now on."""
        held.num_streams += 1

    def end(self, held: HeldSnapshot, *, is_done: bool) -> None:
        """That stream has ended; `is_done`: because the joiner wants nothing more of it."""
        held.num_streams -= 1
        held.is_done = is_done and not held.num_streams

    def _is_current(self, held: HeldSnapshot) -> bool:
        version = held.snapshot.version
        is_known = self._source.digest_at(held.fragment, version) == held.snapshot.digest
        return is_known and not self._source.digest_at(held.fragment, version + 1)

    async def _take(self, fragment: int) -> HeldSnapshot | None:
        if not self._make_room(0):
            raise NoRoom
        snapshot = await self._source.snapshot(fragment)
        if snapshot is None:
            return None
        digests = await self._compute(lambda: chunk_digests(snapshot.anchor, snapshot.momentum))
        held = HeldSnapshot(fragment, snapshot, digests, 0.0)
        for other in [other for other in self._held if _is_of(other, fragment, snapshot.version, snapshot.digest)]:
            self._drop(other)
        self._held.append(held)
        return self._touch(held)

    def _make_room(self, num_bytes: int) -> bool:
        """Whether one more copy fits, after idle ones have gone."""
        now = asyncio.get_running_loop().time()
        for held in sorted(self._held, key=lambda held: held.asked_at):
            if self._fits(num_bytes):
                return True
            if now - held.asked_at >= (DONE_SECONDS if held.is_done else IDLE_SECONDS):
                self._drop(held)
        return self._fits(num_bytes)

    def _fits(self, num_bytes: int) -> bool:
        return len(self._held) < MAX_SNAPSHOTS or self.num_bytes + num_bytes <= SMALL_BYTES

    def _touch(self, held: HeldSnapshot) -> HeldSnapshot:
        loop = asyncio.get_running_loop()
        held.asked_at, held.is_done = loop.time(), False
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


class NoRoom(Exception):
    """All copies are in use."""


def _is_of(held: HeldSnapshot, fragment: int, version: int, digest: bytes) -> bool:
    return (held.fragment, held.snapshot.version, held.snapshot.digest) == (fragment, version, digest)
