"""The network side's end of the mailbox: takes work from the trainer, hands changes to it, and never waits for it."""

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
    """See the module docstring. Changes of a fragment are handed over once `open` has posted its starting point.

    Whole fragments are worked out and copied in `compute`, never on the event loop.

    Attributes:
        take: what the trainer's work is handed to.
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
        """Hand over the starting point; unsent work of the trainer stays in the fragments `keeps_work`."""
        inbox = self.mailbox.inbox
        for fragment in self.fragments:
            kind = MergeKind.REBASE if fragment.index in keeps_work else MergeKind.SET
            while (draft := inbox.draft(fragment.index)) is None:
                if self.mailbox.trainer.finished:
                    break
                # The trainer frees slots in another process: there is no event to wait for.
                await asyncio.sleep(self.poll_seconds)
            if draft is not None:
                async with fragment.busy:
                    await self._post_whole(draft, kind, fragment.state.shown, version=fragment.state.version)
                    # The trainer frees slots slowly: rounds of this fragment go on while others wait for one.
                    self._started.add(fragment.index)
        self._rebasing = bool(keeps_work)
        self.is_open = True

    def open_without_trainer(self) -> None:
        """Begin with nobody to hand anything to: a seed's node."""
        self.is_open = True

    async def take_work(self) -> None:
        """Pass on what the trainer has posted, oldest first."""
        async with self._taking:
            if self._rebasing:
                # The trainer subtracts what lies in the outbox from its new starting point: until then it must stay
                # there. One that has finished takes no new starting point.
                if self.mailbox.inbox.num_free() < NUM_SLOTS and not self.mailbox.trainer.finished:
                    return
                self._rebasing = False
            for message in self.mailbox.outbox.take():
                if self._rebasing:
                    break
                if self._is_held(message):
                    continue
                if message.kind is WorkKind.WORK:
                    await self._absorb(message)
                self.mailbox.outbox.release(message.slot)

    def expect(self, number: int, fragments: Sequence[int]) -> None:
        """Once the trainer has taken moment `number`, these fragments get none of its later work until `release`."""
        self._moment, self._held = number, set(fragments)

    def release(self, fragment: int) -> None:
        """The fragment gets all work again."""
        self._held.discard(fragment)

    async def take_up_to(self, sequence: int) -> None:
        """Pass on all messages up to `sequence`; return when they are in their fragments."""
        while True:
            await self.take_work()
            if all(message.sequence > sequence for message in self.mailbox.outbox.take()):
                return
            await asyncio.sleep(self.poll_seconds)

    def _is_held(self, message: WorkMessage) -> bool:
        # Looked at after the message was seen: whatever the trainer posted after the moment is recognised as later.
        trainer = self.mailbox.trainer
        is_later = trainer.moment == self._moment and message.sequence > trainer.moment_sequence
        return is_later and message.fragment in self._held

    async def _absorb(self, message: WorkMessage) -> None:
        shared = self.mailbox.states[message.fragment]
        if message.sequence <= shared.absorbed_sequence:
            return

        def fill(state: FragmentState) -> None:
            state.receive_work(message.values, message.num_tokens, message.num_steps, message.base_version)
            # At once: a starting point that is made from now on contains this work.
            shared.absorbed_sequence = message.sequence

        await self.take(message.fragment, fill)
        persist(self.mailbox, self.fragments[message.fragment])

    @contextmanager
    def lend(self, index: int) -> Iterator[Change]:
        """Lend memory for a change of this fragment: a slot of the trainer's inbox, or one that discards it."""
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
        """Hand a change to the trainer where it was written to a slot; else `retry` hands over the fragment as a whole.

        So rounds that are faster than inner steps take no memory here. In mode sync all is handed over as a whole, so
        that no rounding adds up: lock step promises that equal anchors mean equal parameters.
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
        """Mode streaming: have the new anchor handed over, to be blended at once."""
        if self._has_start(index):
            self.undelivered[index] = None

    def put_back(self, index: int) -> None:
        """Hand over a fragment as a whole, and let go what the trainer did since: its parameters are not trusted."""
        self.undelivered[index] = None
        self._distrusted.add(index)

    async def retry(self) -> None:
        """Hand over whole fragments that are not handed over yet, as far as they are at rest and there are slots.

        Work that the trainer posts stays in the outbox until it has taken them (see `take_work`). That is an inner step
        at most, and in mode sync the trainer waits for this anyway.
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
        """Post what the live parameters show of a fragment now; the caller holds `fragment.busy`."""
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
