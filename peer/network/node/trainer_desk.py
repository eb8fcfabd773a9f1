"""The network process's end of the mailbox: takes work from the trainer, sends it changes, and never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from averaging.arrays import F32
from averaging.fragment.runtime import FragmentRuntime
from averaging.outer.change_buffers import Change, Discarded
from averaging.outer.fragment_anchor_and_residual import FragmentState
from dht.ground.compute import Compute
from peer.config.manifest import AveragingSection
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import NUM_SLOTS, Draft, MergeKind, WorkKind, WorkMessage
from peer.network.node.fragment_memory import persist

TakeWork = Callable[[int, Callable[[FragmentState], None]], Awaitable[None]]
"""(fragment, adds the work to its state): `Exchange.work_arrived`."""


@dataclass
class TrainerDesk:
    """See the module docstring. Changes of a fragment are delivered once `open` has posted its starting point.

    Whole fragments are computed and copied in `compute`, never on the event loop.

    Attributes:
        take: receives the trainer's work.
        is_open: whether the starting point was posted, or the mailbox has no trainer.
        undelivered: fragments that wait for a free slot of the trainer's inbox, in this order.
    """

    mailbox: Mailbox
    fragments: Sequence[FragmentRuntime]
    section: AveragingSection
    take: TakeWork
    compute: Compute
    poll_seconds: float
    is_open: bool = field(default=False, init=False)
    undelivered: dict[int, None] = field(default_factory=dict, init=False)
    _started: set[int] = field(default_factory=set, init=False)
    _rebasing: bool = field(default=False, init=False)
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _moment: int = field(default=0, init=False)
    _held: set[int] = field(default_factory=set, init=False)
    _drafts: dict[int, Draft] = field(default_factory=dict, init=False)
    _distrusted: set[int] = field(default_factory=set, init=False)

    async def open(self, *, keeps_work: Collection[int]) -> None:
        """Post the starting point; the trainer's unsent work stays in the fragments `keeps_work`."""
        inbox = self.mailbox.inbox
        for fragment in self.fragments:
            kind = MergeKind.REBASE if fragment.index in keeps_work else MergeKind.SET
            while (draft := inbox.draft(fragment.index)) is None:
                if self.mailbox.trainer.finished:
                    break
                # The trainer frees slots in another process, so there is no event to wait for.
                await asyncio.sleep(self.poll_seconds)
            if draft is not None:
                async with fragment.busy:
                    await self._post_whole(draft, kind, fragment.state.shown, version=fragment.state.version)
                    # Slots become free slowly: rounds of this fragment go on while other fragments wait for a slot.
                    self._started.add(fragment.index)
        self._rebasing = bool(keeps_work)
        self.is_open = True

    async def take_work(self) -> None:
        """Pass on the trainer's posted work, the oldest of each fragment first.

        Work on a fragment that is busy stays in the outbox, so that a checkpoint of one fragment does not hold up the
        work on all others.
        """
        skipped: set[int] = set()
        async with self._taking:
            if self._rebasing:
                # The trainer subtracts work in the outbox from its new starting point, so the work must stay there
                # until then. A finished trainer takes no new starting point.
                if self.mailbox.inbox.num_free() < NUM_SLOTS and not self.mailbox.trainer.finished:
                    return
                self._rebasing = False
            for message in self.mailbox.outbox.take():
                if self._rebasing:
                    break
                is_skipped = message.fragment in skipped or self.fragments[message.fragment].busy.locked()
                if is_skipped or self._is_held(message):
                    skipped.add(message.fragment)
                    continue
                if message.kind is WorkKind.WORK:
                    await self._absorb(message)
                self.mailbox.outbox.release(message.slot)

    @property
    def has_posted_work(self) -> bool:
        """Whether the outbox holds a message of the trainer."""
        return self.mailbox.outbox.num_free() < NUM_SLOTS

    def expect(self, number: int, fragments: Sequence[int]) -> None:
        """Withhold work that the trainer posts after moment `number` from these fragments, until `release`."""
        self._moment, self._held = number, set(fragments)

    def release(self, fragment: int) -> None:
        """Pass all work to the fragment again."""
        self._held.discard(fragment)

    async def take_up_to(self, sequence: int) -> None:
        """Pass on all messages up to `sequence`; return when they are in their fragments."""
        while True:
            await self.take_work()
            if all(message.sequence > sequence for message in self.mailbox.outbox.take()):
                return
            await asyncio.sleep(self.poll_seconds)

    def _is_held(self, message: WorkMessage) -> bool:
        # Checked after the message was read, so that work posted after the moment is always recognised as later.
        trainer = self.mailbox.trainer
        is_later = trainer.moment == self._moment and message.sequence > trainer.moment_sequence
        return is_later and message.fragment in self._held

    async def _absorb(self, message: WorkMessage) -> None:
        shared = self.mailbox.states[message.fragment]
        if message.sequence <= shared.absorbed_sequence:
            return

        def fill(state: FragmentState) -> None:
            state.receive_work(message.values, message.num_tokens, message.num_steps, message.base_version)
            # Set at once, because starting points made from now on contain this work.
            shared.absorbed_sequence = message.sequence

        await self.take(message.fragment, fill)
        persist(self.mailbox, self.fragments[message.fragment])

    @contextmanager
    def lend(self, index: int) -> Iterator[Change]:
        """Lend memory for a change of this fragment: a slot of the trainer's inbox, or a buffer that discards the
        change.
        """
        takes_changes = self.is_open and self.section.mode not in ("streaming", "sync")
        is_taken = takes_changes and not self._rebasing and index not in self.undelivered
        draft = self.mailbox.inbox.draft(index) if is_taken else None
        if draft is None:
            yield Discarded()
            return
        self._drafts[index] = draft
        try:
            yield draft.values
        finally:
            if self._drafts.pop(index, None) is draft:
                self.mailbox.inbox.drop(draft)

    def deliver(self, index: int, change: Change | None, version: int) -> None:
        """Post a change that was written to a slot; otherwise `retry` delivers the whole fragment.

        So rounds that are faster than inner steps take no memory here. In mode sync fragments are always delivered
        whole, so
        that rounding errors do not accumulate: lock step guarantees that equal anchors mean equal parameters.
        """
        if not self._has_start(index) or self.section.mode == "streaming" or index in self.undelivered:
            return
        draft = self._drafts.get(index)
        if draft is None or change is not draft.values or self._rebasing:
            self.undelivered[index] = None
            return
        del self._drafts[index]
        self.mailbox.inbox.post(draft, MergeKind.ADD, version=version)

    def deliver_anchor(self, index: int) -> None:
        """Schedule the delivery of the new anchor in mode streaming, where it is blended at once."""
        if self._has_start(index):
            self.undelivered[index] = None

    def put_back(self, index: int) -> None:
        """Deliver a fragment whole, and discard the trainer's later work, because its parameters are not trusted."""
        self.undelivered[index] = None
        self._distrusted.add(index)

    async def retry(self) -> None:
        """Deliver whole fragments that are waiting, if they are not busy and there are slots.

        Work that the trainer posts stays in the outbox until the trainer has taken the fragments (see `take_work`): one
        inner step at most, and in mode sync the trainer waits for this anyway.
        """
        async with self._taking:
            if self._rebasing or not self.is_open:
                return
            for index in list(self.undelivered):
                fragment = self.fragments[index]
                if fragment.busy.locked():
                    continue
                draft = self.mailbox.inbox.draft(index)
                if draft is None:
                    return
                async with fragment.busy:
                    await self._hand_over(fragment, draft)

    def _has_start(self, index: int) -> bool:
        return self.is_open or index in self._started

    async def _hand_over(self, fragment: FragmentRuntime, draft: Draft) -> None:
        """Post the current live parameters of a fragment; the caller holds `fragment.busy`."""
        index, state = fragment.index, fragment.state
        is_distrusted = index in self._distrusted
        del self.undelivered[index]
        self._distrusted.discard(index)
        if self.section.mode == "streaming" and not is_distrusted:
            await self._post_whole(draft, MergeKind.BLEND, partial(np.copyto, src=state.anchor), version=state.version)
            return
        self._rebasing = True
        kind = MergeKind.SET if is_distrusted else MergeKind.REBASE
        await self._post_whole(draft, kind, state.shown, version=state.version)

    async def _post_whole(self, draft: Draft, kind: MergeKind, fill: Callable[[F32], object], **numbers: Any) -> None:
        try:
            await self.compute(lambda: fill(draft.values))
        except BaseException:
            self.mailbox.inbox.drop(draft)
            raise
        self.mailbox.inbox.post(draft, kind, **numbers)
