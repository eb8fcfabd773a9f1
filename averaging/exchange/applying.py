"""Changes of one peer's anchors: commits whose results have arrived, and anchors adopted from the swarm.

For each commit, this module collects the results (`result_search.py`), checks suspicious means (`audit.py`), steps the
anchor and passes the change to the trainer. The trainer's mailbox lends the memory of a change until the trainer has
received the change.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from averaging.codec.blocks import Buffer
from averaging.exchange.audit import Audits
from averaging.exchange.exchange_ports import Context
from averaging.exchange.result_search import ResultSearch
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import terms_of
from averaging.outer.change_buffers import Change
from averaging.outer.contribution_weights import shard_rates, weights_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.outer_step import RunningDigest
from averaging.outer.own_contributions import CommittedShard
from averaging.rounds.machine_events import Apply, ApplyFailed, Repair, ResultArrived
from averaging.rounds.round_facts import CommitTaken, Fact, RepairNeeded, RoundCommitted, WorkLost, WorkReturned
from averaging.wire.messages import Commit, Result, ResultRequest, VersionIs, own_entry
from dht.ground.host import PeerId

MAX_DOUBTS = 16
"""Claims of a better anchor that are examined at once, for each fragment. Anyone can create many keys, and each
examination opens a stream. After a split of the swarm, one claim from the other side is enough."""


@dataclass
class _Anchor:
    """Doubts about the anchor of one fragment."""

    is_being_replaced: bool = False
    """A claim was right, and its anchor is being fetched."""
    doubted_by: set[PeerId] = field(default_factory=set)
    """Members whose claims of a better anchor are being examined."""
    unfetchable: Commit | None = None
    """The commit whose results no peer has, or that failed while the anchor was changing, until the repair ends."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """Outcome of an applied commit.

    Attributes:
        num_returned: number of values of own work that were sent but are not in the mean.
        own_included: whether the roster contains own work.
    """

    num_returned: int
    own_included: bool
    outer_lr: float


class Applying:
    """Changes of the anchors of all fragments of one peer.

    Args:
        on_advanced: called when a fragment has reached another version, with the commits of its lineage if the anchor
            was fetched.
        on_free: called when the doubts about a fragment's anchor are settled.
    """

    def __init__(
        self,
        context: Context,
        audits: Audits,
        on_advanced: Callable[[FragmentRuntime, tuple[Commit, ...] | None], None],
        on_free: Callable[[FragmentRuntime], None],
    ) -> None:
        self._context = context
        self._audits = audits
        self._on_advanced = on_advanced
        self._on_free = on_free
        self._searches: list[ResultSearch] = []
        self._anchors = [_Anchor() for _ in context.fragments]

    # ------------------------------------------------------------------------------------------------------ results

    def take_result(
        self, fragment: FragmentRuntime, sender: PeerId, message: Result, payload: memoryview, frame_bytes: int
    ) -> bool:
        """Store a mean that another peer sent.

        Raises:
            PeerFault: the payload has the wrong size, or the sender exceeds its share of memory here.
        """
        version = fragment.machine.version
        if not version <= message.version <= version + 1:
            return False
        digest = fragment.store.take_result(sender, message, payload)
        if digest:
            fragment.traffic.received(frame_bytes, message.end - message.start)
            self.result_arrived(fragment)
            if message.version == version:
                kept = bytes(payload)
                for peer_id in fragment.machine.next_to(message.shard, sender):
                    self._context.links.send(peer_id, message, [kept])
                self._context.step(fragment, ResultArrived(sender, message.shard))
        return False

    def result_arrived(self, fragment: FragmentRuntime) -> None:
        for search in self._searches_for(fragment):
            search.note_arrival()

    def give_result(self, fragment: FragmentRuntime, to: PeerId, request: ResultRequest) -> bool:
        """Send the requested result, or this peer's version if the result is not here."""
        found = stored_result(fragment, to, request)
        if found is None:
            self.say_version(fragment, to)
        else:
            self._context.links.send(to, found[0], [found[1]])
        return False

    def say_version(self, fragment: FragmentRuntime, to: PeerId) -> None:
        self._context.links.send(to, fragment.machine.version_is())

    def hear_version(self, fragment: FragmentRuntime, sender: PeerId, theirs: VersionIs) -> bool:
        """Handle another member's version, which may show that no peer keeps the searched results any more, or that
        this peer audits too late.
        """
        self._audits.note_version(fragment, sender, theirs.version)
        for search in self._searches_for(fragment):
            if search.commit is fragment.machine.applying:
                search.note_version(sender, theirs)
        return True

    def peer_lost(self, peer_id: PeerId) -> None:
        """Handle a lost connection: the peer sends no more results."""
        for search in self._searches:
            search.note_lost(peer_id)

    def _searches_for(self, fragment: FragmentRuntime) -> list[ResultSearch]:
        return [search for search in self._searches if search.commit.fragment == fragment.index]

    # ------------------------------------------------------------------------------------------------------ commits

    def apply(self, fragment: FragmentRuntime, effect: Apply) -> None:
        """Fetch the results of a commit and apply it in a background task."""
        self._context.spawn(self._fetch_or_give_up(fragment, effect.commit))

    async def _fetch_or_give_up(self, fragment: FragmentRuntime, commit: Commit) -> None:
        """Apply a commit. An unexpected error is logged and costs this peer one version, not the fragment."""
        try:
            if not fragment.is_torn:
                await self._fetch_and_apply(fragment, commit)
        except Exception:  # any error: a commit that stays in progress would end this fragment's rounds
            if not fragment.is_torn and fragment.machine.version != fragment.state.version:
                self._on_advanced(fragment, None)
            elif not fragment.is_torn:
                self._not_applied(fragment, commit)
            raise
        finally:
            if fragment.is_torn:
                # A second step would change some values twice.
                self._anchors[fragment.index].unfetchable = commit
                others = (entry.peer_id for entry in commit.roster if entry.peer_id != self._context.me)
                self.ask_repair(fragment, Repair(next(others, commit.leader), "an update of its anchor failed halfway"))

    async def _fetch_and_apply(self, fragment: FragmentRuntime, commit: Commit) -> None:
        context, clock = self._context, self._context.ports.clock
        notary, begun = fragment.machine.notary, clock()
        is_own = commit.leader == context.me
        search = ResultSearch(context, fragment, commit)
        self._searches.append(search)
        # The reducers' signatures are checked while the results arrive.
        searching = asyncio.ensure_future(search.run(context.ports.report))
        try:
            objection = "" if is_own else await context.ports.compute(lambda: notary.objection(commit))
            if objection:
                context.guard.unsigned(commit, objection)
                self._not_applied(fragment, commit)
                return
            payloads = await searching
        finally:
            searching.cancel()
            self._searches.remove(search)
        if payloads is None:
            self._anchors[fragment.index].unfetchable = commit
            self.ask_repair(fragment, Repair(commit.leader, "the results of a committed round cannot be fetched"))
            return
        self._give_household(fragment, commit, payloads)
        arrived, leader = clock(), fragment.machine.leader
        # This peer may have met members meanwhile, so that one contributor is too few of them.
        is_too_small = len(commit.included) == 1 and not context.guard.follows([commit], fragment.machine)
        if is_too_small or not await self._audits.passes(fragment, commit, payloads):
            self._not_applied(fragment, commit)
            return
        async with fragment.busy:
            if fragment.state.version != commit.version or fragment.machine.applying is not commit:
                return
            applied = await self._step_and_show(fragment, commit, payloads)
        for fact in _closing_facts(fragment, commit, applied, clock()):
            context.ports.report(fact)
        context.ports.report(CommitTaken(commit, applied.own_included, arrived - begun, clock() - arrived))
        context.guard.closed(commit, leader, fragment.traffic.began_at, fragment.machine.timing)
        self._on_advanced(fragment, None)
        await self._audits.applied(fragment, commit, payloads)

    def _give_household(self, fragment: FragmentRuntime, commit: Commit, payloads: Mapping[int, Buffer]) -> None:
        """Send each result of a large round to one of the peers without work in the round that this peer serves."""
        household = fragment.machine.household_of(commit)
        for index, payload in sorted(payloads.items()) if household else ():
            shard = commit.shards[index]
            header = Result(commit.fragment, commit.version, index, shard.start, shard.end)
            self._context.links.send(household[index % len(household)], header, [payload])

    async def _step_and_show(
        self, fragment: FragmentRuntime, commit: Commit, payloads: Mapping[int, Buffer]
    ) -> _Applied:
        """Step the anchor. The trainer gets the change as soon as it is complete, before the digest is computed."""
        shown = asyncio.Event()
        loop, here = asyncio.get_running_loop(), threading.get_ident()
        with self._context.ports.lend(fragment.index) as change:

            def show() -> None:
                try:
                    self._context.show(fragment, change)
                finally:
                    shown.set()

            def on_applied() -> None:
                if threading.get_ident() == here:
                    show()
                else:
                    loop.call_soon_threadsafe(show)

            applied = await self._step(fragment, commit, payloads, change, on_applied)
            await shown.wait()
        return applied

    async def _step(
        self,
        fragment: FragmentRuntime,
        commit: Commit,
        payloads: Mapping[int, Buffer],
        change: Change,
        on_applied: Callable[[], None],
    ) -> _Applied:
        """Step the fragment from the version of `commit` to the next; the caller holds `fragment.busy`.

        Args:
            payloads: the encoded mean of each shard that is not void.
            change: receives the change to add to the live parameters, float32 [num_values].
            on_applied: called when the change is complete, in the thread of `compute`.
        """
        state = fragment.state
        rule = self._context.rule_at(fragment, commit.version)
        own, sent = own_entry(commit.roster, self._context.me), state.pending
        in_roster = own is not None and sent is not None and own[1].sequence == sent.sequence
        own_index = own[0] if own is not None and in_roster else -1
        shards = [
            _committed_shard(fragment, commit, index, payloads.get(index), own_index, rule)
            for index in range(len(commit.shards))
        ]
        if own_index >= 0:
            terms = [terms_of(rule, commit, member) for member in range(len(commit.roster))]
            state.own_share = weights_of(terms, rule)[own_index]

        def run() -> int:
            with fragment.change(), RunningDigest(state.anchor, state.momentum) as digest:
                _, num_returned = state.apply(shards, commit.tokens, change, digest.stepped_to)
                on_applied()
                state.digest = digest.result()
            return num_returned

        num_returned = await self._context.ports.compute(run)
        fragment.store.settle(commit)
        fragment.log.note_anchor(state.version, state.digest)
        outer_lr = max((shard.outer_lr for shard in shards), default=0.0)
        if sent is not None and self._audits.is_on:
            fragment.store.own_work[commit.version] = sent
        return _Applied(num_returned if sent is not None else 0, own_index >= 0, outer_lr)

    def _not_applied(self, fragment: FragmentRuntime, commit: Commit) -> None:
        self._context.guard.not_applied(commit)
        self._context.step(fragment, ApplyFailed(commit))

    # ----------------------------------------------------------------------------------- anchors of other lineages

    async def adopt(
        self, fragment: FragmentRuntime, set_state: Callable[[FragmentState], None], commits: Sequence[Commit]
    ) -> None:
        """Replace the fragment's anchor with one fetched from the swarm.

        Args:
            set_state: puts the new anchor into the state.
            commits: recent commits of the lineage of the new anchor.
        """
        state, lost, left = fragment.state, 0, fragment.state.digest
        try:
            async with fragment.busy:
                lost = await self._adopt_and_show(fragment, set_state, commits)
        finally:
            if not fragment.is_torn and state.digest != left:
                if lost:
                    self._context.ports.report(WorkLost(fragment.index, state.version, lost, "fork"))
                self._on_advanced(fragment, tuple(commits))

    async def _adopt_and_show(
        self, fragment: FragmentRuntime, set_state: Callable[[FragmentState], None], commits: Sequence[Commit]
    ) -> int:
        """Adopt the anchor, and return the tokens of own work lost with the old one. The caller holds
        `fragment.busy`.
        """
        context, state, is_shown = self._context, fragment.state, False
        with context.ports.lend(fragment.index) as change:
            # After a change that ended halfway, it is unknown which part of it was shown.
            shown = change if isinstance(change, np.ndarray) and not fragment.is_torn else None
            if shown is not None:
                await context.ports.compute(lambda: state.shown(shown))
            lost = await context.ports.compute(lambda: fragment.enter_lineage(set_state, commits, context.me))
            try:
                if shown is not None:
                    await context.ports.compute(lambda: np.subtract(state.shown(), shown, out=shown))
                    context.show(fragment, change)
                    is_shown = True
            finally:
                if not is_shown:
                    # The trainer copies all live parameters again.
                    context.ports.deliver(fragment.index, None, state.version)
        return lost

    def is_repairing(self, fragment: FragmentRuntime) -> bool:
        """Return whether the anchor is about to be replaced. No round begins meanwhile."""
        anchor = self._anchors[fragment.index]
        return anchor.is_being_replaced or anchor.unfetchable is not None

    def begin_repair(self, fragment: FragmentRuntime) -> bool:
        """Block new rounds until the caller ends the repair. Return False if another repair is already running."""
        anchor = self._anchors[fragment.index]
        if anchor.is_being_replaced:
            return False
        anchor.is_being_replaced = True
        return True

    def end_repair(self, fragment: FragmentRuntime) -> None:
        """End a repair, successful or not. Only the caller whose `begin_repair` returned True may call this."""
        self._anchors[fragment.index].is_being_replaced = False
        self._go_on(fragment)

    def ask_repair(self, fragment: FragmentRuntime, effect: Repair) -> None:
        """Request an examination of a claim. Rounds continue meanwhile, because a false claim must not stop them."""
        anchor = self._anchors[fragment.index]
        is_enough = anchor.is_being_replaced or len(anchor.doubted_by) >= MAX_DOUBTS
        if is_enough or effect.peer_id in anchor.doubted_by:
            return
        anchor.doubted_by.add(effect.peer_id)
        version = fragment.machine.version
        self._context.ports.report(RepairNeeded(fragment.index, version, effect.peer_id, effect.reason))

    def looked_into(self, fragment: FragmentRuntime, claimed_by: PeerId) -> None:
        """End the examination that a `RepairNeeded` report requested, with or without a repair."""
        anchor = self._anchors[fragment.index]
        anchor.doubted_by.discard(claimed_by)
        # Another claim may have been right, and its anchor is being fetched.
        if not anchor.is_being_replaced:
            self._go_on(fragment)

    def _go_on(self, fragment: FragmentRuntime) -> None:
        anchor = self._anchors[fragment.index]
        unfetchable, anchor.unfetchable = anchor.unfetchable, None
        if unfetchable is not None:  # no better anchor was found: start over from the same version
            self._not_applied(fragment, unfetchable)
        self._on_free(fragment)


