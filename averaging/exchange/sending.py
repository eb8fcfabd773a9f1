"""Own work on its way into rounds: an offer to the leader, then the shards of the contribution to their reducers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from averaging.codec.blocks import Buffer
from averaging.exchange.exchange_ports import Context
from averaging.exchange.usual_work import UsualWork, length_of
from averaging.fragment.runtime import FragmentRuntime
from averaging.outer.contribution_weights import staleness_of, staleness_reach
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.own_contributions import Sent
from averaging.rounds.line_budget import chosen_shards
from averaging.rounds.machine_events import Ready, SendShards
from averaging.rounds.round_facts import SentContribution, WorkLost
from averaging.wire.messages import Contribution, Offer, Work, own_entry
from averaging.wire.work_by_range import oldest_base


@dataclass
class _Outgoing:
    """Outgoing work of one fragment."""

    encoded: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while offered work is being encoded."""
    encodes_first: bool = False
    """The last offered work could not be encoded: encode before the next offer, so that no peer waits in vain again."""
    budget_bytes: float = 0.0
    """Remaining time of the line, in bytes."""
    usual: UsualWork = field(default_factory=UsualWork)

    def __post_init__(self) -> None:
        self.encoded.set()


class Sending:
    """The member's role, for all fragments of one peer. Offers nothing before `take_part`.

    Args:
        signed: adds this member's signature to a contribution's header if the run audits means.
        is_repairing: whether a fragment's anchor is about to be replaced, so that no round begins on it.
    """

    def __init__(
        self,
        context: Context,
        first_sequence: int,
        signed: Callable[[Contribution, Sequence[Buffer]], Contribution],
        is_repairing: Callable[[FragmentRuntime], bool],
    ) -> None:
        self._context = context
        self._sequence = first_sequence
        self._signed = signed
        self._is_repairing = is_repairing
        self._outgoing = [_Outgoing() for _ in context.fragments]
        self.takes_part = False
        self.is_reachable = True
        """Whether others can send this peer shards to reduce."""

    def take_part(self, takes_part: bool) -> None:
        """Start or stop offering own work. Existing offers stay valid."""
        self.takes_part = takes_part

    async def work_arrived(self, index: int, fill: Callable[[FragmentState], None]) -> None:
        """Take work on a fragment from the trainer: `fill` adds it to the state (called in the compute port)."""
        fragment = self._context.fragments[index]
        fragment.machine.timing.own_pace.observe(self._context.ports.clock())
        async with fragment.busy:
            await self._context.ports.compute(lambda: fill(fragment.state))
        await self.offer(fragment)

    async def offer(self, fragment: FragmentRuntime) -> None:
        """Offer the waiting work for the next round, unless a contribution is already under way.

        The offer leaves before the work is encoded, because the plan takes a round trip and encoding takes as long. The
        offered numbers cannot change meanwhile, and no shard leaves before a restarted process could find all of the
        work.
        """
        context, state, machine = self._context, fragment.state, fragment.machine
        async with fragment.busy:
            sent = state.pending
            is_new = sent is None and state.unsent_tokens > 0
            # A contribution of an earlier process keeps its sequence, because the commit of its round may still arrive.
            is_inherited = sent is not None and not machine.is_offering
            is_ready = (is_new or is_inherited) and machine.applying is None
            if not is_ready or not self.takes_part or self._is_repairing(fragment) or fragment.is_torn:
                return
            if sent is not None:
                self._begin_round(fragment, sent.sequence, sent)
                return
            if await self._drop_expired(fragment) or await self._withhold(fragment):
                return
            self._sequence += 1
            sent = await self._encode_and_offer(fragment)
            with context.ports.lend(fragment.index) if state.shows_sends else nullcontext() as change:
                context.show(fragment, await context.ports.compute(lambda: state.after_send(sent, change)))

    async def encoded(self, fragment: FragmentRuntime) -> None:
        """Wait until offered work is encoded."""
        await self._outgoing[fragment.index].encoded.wait()

    def send_shards(self, fragment: FragmentRuntime, effect: SendShards) -> None:
        """Send this peer's contribution as soon as it is encoded."""
        if self._outgoing[fragment.index].encoded.is_set():
            self._post_shards(fragment, effect)
        else:
            self._context.spawn(self._post_when_encoded(fragment, effect))

    # ------------------------------------------------------------------------------------------------------ details

    async def _drop_expired(self, fragment: FragmentRuntime) -> bool:
        """Drop waiting work that is too old for any member to apply; the caller holds `fragment.busy`.

        Returns:
            Whether no work is waiting.

        The trainer gets the change before the state is persisted: after a restart in between, the work is still
        waiting.
        """
        context, state = self._context, fragment.state
        staleness = staleness_of(context.rule.mode, state.version, state.unsent_base_version)
        if staleness <= context.rule.staleness_limit:
            return False
        oldest = state.version - staleness_reach(context.rule.mode, context.rule.staleness_limit)
        change, tokens = await context.ports.compute(lambda: state.drop_late(oldest))
        context.show(fragment, change)
        fragment.persist()
        context.ports.report(WorkLost(fragment.index, state.version, tokens, "late", staleness))
        return not state.unsent_tokens

    async def _withhold(self, fragment: FragmentRuntime) -> bool:
        """Drop the waiting work if only a fault of this machine can have made it; the caller holds `fragment.busy`.

        The fault may be in the work or in the live parameters, so the owner gets a report and restores all live
        parameters.
        """
        context, state = self._context, fragment.state
        length = await context.ports.compute(lambda: length_of(state.residual))
        reason = self._outgoing[fragment.index].usual.objection(length, state.unsent_steps)
        if not reason:
            return False
        report = WorkLost(fragment.index, state.version, state.unsent_tokens, "withheld", reason=reason)
        await context.ports.compute(state.drop_waiting)
        fragment.persist()
        context.ports.report(report)
        return True

    async def _encode_and_offer(self, fragment: FragmentRuntime) -> Sent:
        """Offer the waiting work and encode it; the caller holds `fragment.busy`.

        After work that could not be encoded, encode before the offer. If a round ended meanwhile, begin it again.
        """
        outgoing, sequence, work = self._outgoing[fragment.index], self._sequence, fragment.state.announce()
        outgoing.encoded.clear()
        try:
            if not outgoing.encodes_first:
                self._begin_round(fragment, sequence, work)
            outgoing.encodes_first = True
            sent = await self._context.ports.compute(lambda: fragment.state.encode_work(sequence))
            outgoing.encodes_first = False
            fragment.persist()
            if not fragment.machine.is_offering:
                self._begin_round(fragment, sequence, work)
        finally:
            outgoing.encoded.set()
        return sent

    def _begin_round(self, fragment: FragmentRuntime, sequence: int, work: Work) -> None:
        fragment.traffic.begin(self._context.ports.clock())
        offer = Offer(
            fragment.index,
            fragment.state.version,
            0,
            fragment.machine.anchor_digest,
            work.base_version,
            work.tokens,
            work.steps,
            sequence,
            self._context.links.traffic.upload_bits_per_second,
            self.is_reachable,
            work.parts,
        )
        self._context.step(fragment, Ready(offer))

    async def _post_when_encoded(self, fragment: FragmentRuntime, effect: SendShards) -> None:
        await self.encoded(fragment)
        if fragment.machine.version == effect.plan.version:
            self._post_shards(fragment, effect)

    def _post_shards(self, fragment: FragmentRuntime, effect: SendShards) -> None:
        """Queue the shards of this peer's contribution for their reducers, as many as the link can send in time."""
        context, sent, plan = self._context, fragment.state.pending, effect.plan
        entry = own_entry(plan.roster, context.me)
        if sent is None or entry is None or entry[1].sequence != sent.sequence:
            return
        context.guard.leaders.sent(fragment.index, plan.version, plan.attempt, effect.leader, context.ports.clock())
        # Values that were averaged last time hold no work now, and no reducer waits for them.
        others = [
            (at, shard)
            for at, shard in enumerate(plan.shards)
            if plan.reducer_of(at) != context.me and entry[1].token_values(shard.start, shard.end)
        ]
        bases = [oldest_base(entry[1], shard.start, shard.end) for _, shard in others]
        sizes = [sent.encoded.slice_blocks(shard.start, shard.end - shard.start).num_bytes for _, shard in others]
        each = fragment.machine.timing.bytes_each(context.links.traffic.upload_bits_per_second)
        outgoing = self._outgoing[fragment.index]
        chosen, outgoing.budget_bytes = chosen_shards(plan.version, sizes, bases, each, outgoing.budget_bytes)
        for index, shard in (one for position, one in enumerate(others) if position in chosen):
            work, values = (index, sent.sequence), (shard.start, shard.end)
            header = Contribution(*plan.place, effect.leader, *work, *values, sent.tokens)
            payload = sent.encoded.slice_blocks(shard.start, shard.end - shard.start).pack()
            num_bytes = context.links.send(plan.reducer_of(index), self._signed(header, payload), payload)
            fragment.traffic.sent(num_bytes, shard.end - shard.start)
        late = staleness_of(context.rule.mode, plan.version, entry[1].base_version)
        up_bytes = fragment.traffic.up_bytes
        context.ports.report(SentContribution(fragment.index, plan.version, up_bytes, sent.tokens, sent.steps, late))
