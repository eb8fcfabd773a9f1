"""Fetch one piece from many donors at once: each donor sends different chunks.

The fastest donors send most, a failing donor's chunks go to the others, and arrived chunks stay: `run` may be called
again with other donors. The digests of the chunks are known in advance, and each chunk is checked against them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from averaging.codec.digests import digest_of
from averaging.lanes.handshake import HandshakePolicy
from averaging.rounds.duration_statistics import LearnedDeadline
from averaging.transfer.chunk_assignment import ChunkQueue
from averaging.transfer.chunked_pieces import ChunkedPiece
from averaging.transfer.client import ChunkStream
from averaging.transfer.messages import FRAME_SECONDS, MAX_RANGE_CHUNKS, QUEUE_SECONDS
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import Host, PeerId
from dht.ground.tasks import end_tasks, set_within

DONORS_AT_ONCE = 6
"""Home lines download five to ten times faster than they upload: six donors fill one joiner's line."""
RANGE_SECONDS = 2.0
"""A range has as many chunks as its donor sends in this time: short enough to share well, long compared with a
request."""
SHORTEST_PATIENCE_SECONDS = 5.0
"""No donor counts as stalled earlier: home routers stall for seconds under load."""
BUSY_PAUSE_SECONDS = 1.0
"""Pause before a busy donor, or another donor instead, is asked again."""
MAX_BUSY_ANSWERS = 60
"""A donor that was busy this often in succession is given up."""
ANSWER_SECONDS = QUEUE_SECONDS + SHORTEST_PATIENCE_SECONDS
"""Time for the answer to a request. The donor may wait for its turn during the first part of it."""

log = logging.getLogger(__name__)


