"""Finds the state to start from: an earlier network process, a checkpoint, the swarm, or initial parameters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import numpy as np

from averaging.fragment.runtime import FragmentRuntime
from averaging.outer.own_contributions import OwnWork
from averaging.rounds.round_facts import WorkLost
from averaging.wire.work_by_range import Waiting, is_whole
from dht.ground.compute import Compute
from peer.checkpoint.checkpoint import SavedCheckpoint
from peer.events.peer_events import SwarmContact
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import WorkKind
from peer.network.anchors.fetcher import Fetched, Fetcher
from peer.network.membership.membership import Membership
from peer.network.node.checkpoint_keeper import CheckpointKeeper
from peer.network.node.fragment_memory import adopt_snapshot, inherited, persist
from peer.network.node.reporter import Reporter
from peer.network.node.trainer_desk import TrainerDesk


@dataclass
class StartingState:
    """Brings every fragment to the best available state: `run` once, before any round, then `hand_over`.

    Attributes:
        trains: whether the mailbox has a trainer; a seed takes its state from the swarm.
        keeper: the checkpoints of this peer; None keeps none.
        look_seconds: pause between two searches for a member with a state.
    """

    mailbox: Mailbox
    fragments: Sequence[FragmentRuntime]
    desk: TrainerDesk
    membership: Membership
    fetcher: Fetcher
    keeper: CheckpointKeeper | None
    reporter: Reporter
    _: KW_ONLY
    trains: bool
    compute: Compute
    look_seconds: float
    _saved: SavedCheckpoint | None = field(default=None, init=False)
    _given_up: set[int] = field(default_factory=set, init=False)

    async def run(self) -> None:
        """Set the anchor of every fragment: from an earlier network process, from the swarm, or from initial
        parameters.
        """
        has_begun = bool(self.mailbox.network.ready)
        missing = [fragment.index for fragment in self.fragments if not self._resume(fragment)]
        if has_begun:
            if missing:
                self._salvage(missing)
                await self._catch_up()
        else:
            # The trainer posts its initial parameters once. A fragment with a digest received them, and was torn by a
            # later death.
            torn = [index for index in missing if self.mailbox.states[index].digest != bytes(32)]
            self._salvage(torn)
            missing = [index for index in missing if index not in torn]
            if missing and self.trains:
                await self._take_initial(set(missing))
            if not self.mailbox.network.restored_moment:
                await self._restore()
            elif self.keeper is not None:
                # An earlier process had already restored in this start; load the same facts about the checkpoint again.
                saved = await self.keeper.find(self._num_others)
                is_same = saved is not None and saved.number == self.mailbox.network.restored_moment
                self._saved = saved if is_same else None
            await self._catch_up()
        for fragment in self.fragments:
            persist(self.mailbox, fragment)
        if self._saved is not None:
            await self.compute(self._saved.note_use)

    async def hand_over(self) -> None:
        """Send the trainer the current state of the fragments, to begin or to continue with."""
        if not self.trains:
            self.desk.is_open = True
            return
        everywhere = bool(self.mailbox.network.ready) or self.mailbox.network.restored_moment > 0
        indices = {fragment.index for fragment in self.fragments}
        await self.desk.open(keeps_work=indices - self._given_up if everywhere else ())

    def _resume(self, fragment: FragmentRuntime) -> bool:
        shared = self.mailbox.states[fragment.index]
        state = fragment.state
        if shared.writing or shared.digest == bytes(32) or state.refresh_digest() != shared.digest:
            return False
        state.begin_at(shared.version, shared.lineage_tokens)
        work = (shared.unsent_tokens, shared.unsent_steps, shared.unsent_base_version)
        # A process that dies while writing leaves ranges that do not fit; then all work counts as old as its oldest
        # part.
        parts = shared.unsent_parts
        state.give_back(
            OwnWork(
                *work,
                parts if is_whole(Waiting(*work, parts), state.num_values) else (),
                pending=inherited(shared, state.codec),
            )
        )
        fragment.restart()
        return True

    async def _take_initial(self, missing: set[int]) -> None:
        """Wait for the trainer's initial parameters; work that the trainer posts meanwhile stays in its slots."""
        while missing:
            for message in self.mailbox.outbox.take():
                if message.kind is not WorkKind.INITIAL:
                    continue
                fragment = self.fragments[message.fragment]
                with fragment.changing():
                    fragment.state.anchor[:] = message.values
                    fragment.state.momentum.fill(0)
                    fragment.state.residual.fill(0)
                    await self.compute(fragment.state.refresh_digest)
                # Persisted before the slot is released, because the trainer posts them only once.
                self.mailbox.outbox.release(message.slot)
                fragment.restart()
                missing.discard(message.fragment)
            if missing:
                await asyncio.sleep(self.desk.poll_seconds)

    async def _restore(self) -> None:
        """Restore the newest checkpoint; `_catch_up` replaces it if the swarm has a heavier state."""
        network = self.mailbox.network
        saved = None if self.keeper is None else await self.keeper.find(self._num_others)
        if saved is None or self.keeper is None:
            network.restored_moment = -1
            return
        self._saved = saved
        self.reporter.restored(saved.totals)
        network.run_tokens = max(network.run_tokens, saved.totals.run_tokens)
        for fragment in self.fragments:
            with fragment.changing():
                await self.compute(partial(saved.restore, fragment.index, fragment.state))
            fragment.restart()
            persist(self.mailbox, fragment)
            await self.keeper.bring_back_commits(fragment, saved)
        network.restored_moment = saved.number if saved.has_trainer else -1

    def _num_others(self) -> int:
        return len(self.membership.members())

    def _salvage(self, torn: list[int]) -> None:
        """Repair anchors torn by the death of an earlier network process; any other member's anchor replaces them.

        A peer that is alone continues with the repaired values; no other member has a state that could contradict them.
        """
        for index in torn:
            fragment, shared = self.fragments[index], self.mailbox.states[index]
            state = fragment.state
            for values in (state.anchor, state.momentum, state.residual):
                np.nan_to_num(values, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
            state.begin_at(shared.version, 0)
            state.refresh_digest()
            fragment.restart()

    async def _catch_up(self) -> None:
        """Fetch every fragment for which the swarm has a better state; a seed waits until some member has a state."""
        began = self.reporter.clock()
        while True:
            await self._fetch_better()
            if self.trains or all(fragment.state.digest for fragment in self.fragments):
                return
            self.reporter.report(
                SwarmContact("waiting", self.reporter.clock() - began, reason="no trainer has the model yet")
            )
            await asyncio.sleep(self.look_seconds)
            await self.membership.look()

    async def _fetch_better(self) -> None:
        states = {fragment.index: fragment.state for fragment in self.fragments}
        began = self.reporter.clock()
        donors = await self.fetcher.fetch_better(states, self._adopt, self.reporter.catch_up.arrived)
        if donors:
            num_bytes = sum(8 * states[index].num_values for index in donors)
            self.reporter.caught_up(donors, num_bytes, self.reporter.clock() - began)

    async def _adopt(self, index: int, found: Fetched) -> None:
        fragment, snapshot = self.fragments[index], found.snapshot
        state = fragment.state
        if self._saved is not None and self.keeper is not None:
            await self.keeper.keep_lineage()
        is_new_session = not self.mailbox.network.ready
        if is_new_session and not self._is_unsent():
            # The swarm went on with or without this peer's unsent work, which must not be counted twice.
            num_tokens = state.unsent_tokens + (state.pending.tokens if state.pending is not None else 0)
            state.give_up_work()
            self._given_up.add(index)
            if num_tokens:
                staleness = snapshot.version - state.version
                self.reporter.report(WorkLost(index, state.version, num_tokens, "late", staleness))
        lost = fragment.enter_lineage(lambda state: adopt_snapshot(state, snapshot), snapshot.commits, self.reporter.me)
        if lost:
            self.reporter.report(WorkLost(index, state.version, lost, "fork"))
        if is_new_session:
            state.base_ceiling = None  # its trainer begins at this anchor
        fragment.restart([commit for commit in snapshot.commits if commit.version < snapshot.version])

    def _is_unsent(self) -> bool:
        """Return whether the unsent work in the checkpoint was certainly not sent in a later session."""
        if self._saved is None:
            return self.mailbox.network.restored_moment <= 0
        return self._saved.is_settled
