"""Saves a node's state every few minutes and on leaving, and brings it back at the start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from averaging.fragment_runtime import Compute, FragmentRuntime
from peer import event_types as events
from peer.checkpoint import CheckpointDraft, CheckpointFolder, Totals, encode_fragment
from peer.events import Event

log = logging.getLogger(__name__)


class CheckpointKeeper:
    """Checkpoints of one node. Disk and tensors are touched in the compute port, never on the event loop.

    Args:
        fragments: what is saved; each fragment's lock is held while it is copied.
        totals: what this peer has done so far.
        emit: takes `CheckpointSaved`, and `CheckpointFailed` once for each time that saving stops working.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        fragments: Sequence[FragmentRuntime],
        compute: Compute,
        totals: Callable[[], Totals],
        wall_clock: Callable[[], float],
        emit: Callable[[Event], None],
    ) -> None:
        self._folder = folder
        self._fragments = fragments
        self._compute = compute
        self._totals = totals
        self._wall_clock = wall_clock
        self._emit = emit
        self._is_failing = False
        self._saving = asyncio.Lock()

    async def restore(self, indices: Sequence[int]) -> Totals | None:
        """Put the newest usable checkpoint into these fragments; None when there is none, and nothing has changed."""
        saved, complaints = await self._compute(self._folder.newest)
        for complaint in complaints:
            log.warning("%s", complaint)
        if saved is None:
            return None
        for index in indices:
            await self._compute(partial(saved.restore, index, self._fragments[index].state))
        return saved.totals

    async def run(self) -> None:
        """Save every `every_seconds`, for ever."""
        while True:
            await asyncio.sleep(self._folder.every_seconds)
            await self.save()

    async def save(self) -> None:
        """Save once. A full or read-only disk is told in an event and changes nothing else."""
        async with self._saving:
            if not all(fragment.state.digest for fragment in self._fragments):
                return
            try:
                await self._write()
            except OSError as error:
                if not self._is_failing:
                    reason = (
                        f"{error.filename or self._folder.path}: {error.strerror}; expected a writable folder with "
                        "room for three copies of the model; free some, or give another --data-dir"
                    )
                    self._emit(
                        events.CheckpointFailed(
                            at=self._wall_clock(), peer_id=self._folder.owner.peer_id, reason=reason
                        )
                    )
                self._is_failing = True
            else:
                self._is_failing = False

    async def _write(self) -> None:
        draft: CheckpointDraft = await self._compute(self._folder.begin)
        versions = []
        try:
            for fragment in self._fragments:
                async with fragment.busy:
                    encoded = await self._compute(partial(encode_fragment, fragment.state))
                versions.append(encoded[1].version)
                await self._compute(partial(draft.add, encoded))
                del encoded
            path = await self._compute(partial(draft.finish, self._totals()))
        except OSError:
            await self._compute(draft.discard)
            raise
        self._emit(
            events.CheckpointSaved(
                at=self._wall_clock(),
                peer_id=self._folder.owner.peer_id,
                path=str(path),
                versions=tuple(versions),
            )
        )
