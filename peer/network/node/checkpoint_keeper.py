"""Saves a node's state every few minutes and on leaving, and restores it at the start.

The network process requests a checkpoint from the trainer, which copies its state after the coming inner step and
reports its last message before that. Each fragment is saved with exactly the messages up to there, so both parts belong
to the same moment although neither process waits for the other. The checkpoint gets its final name when the trainer's
files are also on the disk.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from averaging.fragment.runtime import FragmentRuntime
from averaging.rounds.round_facts import Fact
from dht.ground.compute import Compute
from peer.checkpoint.checkpoint import CheckpointDraft, CheckpointFolder, SavedCheckpoint
from peer.checkpoint.checkpoint_facts import Totals
from peer.events.peer_events import CheckpointFailed, CheckpointSaved
from peer.mailbox.mailbox import Mailbox
from peer.network.node.trainer_desk import TrainerDesk

LOOK_SECONDS = 0.05
"""Pause between two polls of the trainer's counters: far below the duration of a write."""

FIRST_SECONDS = 60.0
"""Time until the first checkpoint, so that a newcomer that is killed early, or exports, has a checkpoint."""

log = logging.getLogger(__name__)


def pauses(every_seconds: float) -> Iterator[float]:
    """Yield the seconds before each checkpoint of a session: a minute, doubled each time, up to `every_seconds`."""
    seconds = FIRST_SECONDS
    while True:
        yield min(seconds, every_seconds)
        seconds = min(2 * seconds, every_seconds)


@dataclass
class CheckpointKeeper:
    """Checkpoints of one node. Disk and arrays are accessed in the compute port, never on the event loop.

    Attributes:
        fragments: the fragments to save; each fragment's lock is held while it is written.
        mailbox: shared with the trainer.
        desk: the trainer's desk; None without a trainer (a seed).
        report: receives `CheckpointSaved`, and `CheckpointFailed` once each time saving stops working and once more on
            leaving.
    """

    folder: CheckpointFolder
    fragments: Sequence[FragmentRuntime]
    mailbox: Mailbox
    desk: TrainerDesk | None
    compute: Compute
    report: Callable[[Fact], None]
    _is_failing: bool = False
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def find(self, num_others: Callable[[], int]) -> SavedCheckpoint | None:
        """Find the newest usable checkpoint; None if there is none. Newer unusable ones are moved aside and reported.

        Args:
            num_others: returns the number of other members.
        """
        saved, unusable = await self.compute(self.folder.newest)
        for one in unusable:
            try:
                aside = await self.compute(partial(self.folder.put_aside, one.path))
            except OSError as error:
                log.warning("%s could not be set aside (%s)", one.path, error.strerror)
                aside = one.path
            self.report(
                CheckpointFailed(one.reason, has_earlier=saved is not None, kept_at=str(aside), num_others=num_others())
            )
        return saved

    async def bring_back_commits(self, fragment: FragmentRuntime, saved: SavedCheckpoint) -> None:
        """Restore the signed commits that led to a restored fragment's anchor; the fragment also works without them."""
        try:
            commits = await self.compute(partial(saved.commits, fragment.index, fragment.machine.notary))
        except ValueError as error:
            log.warning(
                "the signed commits of fragment %d in %s cannot be used (%s); the model and its work are complete, "
                "and the next rounds add new commits",
                fragment.index,
                saved.path,
                error,
            )
        else:
            fragment.log.replace(commits)

    async def keep_lineage(self) -> None:
        """Keep the newest checkpoint for a week, because unproven anchors of other members are about to replace this
        peer's.
        """
        try:
            kept = await self.compute(self.folder.keep_lineage)
        except OSError as error:
            log.warning("no checkpoint of this peer's lineage could be marked (%s)", error.strerror)
            return
        if kept is not None:
            # The owner does not have to act: this happens at each return after a pause.
            log.info("%s is kept for a week, because the anchors are replaced by those of most members", kept)

    async def run(self) -> None:
        """Save repeatedly; never ends."""
        for seconds in pauses(self.folder.every_seconds):
            await asyncio.sleep(seconds)
            await self.save()

    async def save(self, *, is_last: bool = False) -> None:
        """Save once. A full or read-only disk is only reported in an event.

        Args:
            is_last: whether this peer sends no more messages afterwards.
        """
        async with self._saving:
            if not all(fragment.state.digest for fragment in self.fragments):
                return
            try:
                await self._write(is_last)
            except (OSError, ValueError) as error:
                if is_last or not self._is_failing:
                    reason = _reason(error, str(self.folder.path), self.desk is not None)
                    self.report(CheckpointFailed(reason, has_earlier=await self._has_earlier(), is_last=is_last))
                self._is_failing = True
            else:
                self._is_failing = False

    async def _has_earlier(self) -> bool:
        try:
            return await self.compute(self.folder.newest_path) is not None
        except OSError:
            return False

    async def _write(self, is_last: bool) -> None:
        asked = self.mailbox.network.wanted_moment
        draft: CheckpointDraft = await self.compute(partial(self.folder.begin, asked + 1))
        try:
            if self.desk is None:
                for fragment in self.fragments:
                    await self._add(draft, fragment)
            else:
                await self._take_moment(draft, self.desk)
            write = partial(draft.finish, self._totals(), has_trainer=self.desk is not None, is_last=is_last)
            path = await self.compute(write)
        except (OSError, ValueError):
            # Files that the trainer writes into a folder being deleted would stay, and occupy a full disk.
            if self.mailbox.trainer.moment == draft.number:
                await self._trainer_has_written()
            await self.compute(draft.discard)
            raise
        self.report(CheckpointSaved(path=str(path), versions=draft.versions))

    def _totals(self) -> Totals:
        """Return this peer's totals so far."""
        trainer, network = self.mailbox.trainer, self.mailbox.network
        return Totals(
            inner_steps=trainer.inner_steps,
            tokens=trainer.tokens,
            rounds_contributed=network.rounds_contributed,
            run_tokens=network.run_tokens,
        )

    async def _take_moment(self, draft: CheckpointDraft, desk: TrainerDesk) -> None:
        """Save both processes' parts of one moment; raises OSError if either cannot be written."""
        trainer = self.mailbox.trainer
        waiting = [fragment.index for fragment in self.fragments]
        desk.expect(draft.number, waiting)
        self.mailbox.network.wanted_moment = draft.number
        try:
            while trainer.moment != draft.number:  # noqa: ASYNC110 (another process: there is no event to wait for)
                await asyncio.sleep(LOOK_SECONDS)
            await desk.take_up_to(trainer.moment_sequence)
            for fragment in self.fragments:
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
        while self.mailbox.trainer.moment_written == 0:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)

    async def _add(self, draft: CheckpointDraft, fragment: FragmentRuntime) -> None:
        async with fragment.busy:
            frames = fragment.log.frames_to(fragment.state.version)
            await self.compute(partial(draft.add, fragment.index, fragment.state, frames))


def _reason(error: OSError | ValueError, folder: str, has_trainer: bool) -> str:
    if isinstance(error, OSError) and error.errno == errno.EDOM:
        return (
            "the live parameters are not finite; expected finite numbers; join again with a lower learning rate (in "
            "a loop of your own set it in `optimizer.param_groups` after `join`)"
        )
    what = f"{error.filename or folder}: {error.strerror}" if isinstance(error, OSError) else f"{folder}: {error}"
    room = "three copies of the model and what the trainer holds" if has_trainer else "three copies of the model"
    remedy = "free some space, or give another --data-dir (in Python data_dir)"
    return f"{what}; expected a writable folder with room for {room}; {remedy}"
