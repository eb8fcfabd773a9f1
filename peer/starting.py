"""Where a peer starts from: an earlier network process, its checkpoint, the swarm, or the initial parameters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import torch

from averaging.fragment_runtime import Compute, FragmentRuntime
from peer.checkpoint_keeper import CheckpointKeeper
from peer.fetching import Fetched, Fetcher
from peer.fragment_memory import adopt_snapshot, changing, persist, restart_machine
from peer.mailbox import Mailbox, WorkKind
from peer.membership import Membership
from peer.reporting import Reporter
from peer.trainer_desk import TrainerDesk


class Start:
    """Brings every fragment to the best state there is; `run` once, before any round.

    Args:
        trains: whether a trainer is at the other end of the mailbox; a seed takes its state from the swarm.
        keeper: the checkpoints of this peer; None keeps none.
        look_seconds: pause between two looks for somebody with a state.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        fragments: Sequence[FragmentRuntime],
        desk: TrainerDesk,
        membership: Membership,
        fetcher: Fetcher,
        keeper: CheckpointKeeper | None,
        reporter: Reporter,
        *,
        trains: bool,
        clock: Callable[[], float],
        compute: Compute,
        poll_seconds: float,
        look_seconds: float,
    ) -> None:
        self._mailbox = mailbox
        self._fragments = fragments
        self._desk = desk
        self._membership = membership
        self._fetcher = fetcher
        self._keeper = keeper
        self._reporter = reporter
        self._trains = trains
        self._clock = clock
        self._compute = compute
        self._poll_seconds = poll_seconds
        self._look_seconds = look_seconds
        self._restored: frozenset[int] = frozenset()

    async def run(self) -> None:
        """Anchors for every fragment: an earlier network process's, fetched from the swarm, or the initial ones."""
        has_begun = bool(self._mailbox.network.ready)
        resumed = [self._resume(fragment) for fragment in self._fragments]
        if not all(resumed):
            missing = [index for index, ok in enumerate(resumed) if not ok]
            if has_begun:
                self._salvage(missing)
            else:
                if self._trains:
                    await self._take_initial(set(missing))
                await self._restore(missing)
            await self._catch_up()
        for fragment in self._fragments:
            persist(self._mailbox, fragment)
        if self._trains:
            await self._desk.open(has_begun=has_begun)
        else:
            self._desk.is_open = True

    def _resume(self, fragment: FragmentRuntime) -> bool:
        shared = self._mailbox.states[fragment.index]
        state = fragment.state
        if shared.writing or shared.digest == bytes(32) or state.refresh_digest() != shared.digest:
            return False
        state.version, state.lineage_tokens = shared.version, shared.lineage_tokens
        state.unsent_tokens, state.unsent_steps = shared.unsent_tokens, shared.unsent_steps
        state.unsent_base_version = shared.unsent_base_version
        restart_machine(fragment)
        return True

    async def _take_initial(self, missing: set[int]) -> None:
        """Wait for the trainer's initial parameters; work that it hands over meanwhile stays in its slots."""
        while missing:
            for message in self._mailbox.outbox.take():
                if message.kind is not WorkKind.INITIAL:
                    continue
                fragment = self._fragments[message.fragment]
                with changing(self._mailbox, fragment.index, fragment.state):
                    fragment.state.anchor.copy_(message.values)
                    fragment.state.momentum.zero_()
                    fragment.state.residual.zero_()
                    await self._compute(fragment.state.refresh_digest)
                # Persisted before the slot is released: the trainer posts them only once.
                self._mailbox.outbox.release(message.slot)
                restart_machine(fragment)
                missing.discard(message.fragment)
            if missing:
                await asyncio.sleep(self._poll_seconds)

    async def _restore(self, missing: list[int]) -> None:
        """Go on from the newest checkpoint; where the swarm has something heavier, `_catch_up` replaces it."""
        saved = None if self._keeper is None else await self._keeper.restore(missing)
        if saved is not None:
            self._mailbox.network.rounds_contributed = saved.rounds_contributed
            self._restored = frozenset(missing)
            for index in missing:
                restart_machine(self._fragments[index])

    def _salvage(self, torn: list[int]) -> None:
        """An earlier network process died while it wrote these anchors: anybody else's are better.

        A peer that is alone goes on with what is there; nobody else has another state that it could contradict.
        """
        for index in torn:
            fragment, shared = self._fragments[index], self._mailbox.states[index]
            state = fragment.state
            for tensor in (state.anchor, state.momentum, state.residual):
                torch.nan_to_num_(tensor, nan=0.0, posinf=0.0, neginf=0.0)
            state.version, state.lineage_tokens = shared.version, 0
            state.refresh_digest()
            restart_machine(fragment)

    async def _catch_up(self) -> None:
        """Fetch every fragment of which the swarm has something better; a seed waits until somebody has a state."""
        began = self._clock()
        while True:
            await self._fetch_better()
            if self._trains or all(fragment.state.digest for fragment in self._fragments):
                return
            self._reporter.waiting("no trainer has a state yet", self._clock() - began)
            await asyncio.sleep(self._look_seconds)
            await self._membership.look()

    async def _fetch_better(self) -> None:
        began = self._clock()

        async def adopt(index: int, found: Fetched) -> None:
            fragment = self._fragments[index]
            if index in self._restored:
                # The swarm went on without this peer's saved work, or with it: it must not come twice.
                fragment.state.drop_waiting()
            adopt_snapshot(fragment.state, found.snapshot)
            fragment.digests = {found.snapshot.version: found.snapshot.digest}
            restart_machine(fragment)

        states = {fragment.index: fragment.state for fragment in self._fragments}
        donors = await self._fetcher.fetch_better(states, adopt)
        if donors:
            fetched = tuple(sorted(donors))
            num_bytes = sum(8 * states[index].num_values for index in fetched)
            self._reporter.caught_up(fetched, donors[fetched[0]][0], num_bytes, self._clock() - began)