class Transfer:
    """A piece while it arrives.

    Args:
        piece: the piece to fetch.
        on_bytes: called with the length of each new chunk.

    Attributes:
        given_bytes: bytes that each donor sent.
        faults: donors that failed, and how: PeerFault for a corrupt chunk, PeerUnreachable for silence.
        moved_on: donors that now have another version, or do not have the piece.
    """

    def __init__(
        self,
        host: Host,
        handshake_policy: HandshakePolicy,
        piece: ChunkedPiece,
        on_bytes: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        self.given_bytes: dict[PeerId, int] = {}
        self.faults: dict[PeerId, PeerFault] = {}
        self.moved_on: set[PeerId] = set()
        self._host = host
        self._handshake_policy = handshake_policy
        self._piece = piece
        self._queue = ChunkQueue(len(piece.chunk_digests))
        self._on_bytes = on_bytes
        self._patience = LearnedDeadline(FRAME_SECONDS, SHORTEST_PATIENCE_SECONDS, FRAME_SECONDS)
        self._changed = asyncio.Event()
        self._num_working = 1
        self._waiting: list[PeerId] = []
        """Donors that wait for a free place."""
        self._silent: dict[PeerId, PeerFault] = {}
        self._num_busy: Counter[PeerId] = Counter()

    @property
    def is_complete(self) -> bool:
        return self._queue.num_missing == 0

    async def take_kept(self, chunks: Iterable[bytes]) -> None:
        """Accept the chunks already in their places, in order. A chunk that does not match its digest is fetched
        again.
        """
        for index, chunk in enumerate(chunks):
            if digest_of(chunk) == self._piece.chunk_digests[index] and self._queue.finish(index):
                self._on_bytes(len(chunk))
            # Lets connections stay alive during checks of large models.
            await asyncio.sleep(0)

    async def run(self, donors: Sequence[PeerId]) -> bool:
        """Fetch the missing chunks from `donors`: the first `DONORS_AT_ONCE` at once, and others when these fail.

        Returns whether the piece is complete; if not, no donor is left, and `faults` and `moved_on` contain the
        reasons.
        """
        self._waiting = waiting = list(donors)
        self._num_busy.clear()
        stalled: set[PeerId] = set()
        working: dict[asyncio.Task[None], PeerId] = {}
        loop = asyncio.get_running_loop()
        try:
            while not self.is_complete and (waiting or working):
                while waiting and len(working) < DONORS_AT_ONCE:
                    donor = waiting.pop(0)
                    patient = donor in stalled or len(donors) == 1
                    working[loop.create_task(self._fetch_from(donor, patient=patient))] = donor
                self._num_working = len(working)
                done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    donor = working.pop(task)
                    if self._ended(donor, task):
                        # A slow donor is better than none: it is asked again, with more patience, when the others are
                        # gone.
                        stalled.add(donor)
                        waiting.append(donor)
        finally:
            await end_tasks(working)
        # The next piece should not wait for silent donors again.
        self.faults.update((donor, fault) for donor, fault in self._silent.items() if donor not in self.given_bytes)
        return self.is_complete

    def _ended(self, donor: PeerId, task: asyncio.Task[None]) -> bool:
        """Record how a donor's work ended. Return True if it only stalled."""
        try:
            task.result()
        except _Busy:
            return True
        except _Stalled as fault:
            self._silent[donor] = fault
            return True
        except PeerFault as fault:
            log.debug("%s: %s", self._piece.name, fault)
            self.faults[donor] = fault
        return False

    async def _fetch_from(self, donor: PeerId, *, patient: bool) -> None:
        stream = await ChunkStream.open(self._host, self._handshake_policy, donor, self._piece)
        loop = asyncio.get_running_loop()
        chunk_seconds = RANGE_SECONDS
        try:
            while not self.is_complete:
                part = self._queue.take(donor, self._range_chunks(chunk_seconds))
                if part is None:
                    # A slow donor may later have chunks left that are worth taking over.
                    await set_within(self._changed, RANGE_SECONDS)
                    continue
                seconds = FRAME_SECONDS if patient else ANSWER_SECONDS
                with _stalls_after(seconds, patient=patient):
                    answer = await stream.ask(part, seconds)
                if answer == "gone":
                    self.moved_on.add(donor)
                    return
                if answer == "busy":
                    self._give_back(donor)
                    self._num_busy[donor] += 1
                    if self._num_busy[donor] >= MAX_BUSY_ANSWERS:
                        raise PeerUnreachable(donor, "stayed busy with other transfers")
                    await asyncio.sleep(BUSY_PAUSE_SECONDS)
                    if self._waiting:
                        raise _Busy(donor, "is busy while other donors are free")
                    continue
                began = loop.time()
                for index in part:
                    await self._receive(stream, donor, index, patient=patient)
                chunk_seconds, self._num_busy[donor] = (loop.time() - began) / len(part), 0
        finally:
            self._give_back(donor)
            await stream.close()

    def _range_chunks(self, chunk_seconds: float) -> int:
        """Return the length of the next range: as many chunks as the donor sends in `RANGE_SECONDS`, leaving some for
        the others.
        """
        share = self._queue.num_missing // (2 * self._num_working)
        return max(1, min(MAX_RANGE_CHUNKS, share, round(RANGE_SECONDS / max(chunk_seconds, 1e-3))))

    async def _receive(self, stream: ChunkStream, donor: PeerId, index: int, *, patient: bool) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        seconds = FRAME_SECONDS if patient else self._patience.seconds
        with _stalls_after(seconds, patient=patient):
            chunk = await stream.receive(index, seconds)
        self._patience.observe(loop.time() - began)
        if self._queue.finish(index):
            self._piece.put(index, chunk)
            self.given_bytes[donor] = self.given_bytes.get(donor, 0) + len(chunk)
            self._on_bytes(len(chunk))
            if self.is_complete:
                self._notify()

    def _give_back(self, donor: PeerId) -> None:
        self._queue.give_back(donor)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Stalled(PeerUnreachable):
    """The donor was silent for longer than the other donors need."""


class _Busy(_Stalled):
    """The donor is busy while others wait for its place."""


@contextlib.contextmanager
def _stalls_after(seconds: float, *, patient: bool) -> Iterator[None]:
    """Turn a donor's silence of `seconds` into `_Stalled`, unless the wait was patient."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        yield
    except PeerUnreachable as fault:
        if not patient and loop.time() - began >= seconds:
            raise _Stalled(fault.peer_id, fault.what) from fault
        raise
