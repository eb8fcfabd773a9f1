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
"""Pause between two looks at the trainer's counters: far below the time that writing takes."""

FIRST_SECONDS = 60.0
"""Time until the first checkpoint: a newcomer that is killed early, or exports, has more than an empty model."""

log = logging.getLogger(__name__)


def pauses(every_seconds: float) -> Iterator[float]:
    """Seconds before each checkpoint of a session: a minute, twice that and so on, up to `every_seconds`."""
    seconds = FIRST_SECONDS
    while True:
        yield min(seconds, every_seconds)
        seconds = min(2 * seconds, every_seconds)


@dataclass
class CheckpointKeeper:
    """Checkpoints of one node. Disk and arrays are touched in the compute port, never on the event loop.

    Attributes:
        fragments: what is saved; each fragment's lock is held while it is written.
        mailbox: shared with the trainer.
        desk: the trainer's; None when there is no trainer (a seed).
        report: takes `CheckpointSaved`, and `CheckpointFailed` once for each time that saving stops working
            and once more on leaving.
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
        """The newest usable checkpoint; None when there is none. Newer ones are put aside, and reported.

        Args:
            num_others: says how many members are there.
        """
        saved, unusable = await self.compute(self.folder.newest)
        for one in unusable:
            try:
                aside = await self.compute(partial(self.folder.put_aside, one.path))
            except OSError as error:
                log.warning("%s could not be put aside (%s)", one.path, error.strerror)
                aside = one.path
            self.report(
                CheckpointFailed(one.reason, has_earlier=saved is not None, kept_at=str(aside), num_others=num_others())
            )
        return saved

    async def bring_back_commits(self, fragment: FragmentRuntime, saved: SavedCheckpoint) -> None:
        """Give a restored fragment the signed commits that led to its anchor; it also goes on without them."""
        try:
            commits = await self.compute(partial(saved.commits, fragment.index, fragment.machine.notary))
        except ValueError as error:
            log.warning(
                "nothing is lost, model and work are whole: only the signed commits of fragment %d in %s cannot be "
                "used (%s); new ones come with the next rounds",
                fragment.index,
                saved.path,
                error,
            )
        else:
            fragment.log.replace(commits)

    async def keep_lineage(self) -> None:
        """The anchors are about to be replaced on the word of others alone: the newest checkpoint stays for a week."""
        try:
            kept = await self.compute(self.folder.keep_lineage)
        except OSError as error:
            log.warning("no checkpoint of this peer's lineage could be marked (%s)", error.strerror)
            return
        if kept is not None:
            # Nobody has to do anything: each return after a pause does this.
            log.info("%s stays for a week: the anchors are replaced by those that most members have", kept)

    async def run(self) -> None:
        """Save again and again; never ends."""
        for seconds in pauses(self.folder.every_seconds):
            await asyncio.sleep(seconds)
            await self.save()

    async def save(self, *, is_last: bool = False) -> None:
        """Save once. A full or read-only disk is told in an event and changes nothing else.

        Args:
            is_last: nothing will be sent afterwards.
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
            # What the trainer makes in a folder that is being deleted would stay, and keep room a full disk has not.
            if self.mailbox.trainer.moment == draft.number:
                await self._trainer_has_written()
            await self.compute(draft.discard)
            raise
        self.report(CheckpointSaved(path=str(path), versions=draft.versions))

    def _totals(self) -> Totals:
        """Totals of this peer so far."""
        trainer, network = self.mailbox.trainer, self.mailbox.network
        return Totals(
            inner_steps=trainer.inner_steps,
            tokens=trainer.tokens,
            rounds_contributed=network.rounds_contributed,
            run_tokens=network.run_tokens,
        )

    async def _take_moment(self, draft: CheckpointDraft, desk: TrainerDesk) -> None:
        """Both sides of one moment; raises OSError when either cannot be written."""
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
            "the live parameters are not finite; expected numbers; join again with a lower learning rate (in a loop of "
            "your own set it in `optimizer.param_groups` after `join`)"
        )
    what = f"{error.filename or folder}: {error.strerror}" if isinstance(error, OSError) else f"{folder}: {error}"
    room = "three copies of the model and what the trainer holds" if has_trainer else "three copies of the model"
    remedy = "free some, or give another --data-dir (in Python data_dir)"
    return f"{what}; expected a writable folder with room for {room}; {remedy}"
