"""The async shell around the round machines: performs their effects on a Host and feeds back what happens.

Per fragment it owns a `FragmentState` (arrays), a `RoundMachine` (protocol) and the bytes under way. It never waits
for the trainer: `deliver` takes changes for the live parameters and returns at once. Work on them goes through the
`compute` port (a thread in real life, inline in virtual time).
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from averaging.codec.codec import Codec
from averaging.exchange import bulk_frames
from averaging.exchange.audit import AUDIT_MESSAGES, AuditPorts, Audits
from averaging.exchange.background import Background
from averaging.exchange.cell_exchange import CellEffect, CellExchange
from averaging.exchange.committing import adopt_anchor, apply_commit
from averaging.exchange.delivery import Deliveries
from averaging.exchange.looking_ahead import expect, look_ahead
from averaging.exchange.offering import drop_expired, encode_and_offer, offer_of
from averaging.exchange.result_search import ResultSearch
from averaging.fragment.runtime import Compute, FragmentRuntime
from averaging.lanes.links import Links
from averaging.outer.change import Buffers, Change, Deliver, Lend
from averaging.outer.contributions import Announced, Sent
from averaging.outer.fragment_state import FragmentState
from averaging.outer.outer_step import OuterRule, staleness_of
from averaging.outer.reduction import Reduction, reduce_shard
from averaging.rounds.events import (
    Advanced,
    Apply,
    ApplyFailed,
    ContributionArrived,
    DeadlinePassed,
    Event,
    Heard,
    Lost,
    Ready,
    ReduceShard,
    Repair,
    ResultArrived,
    SendMessage,
    SendResult,
    SendShards,
    ShardReduced,
    Tick,
    View,
    WronglySigned,
)
from averaging.rounds.facts import AnchorMoved, CommitApplied, ContributionSent, ExchangeReport, RepairNeeded, report_of
from averaging.trust.guard import Guard
from averaging.wire import frames
from averaging.wire.messages import (
    DIGEST_BYTES,
    HISTORY_COMMITS,
    Abandon,
    CellLevel,
    Commit,
    Contribution,
    Message,
    Offer,
    Plan,
    Reduced,
    Result,
    ResultRequest,
    VersionIs,
    own_entry,
)
from dht.host import PeerId

log = logging.getLogger(__name__)


class Exchange:
    """Rounds of all fragments of one run at one peer; see the module docstring."""

    def __init__(
        self,
        me: PeerId,
        rule: OuterRule,
        codec: Codec,
        fragments: Sequence[FragmentRuntime],
        *,
        clock: Callable[[], float],
        compute: Compute,
        deliver: Deliver,
        report: Callable[[ExchangeReport], None],
        first_sequence: int,
        lend: Lend | None = None,
    ) -> None:
        self.me = me
        self.rule = rule
        # The outer rate may change with the version; the owner of this exchange says when.
        self.rule_at: Callable[[int], OuterRule] = lambda version: rule
        self.reduce = reduce_shard
        self.codec = codec
        self.fragments = list(fragments)
        self._given_links: Links | None = None
        self._deliveries = Deliveries(lambda index: fragments[index].machine.version, HISTORY_COMMITS)
        self.reachable = self.takes_part = True
        self._clock = clock
        self._compute = compute
        self._deliver = deliver
        self._report = report
        self._sequence = first_sequence
        self.guard = Guard(me, rule.staleness_limit, clock, report)
        self.guard.on_exclusion = lambda: self.set_view(*self._seen)
        self.guard.leaders.is_strict = rule.is_strict
        for fragment in self.fragments:
            fragment.machine.objection = partial(self.guard.claim_objection, timing=fragment.machine.timing)
            fragment.machine.doubt = partial(self.guard.doubts, timing=fragment.machine.timing)
        self._background = Background()
        self._spawn = self._background.spawn
        heard = lambda: (*self._seen[0], *self._seen[1])  # noqa: E731
        ports = AuditPorts(compute, lambda: self._links, self.guard.blame, heard, self._spawn)
        self.audits = Audits(me, rule, codec, self.fragments, ports)
        self._seen: tuple[Sequence[PeerId], Sequence[PeerId], int] = ((), (), 0)
        buffers = Buffers()
        self._lend = lend or (lambda index: buffers.lent(fragments[index].state.num_values))
        self._closed = False
        self._cells = CellExchange(me, rule, codec, self.guard, compute, self._step, lambda: self._links, self._spawn)

    # --------------------------------------------------------------------------------------- inputs from outside

    def set_view(self, trainers: Sequence[PeerId], followers: Sequence[PeerId], num_known: int = 0) -> None:
        """The live trainers, and the other members, as this peer sees them now.

        `num_known` counts the trainers with those that do not answer now though their records are alive.
        """
        self._seen = (trainers, followers, num_known)
        excluded = self.guard.excluded(trainers)
        # Who is left out of rounds still hears of commits.
        live = tuple(trainers) if not excluded else tuple(set(trainers) - excluded)
        view = View(live, (*followers, *excluded), max(len(live), num_known - len(excluded)))
        for fragment in self.fragments:
            if fragment.view != view:
                fragment.view = view
                self._step(fragment, view)

    def audit(self, index: int, peer_id: PeerId) -> None:
        """Tell `peer_id`, which announced another anchor, what we have; the heavier side answers, the other repairs."""
        machine = self.fragments[index].machine
        message = VersionIs(index, machine.version, machine.anchor_digest, machine.lineage_tokens)
        self._links.post(peer_id, [frames.encode(message)])

    def peer_lost(self, peer_id: PeerId, reason: str) -> None:
        """The connection to a peer broke."""
        for fragment in self.fragments:
            self._step(fragment, Lost(peer_id, reason))

    def on_message(self, sender: PeerId, message: Message, payload: memoryview, frame_bytes: int) -> None:
        """A checked frame from an admitted peer (see `Links`).

        Raises:
            PeerFault: the payload does not fit, a commit is not signed by its leader, or the sender holds more than its
                share of memory here.
        """
        fragment = self.fragments[message.fragment]
        if reason := self.guard.objection(sender, message, fragment.machine):
            if isinstance(message, Offer):
                self._links.post(
                    sender, [frames.encode(Abandon(fragment.index, message.version, message.attempt, reason))]
                )
            if isinstance(message, Commit) and self.guard.leaders.gives_up(message, fragment.machine.leader):
                self._step(fragment, Lost(message.leader, reason))
            return
        if isinstance(message, CellLevel) and self._cells.take(fragment, sender, message, payload):
            return
        if isinstance(message, AUDIT_MESSAGES):
            self.audits.hear(sender, message, payload)
        elif isinstance(message, Contribution):
            self._take_contribution(fragment, sender, message, payload)
        elif isinstance(message, Result):
            self._take_result(fragment, sender, message, payload, frame_bytes)
        elif isinstance(message, ResultRequest):
            if not bulk_frames.post_stored(self._links, fragment, sender, message):
                self.audit(fragment.index, sender)
        else:
            if isinstance(message, VersionIs):
                fragment.hear_version(sender, message)
            if isinstance(message, Commit):
                self.guard.check_leader(sender, message, fragment.machine)
            if not isinstance(message, Offer | Reduced) and fragment.machine.is_offering:
                fragment.down_bytes += frame_bytes
            self._step(fragment, Heard(sender, message))

    async def work_arrived(self, index: int, fill: Callable[[FragmentState], None]) -> None:
        """The trainer handed over work: `fill` adds it to the state (called in the compute port)."""
        fragment = self.fragments[index]
        fragment.machine.timing.own_pace.observe(self._clock())
        async with fragment.busy:
            await self._compute(lambda: fill(fragment.state))
        await self.offer(fragment)

    async def offer(self, fragment: FragmentRuntime) -> None:
        """Go for the next round with the waiting work, unless a contribution is under way already.

        The offer leaves before the work is encoded: the plan takes a round trip, and encoding as long. What is said of
        the work cannot change meanwhile, and no shard leaves before all of it can be found by a restarted process.
        """
        state, machine = fragment.state, fragment.machine
        async with fragment.busy:
            sent = state.pending
            is_new = sent is None and state.unsent_tokens > 0
            # An earlier process's contribution keeps its sequence: the commit of its round may still come.
            is_inherited = sent is not None and not machine.is_offering
            ready = (is_new or is_inherited) and machine.applying is None
            if not ready or fragment.repairing or not self.takes_part or self._closed:
                return
            if sent is not None:
                self._begin_round(fragment, sent)
                return
            expired = await drop_expired(fragment, self.rule, self._compute)
            if expired is not None:
                self._show(fragment, expired.change)
                fragment.persist()
                self._report(expired.report)
                return
            self._sequence += 1
            told = state.announce(self._sequence)
            sent = await encode_and_offer(fragment, told, self._compute, partial(self._begin_round, fragment, told))
            with self._lend(fragment.index) if state.shows_sends else nullcontext() as change:
                self._show(fragment, await self._compute(lambda: state.after_send(sent, change)))

    def _begin_round(self, fragment: FragmentRuntime, work: Announced | Sent) -> None:
        fragment.round_began_at = self._clock()
        fragment.up_bytes = fragment.up_values = fragment.down_bytes = fragment.down_values = 0
        rate = self.links.traffic.upload_bits_per_second if self.links else 0.0
        self._step(fragment, Ready(offer_of(fragment, work, rate, reachable=self.reachable)))

    def _show(self, fragment: FragmentRuntime, change: Change | None) -> None:
        if change is not None:
            self._deliver(fragment.index, change, fragment.state.version)

    async def adopt(self, index: int, set_state: Callable[[FragmentState], None], commits: Sequence[Commit]) -> None:
        """Replace the fragment's anchor by one fetched from the swarm; `commits` are recent ones of its lineage.

        They tell what became of own contributions there (see `FragmentState.settle_in_new_lineage`).
        """
        fragment = self.fragments[index]
        async with fragment.busy:
            change, forgotten = await adopt_anchor(fragment, set_state, commits, self.me, self._compute)
            self._show(fragment, change)
        for report in forgotten:
            self._report(report)
        self._after_advance(fragment, tuple(commits))

    async def close(self) -> None:
        """Stop all tasks and timers."""
        self._closed = True
        for fragment in self.fragments:
            if fragment.timer is not None:
                fragment.timer.cancel()
        await self._background.close()

    # ------------------------------------------------------------------------------------------ machine and effects

    def _step(self, fragment: FragmentRuntime, event: Event) -> None:
        if self._closed:
            return
        for effect in fragment.machine.step(event, self._clock()):
            if isinstance(effect, SendMessage):
                sent_bytes = self._links.post(effect.to, [frames.encode(effect.message)])
                if fragment.machine.is_offering and not isinstance(effect.message, Commit | Plan):
                    fragment.up_bytes += sent_bytes
            elif isinstance(effect, SendShards):
                self._send_shards(fragment, effect)
            elif isinstance(effect, ReduceShard):
                self._spawn(self._reduce(fragment, effect))
            elif isinstance(effect, SendResult):
                self._deliveries.post(self._links, fragment, effect)
            elif isinstance(effect, CellEffect):
                self._cells.perform(fragment, effect)
            elif isinstance(effect, Apply):
                self._spawn(self._apply(fragment, effect.commit))
            elif isinstance(effect, Repair):
                self._ask_repair(fragment, effect.peer_id, effect.reason)
            elif isinstance(effect, WronglySigned):
                self.guard.blame(effect.peer_id, "misfit", effect.what)
            elif (report := report_of(fragment.index, fragment.machine.version, effect)) is not None:
                self._report(report)
        self._set_timer(fragment)

    def _note_expiry(self, fragment: FragmentRuntime, passed: DeadlinePassed) -> None:
        report = report_of(fragment.index, fragment.machine.version, passed)
        assert report is not None
        self._report(report)

    def _set_timer(self, fragment: FragmentRuntime) -> None:
        if fragment.timer is not None:
            fragment.timer.cancel()
            fragment.timer = None
        when = fragment.machine.next_time
        if when < math.inf:
            delay = max(0.0, when - self._clock())
            loop = asyncio.get_running_loop()
            fragment.timer = loop.call_later(delay, self._step, fragment, Tick())

    def _send_shards(self, fragment: FragmentRuntime, effect: SendShards) -> None:
        if fragment.encoded.is_set():
            self._post_shards(fragment, effect)
        else:
            self._spawn(self._send_shards_later(fragment, effect))

    async def _send_shards_later(self, fragment: FragmentRuntime, effect: SendShards) -> None:
        await fragment.encoded.wait()
        if fragment.machine.version == effect.plan.version:
            self._post_shards(fragment, effect)

    def _post_shards(self, fragment: FragmentRuntime, effect: SendShards) -> None:
        sent, plan = fragment.state.pending, effect.plan
        entry = own_entry(plan.roster, self.me)
        if sent is None or entry is None or entry[1].sequence != sent.sequence:
            return
        self.guard.leaders.sent(fragment.index, plan.version, plan.attempt, effect.leader, self._clock())
        bulk_frames.post_shards(self._links, fragment, effect, sent, self.me, self.audits.signed)
        late = staleness_of(self.rule.mode, plan.version, entry[1].base_version)
        self._report(ContributionSent(fragment.index, plan.version, fragment.up_bytes, sent.tokens, sent.steps, late))

    # ------------------------------------------------------------------------------------------------ bulk data

    def _take_contribution(
        self, fragment: FragmentRuntime, sender: PeerId, message: Contribution, payload: memoryview
    ) -> None:
        machine = fragment.machine
        if machine.version <= message.version <= machine.version + 1:
            fragment.store.take_contribution(sender, message, payload)
        if machine.version - 1 <= message.version <= machine.version:
            is_late = message.version < machine.version
            self._step(fragment, ContributionArrived(sender, message.attempt, message.leader, message.shard, is_late))

    def _take_result(
        self, fragment: FragmentRuntime, sender: PeerId, message: Result, payload: memoryview, frame_bytes: int
    ) -> None:
        version = fragment.machine.version
        if not version <= message.version <= version + 1:
            return
        digest = fragment.store.take_result(sender, message, payload)
        if digest:
            fragment.down_bytes += frame_bytes
            fragment.down_values += message.end - message.start
            fragment.result_arrived.set()
            self._cells.relay(fragment, sender, message, payload)
            if message.version == version:
                self._expect(fragment, message.shard, digest, sender)
                self._step(fragment, ResultArrived(sender, message.shard))

    async def _reduce(self, fragment: FragmentRuntime, effect: ReduceShard) -> None:
        plan, index, shard = effect.plan, effect.shard, effect.plan.shards[effect.shard]
        await fragment.encoded.wait()
        members = self.guard.usable(plan, effect.leader, effect.members, fragment.machine.timing)
        members = await self.audits.proven(fragment, plan, effect.leader, index, members)
        contributions = fragment.store.contributions(self.rule, plan, effect.leader, index, members)
        self.guard.misfits(plan, members, [member for member, _, _ in contributions])
        contributions = self.guard.believable(plan, contributions, fragment.machine.timing)
        contributions = bulk_frames.with_own(contributions, fragment, plan, shard, self.me, self.rule)
        if self._cells.is_in_cell(fragment):
            await self._cells.reduce(fragment, effect, contributions)
            return
        # What earlier broadcasts lost, nobody else can know: nothing is carried where means are audited.
        carries = not self.audits.is_on
        carried = fragment.store.carried_error(shard.start, shard.end) if carries else None

        def run() -> Reduction | None:
            return self.reduce(contributions, self.rule, self.codec, shard.end - shard.start, carried)

        reduction = await self._compute(run)
        if reduction is not None:
            self.guard.refused(plan, reduction.refused)
        if reduction is None or fragment.machine.version != plan.version:
            return
        digest = fragment.store.add_reduction(plan.version, index, shard.start, shard.end, reduction, carries)
        fragment.result_arrived.set()
        self._expect(fragment, index, digest, self.me)
        if reduction.included and fragment.machine.plan == plan:
            await self._deliveries.deliver(self._links, fragment, plan, index)
        self._step(fragment, ShardReduced(plan.attempt, effect.leader, index, digest, reduction.included))

    def _expect(self, fragment: FragmentRuntime, index: int, digest: bytes, reducer: PeerId) -> None:
        plan = None if self._cells.is_in_cell(fragment) else fragment.machine.plan
        if plan is not None and expect(fragment, plan, index, digest, reducer, self.rule_at(plan.version)):
            self._spawn(look_ahead(fragment, self._compute, self._clock))

    # --------------------------------------------------------------------------------------------------- commits

    async def _apply(self, fragment: FragmentRuntime, commit: Commit) -> None:
        notary, begun = fragment.machine.notary, self._clock()
        is_own = commit.leader == self.me and commit.results is commit.shards
        search = ResultSearch(fragment, commit, self.me, self._links, self._clock)
        # The reducers' signatures are checked while the results arrive.
        searching = asyncio.ensure_future(search.run(lambda passed: self._note_expiry(fragment, passed)))
        try:
            objection = "" if is_own else await self._compute(lambda: notary.objection(commit))
            if objection:
                self.guard.unsigned(commit, objection)
                self._not_applied(fragment, commit)
                return
            payloads = await searching
        finally:
            searching.cancel()
        if payloads is None:
            fragment.unfetchable = commit
            self._ask_repair(fragment, commit.leader, "the results of a committed round cannot be fetched")
            return
        arrived, leader = self._clock(), fragment.machine.leader
        if not await self.audits.passes(fragment, commit, payloads):
            self._not_applied(fragment, commit)
            return
        async with fragment.busy:
            if fragment.state.version != commit.version or fragment.machine.applying is not commit:
                return
            rule, shown = self.rule_at(commit.version), asyncio.Event()
            loop, here = asyncio.get_running_loop(), threading.get_ident()
            with self._lend(fragment.index) as change:

                def show() -> None:
                    self._show(fragment, change)
                    shown.set()

                def on_applied() -> None:
                    if threading.get_ident() == here:
                        show()
                    else:
                        loop.call_soon_threadsafe(show)

                applied = await apply_commit(
                    *(fragment, commit, payloads, self.me, rule, self._compute, change, on_applied)
                )
                await shown.wait()
        for report in applied.reports(fragment, commit, self._clock()):
            self._report(report)
        self._report(CommitApplied(fragment.index, commit.version, arrived - begun, self._clock() - arrived))
        self.guard.closed(commit, leader, fragment.round_began_at, fragment.machine.timing)
        self._after_advance(fragment)
        await self.audits.applied(fragment, commit, payloads)

    def _after_advance(self, fragment: FragmentRuntime, adopted: tuple[Commit, ...] | None = None) -> None:
        state = fragment.state
        fragment.store.prune(state.version, state.version - HISTORY_COMMITS)
        self._deliveries.advanced(fragment.index, state.version)
        self.guard.advanced(fragment.index, state.version, fragment.machine.timing, is_adopted=adopted is not None)
        self._report(AnchorMoved(fragment.index, state.version, state.digest))
        fragment.machine.passed_over = frozenset(self.guard.leaders.passed_over(self._clock()))
        self._step(fragment, Advanced(state.version, state.digest[:DIGEST_BYTES], state.lineage_tokens, adopted))
        for sender, attempt, leader, shard in fragment.store.arrived(state.version):
            self._step(fragment, ContributionArrived(sender, attempt, leader, shard))
        self._cells.advanced(fragment)
        self._spawn(self.offer(fragment))

    # ------------------------------------------------------------------------------------------------------ small

    @property
    def links(self) -> Links | None:
        """The lanes to all others; set by the owner before the first message."""
        return self._given_links

    @links.setter
    def links(self, links: Links) -> None:
        self._given_links = links
        if isinstance(links, Links):
            self._deliveries.watch(links)

    @property
    def _links(self) -> Links:
        assert self._given_links is not None, "Exchange.links is set by its owner before the first message"
        return self._given_links

    def _ask_repair(self, fragment: FragmentRuntime, peer_id: PeerId, reason: str) -> None:
        """Have a claim looked into. Rounds go on meanwhile: whoever claims much must not stop them by that."""
        if fragment.repairing or peer_id in fragment.doubting:
            return
        fragment.doubting.add(peer_id)
        fragment.repairing = fragment.unfetchable is not None
        self._report(RepairNeeded(fragment.index, fragment.machine.version, peer_id, reason))

    def _not_applied(self, fragment: FragmentRuntime, commit: Commit) -> None:
        self.guard.failed_commits.note(commit, self._clock())
        self._step(fragment, ApplyFailed(commit))

    def repaired(self, index: int) -> None:
        """The owner finished (or gave up) the repair that a `RepairNeeded` report asked for."""
        fragment = self.fragments[index]
        fragment.repairing = False
        fragment.doubting.clear()
        unfetchable, fragment.unfetchable = fragment.unfetchable, None
        if unfetchable is not None:  # when nothing better was found either: start over from the same version
            self._not_applied(fragment, unfetchable)
        self._spawn(self.offer(fragment))