def stored_result(fragment: FragmentRuntime, to: PeerId, request: ResultRequest) -> tuple[Result, Buffer] | None:
    """Return a stored result. Return None if it is not here, if its commit is not followed here, or if the remote has
    received it too often.

    Results that this peer reduced are returned even if their commit is not followed here: no other peer may have them,
    and others may follow that commit.
    """
    place = _place_in_commit(fragment, request) or fragment.store.unsettled_place(request.digest)
    stored = None if place is None else fragment.store.give(request.version, request.shard, request.digest, to)
    if stored is None or place is None:
        return None
    return Result(fragment.index, request.version, request.shard, *place), stored


def _place_in_commit(fragment: FragmentRuntime, request: ResultRequest) -> tuple[int, int] | None:
    """Return the (start, end) of a result's values in the followed commit; None if the result is not in it."""
    commit = fragment.machine.known_commit(request.version)
    if commit is None or request.shard >= len(commit.shards):
        return None
    result = commit.shards[request.shard]
    return (result.start, result.end) if result.digest == request.digest else None


def _closing_facts(fragment: FragmentRuntime, commit: Commit, applied: _Applied, now: float) -> Iterator[Fact]:
    """Yield the facts about an applied commit. Bytes count towards a round only if this peer was in it."""
    if applied.num_returned:
        too_late = "it arrived too late for the round"
        reason = "its shard was void or missed the deadline" if applied.own_included else too_late
        yield WorkReturned(fragment.index, commit.version, reason, applied.num_returned)
    traffic, counted = fragment.traffic, applied.own_included
    yield RoundCommitted(
        fragment=fragment.index,
        version=commit.version,
        contributors=tuple(commit.roster[index].peer_id for index in commit.included),
        outer_lr=applied.outer_lr,
        tokens=commit.tokens,
        num_void_shards=sum(not result.digest for result in commit.shards),
        seconds=now - traffic.began_at if counted else 0.0,
        bytes_up=traffic.up_bytes if counted else 0,
        bytes_down=traffic.down_bytes if counted else 0,
        contribution_values_sent=traffic.up_values if counted else 0,
        result_values_received=traffic.down_values if counted else 0,
    )


def _committed_shard(
    fragment: FragmentRuntime, commit: Commit, index: int, payload: Buffer | None, own_index: int, rule: OuterRule
) -> CommittedShard:
    result = commit.shards[index]
    gradient = None if payload is None else fragment.store.unpack(result.end - result.start, payload)
    terms = [terms_of(rule, commit, member, result.start, result.end) for member in result.included]
    outer_lr, outer_momentum = shard_rates(terms, rule)
    own_included = own_index in result.included
    return CommittedShard(result.start, result.end, gradient, outer_lr, own_included, outer_momentum)
