"""Turns at a scarce resource, shared between remotes and not between requests.

A remote with eighty requests gets no more than one with two. The remote with the fewest turns goes first, then the one
with the least recent use. While others wait, a remote that reads almost nothing, or for a long time, loses its turn: it
may finish its request, but its slot is free for another, and its next request comes last.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from dht.ground.host import PeerId

LEAST_BYTES: Final = 256 * 1024
"""A piece of a frame, the unit in which streams count bytes."""
LEAST_SECONDS: Final = 7.5
"""While others wait, a remote that reads less than `LEAST_BYTES` in this time (280 kbit/s) loses its turn. Lines that
take part in rounds are faster, and the deadline of a chunk requires as much."""
TURN_SECONDS: Final = 20.0
"""Longest turn while others wait: four turns of a MiB each at once on a line of 2 Mbit/s take 17 s."""
LOOK_SECONDS: Final = 0.5
"""Interval between checks for lost turns while a remote waits."""
FORGET_SECONDS: Final = 60.0
"""Past use counts for this long: two turns of the slowest remote."""


class NoTurn(Exception):
    """No turn, or no room, was free in time."""


@dataclass(eq=False)
class Turn:
    """One request being served; `moved` returns the bytes that its remote has read so far."""

    remote: PeerId
    moved: Callable[[], int]
    began_at: float
    has_slot: bool = True
    marked_at: float = 0.0
    marked_bytes: int = 0

    def rested(self, now: float) -> None:
        """Note that this side paused until now."""
        self.marked_at = now

    def is_slow(self, now: float) -> bool:
        """Return whether fewer than `LEAST_BYTES` were read in the last `LEAST_SECONDS`."""
        if self.moved() - self.marked_bytes >= LEAST_BYTES:
            self.marked_at, self.marked_bytes = now, self.moved()
        return now - self.marked_at >= LEAST_SECONDS


@dataclass(eq=False)
class _Wait:
    remote: PeerId
    moved: Callable[[], int]
    granted: asyncio.Future[Turn]


@dataclass
class FairTurns:
    """`num_slots` turns at once, at most `most_per_remote` of them for one remote, including lost turns that
    still run.
    """

    num_slots: int
    most_per_remote: int
    _turns: list[Turn] = field(default_factory=list)
    _waiting: list[_Wait] = field(default_factory=list)
    _used: dict[PeerId, tuple[float, float]] = field(default_factory=dict)
    """By remote: seconds of its turns, and when the last one ended."""
    _look: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def turn(self, remote: PeerId, moved: Callable[[], int], wait_seconds: float) -> AsyncIterator[Turn]:
        """Wait for a turn and hold it.

        Raises:
            NoTurn: no turn was free within `wait_seconds`.
        """
        loop = asyncio.get_running_loop()
        wait = _Wait(remote, moved, loop.create_future())
        self._waiting.append(wait)
        self._hand_out()
        try:
            async with asyncio.timeout(wait_seconds):
                turn = await asyncio.shield(wait.granted)
        except BaseException as error:
            self._waiting = [other for other in self._waiting if other is not wait]
            if wait.granted.done():
                self._end(wait.granted.result())
            if isinstance(error, TimeoutError):
                raise NoTurn from error
            raise
        try:
            yield turn
        finally:
            self._end(turn)

    def _end(self, turn: Turn) -> None:
        now = asyncio.get_running_loop().time()
        self._turns = [other for other in self._turns if other is not turn]
        self._used = {remote: used for remote, used in self._used.items() if now - used[1] < FORGET_SECONDS}
        self._used[turn.remote] = (self._used.get(turn.remote, (0.0, 0.0))[0] + now - turn.began_at, now)
        self._hand_out()

    def _hand_out(self) -> None:
        now = asyncio.get_running_loop().time()
        while wait := self._next():
            if sum(turn.has_slot for turn in self._turns) >= self.num_slots and not self._take_back(wait.remote, now):
                break
            self._waiting = [other for other in self._waiting if other is not wait]
            if not wait.granted.done():
                turn = Turn(wait.remote, wait.moved, now, marked_at=now, marked_bytes=wait.moved())
                self._turns.append(turn)
                wait.granted.set_result(turn)
        if self._next() is not None and self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._hand_out()

    def _next(self) -> _Wait | None:
        able = [wait for wait in self._waiting if self._num_of(wait.remote) < self.most_per_remote]
        return min(
            able, key=lambda wait: (self._num_of(wait.remote), self._used.get(wait.remote, (0.0,))[0]), default=None
        )

    def _num_of(self, remote: PeerId) -> int:
        return sum(turn.remote == remote for turn in self._turns)

    def _take_back(self, remote: PeerId, now: float) -> bool:
        """Return whether another remote has lost its slot to `remote`."""
        for turn in self._turns:
            if not turn.has_slot or turn.remote == remote:
                continue
            is_long = now - turn.began_at >= TURN_SECONDS and self._num_of(turn.remote) > self._num_of(remote)
            if turn.is_slow(now) or is_long:
                turn.has_slot = False
                return True
        return False
