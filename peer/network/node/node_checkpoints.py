"""Saves a node's state every few minutes and on leaving, and brings it back at the start.

A moment is asked of the trainer, which copies its side after the coming inner step and says which was its last message
before that. Every fragment is saved with exactly the messages up to there, so both sides are of one moment although
neither waits for the other. The checkpoint gets its name when the trainer's files are on the disk too.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

from averaging.fragment.runtime import Compute, FragmentRuntime
from peer.checkpoint.checkpoint import CheckpointDraft, CheckpointFolder, SavedCheckpoint
from peer.checkpoint.checkpoint_facts import Totals
from peer.checkpoint.commits import read_commits
from peer.events import peer_events as events
from peer.events.peer_events import Event
from peer.mailbox.mailbox import Mailbox
from peer.network.node.mailbox_desk import TakeWork, TrainerDesk

LOOK_SECONDS = 0.05
"""Between two looks at what the trainer has done: far below the time that writing takes."""

log = logging.getLogger(__name__)


class CheckpointKeeper:
    """Checkpoints of one node. Disk and arrays are touched in the compute port, never on the event loop.

    Args:
        fragments: what is saved; each fragment's lock is held while it is written.
        mailbox: shared with the trainer.
        desk: the trainer's, and what its work is handed to; None when there is no trainer (a seed).
        totals: what this peer has done so far.
        emit: takes `CheckpointSaved`, and `CheckpointFailed` once for each time that saving stops working
            and once more on leaving.
        after_each: called when a fragment was written.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        fragments: Sequence[FragmentRuntime],
        mailbox: Mailbox,
        desk: tuple[TrainerDesk, TakeWork] | None,
        compute: Compute,
        totals: Callable[[], Totals],
        wall_clock: Callable[[], float],
        emit: Callable[[Event], None],
        after_each: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._fragments = fragments
        self._mailbox = mailbox
        self._desk = desk
        self._compute = compute
        self._totals = totals
        self._wall_clock = wall_clock
        self._emit = emit
        self._after_each = after_each
        self._is_failing = False
        self._saving = asyncio.Lock()

    async def find(self) -> SavedCheckpoint | None:
        """The newest usable checkpoint; None when there is none. Those that are not are named in the log."""
        saved, complaints = await self._compute(self._folder.newest)
        for complaint in complaints:
            log.warning("%s", complaint)
        return saved

    async def bring_back_commits(self, fragment: FragmentRuntime, saved: SavedCheckpoint | None = None) -> None:
        """Give a fragment the signed commits that led to the anchor it has; without them it still goes on.

        Args:
            saved: where they are; None: in the newest checkpoint, if that is of this very anchor.
        """
        path = self._folder.newest_path() if saved is None else saved.path
        if path is None:
            return
        state, sizes, checker = fragment.state, self._folder.owner.sizes, fragment.machine.notary
        read = partial(read_commits, path, fragment.index, state.version, state.digest, sizes, checker)
        try:
            fragment.log.replace(await self._compute(read))
        except ValueError as error:
            log.warning("the signed commits of fragment %d in %s were left out: %s", fragment.index, path, error)

    async def keep_lineage(self) -> None:
        """The anchors are about to be replaced on the word of others alone: the newest checkpoint stays for a week."""
        try:
            kept = await self._compute(self._folder.keep_lineage)
        except OSError as error:
            log.warning("no checkpoint of this peer's lineage could be marked (%s)", error.strerror)
            return
        if kept is not None:
            # Nobody has to do anything: each return after a pause does this.
            log.info("%s stays for a week: the anchors are replaced by those that most members have", kept)

    async def run(self) -> None:
        """Save every `every_seconds`; never ends."""
        while True:
            await asyncio.sleep(self._folder.every_seconds)
            await self.save()

    async def save(self, *, is_last: bool = False) -> None:
        """Save once. A full or read-only disk is told in an event and changes nothing else.

        Args:
            is_last: nothing will be sent afterwards.
        """
        async with self._saving:
            if not all(fragment.state.digest for fragment in self._fragments):
                return
            try:
                await self._write(is_last)
            except (OSError, ValueError) as error:
                if is_last or not self._is_failing:
                    reason = _reason(error, str(self._folder.path), self._desk is not None)
                    has_earlier = await self._has_earlier()
                    fact = events.CheckpointFailed(reason, has_earlier=has_earlier, is_last=is_last)
                    self._emit(Event(self._wall_clock(), self._folder.owner.peer_id, fact))
                self._is_failing = True
            else:
                self._is_failing = False

    async def _has_earlier(self) -> bool:
        try:
            return await self._compute(self._folder.newest_path) is not None
        except OSError:
            return False

    async def _write(self, is_last: bool) -> None:
        asked = self._mailbox.network.wanted_moment
        draft: CheckpointDraft = await self._compute(partial(self._folder.begin, asked + 1))
        try:
            if self._desk is None:
                for fragment in self._fragments:
                    await self._add(draft, fragment)
            else:
                await self._take_moment(draft, *self._desk)
            write = partial(draft.finish, self._totals(), has_trainer=self._desk is not None, is_last=is_last)
            path = await self._compute(write)
        except (OSError, ValueError):
            # What the trainer makes in a folder that is being deleted would stay, and keep room a full disk has not.
            if self._mailbox.trainer.moment == draft.number:
                await self._trainer_has_written()
            await self._compute(draft.discard)
            raise
        self._emit(
            Event(
                self._wall_clock(),
                self._folder.owner.peer_id,
                events.CheckpointSaved(
                    path=str(path),
                    versions=draft.versions,
                ),
            )
        )

    async def _take_moment(self, draft: CheckpointDraft, desk: TrainerDesk, take: TakeWork) -> None:
        """Both sides of one moment; raises OSError when either cannot be written."""
        trainer = self._mailbox.trainer
        waiting = [fragment.index for fragment in self._fragments]
        desk.expect(draft.number, waiting)
        self._mailbox.network.wanted_moment = draft.number
        try:
            while trainer.moment != draft.number:  # noqa: ASYNC110 (another process: there is no event to wait for)
                await asyncio.sleep(LOOK_SECONDS)
            await desk.take_up_to(trainer.moment_sequence, take)
            for fragment in self._fragments:
                await self._add(draft, fragment)
                desk.release(fragment.index)
        finally:
            for index in waiting:
                desk.release(index)
        await self._trainer_has_written()
        if trainer.moment_written < 0:
            number = -trainer.moment_written
            raise OSError(number, os.strerror(number), str(draft.path))

    async def _trainer_has_written(self) -> None:
        while self._mailbox.trainer.moment_written == 0:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)

    async def _add(self, draft: CheckpointDraft, fragment: FragmentRuntime) -> None:
        async with fragment.busy:
            frames = fragment.log.frames_to(fragment.state.version)
            await self._compute(partial(draft.add, fragment.index, fragment.state, frames))
        self._after_each()


def _reason(error: OSError | ValueError, folder: str, has_trainer: bool) -> str:
    if isinstance(error, OSError) and error.errno == errno.EDOM:
        return "the live parameters are not finite; expected numbers; lower the learning rate and join again"
    what = f"{error.filename or folder}: {error.strerror}" if isinstance(error, OSError) else f"{folder}: {error}"
    room = "three copies of the model and what the trainer holds" if has_trainer else "three copies of the model"
    return f"{what}; expected a writable folder with room for {room}; free some, or give another --data-dir"
