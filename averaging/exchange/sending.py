"""Own work on its way into rounds: the offer to a leader, then the shards of the contribution to their reducers."""

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
from averaging.outer.own_contributions import Announced, Sent
from averaging.rounds.line_budget import LineBudget
from averaging.rounds.machine_events import Ready, SendShards
from averaging.rounds.round_facts import SentContribution, WorkLost
from averaging.wire.messages import Contribution, Offer, own_entry
from averaging.wire.work_by_range import oldest_base


@dataclass
class _Outgoing:
    """Of one fragment."""

    encoded: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set while work that was offered is being encoded."""
    encodes_first: bool = False
    """The last work that was offered could not be encoded: nobody should wait for such work again."""
    budget: LineBudget = field(default_factory=LineBudget)
    usual: UsualWork = field(default_factory=UsualWork)

    def __post_init__(self) -> None:
        self.encoded.set()


class Sending:
    """The member's side of rounds, for all fragments of one peer. Nothing is offered before `take_part`.

    Args:
        signed: puts this member's signature on a contribution's header, where means are audited.
        is_repairing: whether a fragment's anchor is about to be replaced: no round begins on it.
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
        self.takes_part, self._is_reachable = False, True

    def take_part(self, takes_part: bool) -> None:
        """Offer own work from now on, or none any more; what is offered already stays so."""
        self.takes_part = takes_part

    def note_reachable(self, is_reachable: bool) -> None:
        """Whether others can send this peer what it is to reduce."""
        self._is_reachable = is_reachable

    async def work_arrived(self, index: int, fill: Callable[[FragmentState], None]) -> None:
        """The trainer handed over work of a fragment: `fill` adds it to the state (called in the compute port)."""
        fragment = self._context.fragments[index]
        fragment.machine.timing.own_pace.observe(self._context.ports.clock())
        async with fragment.busy:
            await self._context.ports.compute(lambda: fill(fragment.state))
        await self.offer(fragment)

    async def offer(self, fragment: FragmentRuntime) -> None:
        """Go for the next round with the waiting work, unless a contribution is under way already.

        The offer leaves before the work is encoded: the plan takes a round trip, and encoding as long. What is said of
        the work cannot change meanwhile, and no shard leaves before all of it can be found by a restarted process.
        """
        context, state, machine = self._context, fragment.state, fragment.machine
        async with fragment.busy:
            sent = state.pending
            is_new = sent is None and state.unsent_tokens > 0
            # An earlier process's contribution keeps its sequence: the commit of its round may still come.
            is_inherited = sent is not None and not machine.is_offering
            is_ready = (is_new or is_inherited) and machine.applying is None
            if not is_ready or not self.takes_part or self._is_repairing(fragment) or fragment.is_torn:
                return
            if sent is not None:
                self._begin_round(fragment, sent)
                return
            if await self._drop_expired(fragment) or await self._withhold(fragment):
                return
            self._sequence += 1
            sent = await self._encode_and_offer(fragment, state.announce(self._sequence))
            with context.ports.lend(fragment.index) if state.shows_sends else nullcontext() as change:
                context.show(fragment, await context.ports.compute(lambda: state.after_send(sent, change)))

    async def encoded(self, fragment: FragmentRuntime) -> None:
        """Wait until offered work is encoded."""
        await self._outgoing[fragment.index].encoded.wait()

    def send_shards(self, fragment: FragmentRuntime, effect: SendShards) -> None:
        """Send this peer's contribution, as soon as it is encoded."""
        if self._outgoing[fragment.index].encoded.is_set():
            self._post_shards(fragment, effect)
        else:
            self._context.spawn(self._post_when_encoded(fragment, effect))

    # ------------------------------------------------------------------------------------------------------ details

    async def _drop_expired(self, fragment: FragmentRuntime) -> bool:
        """Drop what waits and is older than anyone may apply; the caller holds `fragment.busy`.

        Returns:
            Whether nothing waits any more.

        It tells the trainer before it persists that: who restarts in between then sees the work as waiting still.
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

        Nobody can tell whether the fault is in the work or in the live parameters. So the owner, who hears of it, puts
        these back as a whole.
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

    async def _encode_and_offer(self, fragment: FragmentRuntime, announced: Announced) -> Sent:
        """Offer the announced work, and encode it; the caller holds `fragment.busy`.

        After work that could not be encoded the offer comes last, and a round that ended meanwhile is begun once more.
        """
        outgoing = self._outgoing[fragment.index]
        outgoing.encoded.clear()
        try:
            if not outgoing.encodes_first:
                self._begin_round(fragment, announced)
            outgoing.encodes_first = True
            sent = await self._context.ports.compute(lambda: fragment.state.encode_work(announced.sequence))
            outgoing.encodes_first = False
            fragment.persist()
            if not fragment.machine.is_offering:
                self._begin_round(fragment, announced)
        finally:
            outgoing.encoded.set()
        return sent

    def _begin_round(self, fragment: FragmentRuntime, work: Announced | Sent) -> None:
        fragment.traffic.begin(self._context.ports.clock())
        self._context.step(fragment, Ready(self._offer_of(fragment, work)))

    def _offer_of(self, fragment: FragmentRuntime, work: Announced | Sent) -> Offer:
        """An offer of `work` on the anchor that is here, for the first attempt at a round."""
        return Offer(
            fragment.index,
            fragment.state.version,
            0,
            fragment.machine.anchor_digest,
            work.base_version,
            work.tokens,
            work.steps,
            work.sequence,
            self._context.links.traffic.upload_bits_per_second,
            self._is_reachable,
            work.parts,
        )

    async def _post_when_encoded(self, fragment: FragmentRuntime, effect: SendShards) -> None:
        await self.encoded(fragment)
        if fragment.machine.version == effect.plan.version:
            self._post_shards(fragment, effect)

    def _post_shards(self, fragment: FragmentRuntime, effect: SendShards) -> None:
        """Queue this peer's contribution's shards for their reducers: those that the link can bring in time."""
        context, sent, plan = self._context, fragment.state.pending, effect.plan
        entry = own_entry(plan.roster, context.me)
        if sent is None or entry is None or entry[1].sequence != sent.sequence:
            return
        context.guard.leaders.sent(fragment.index, plan.version, plan.attempt, effect.leader, context.ports.clock())
        # What was averaged last time holds no work now, and nobody waits for it.
        others = [
            (at, shard)
            for at, shard in enumerate(plan.shards)
            if plan.reducer_of(at) != context.me and entry[1].token_values(shard.start, shard.end)
        ]
        bases = [oldest_base(entry[1], shard.start, shard.end) for _, shard in others]
        sizes = [sent.encoded.slice_blocks(shard.start, shard.end - shard.start).num_bytes for _, shard in others]
        each = fragment.machine.timing.bytes_each(context.links.traffic.upload_bits_per_second)
        chosen = self._outgoing[fragment.index].budget.chosen(plan.version, sizes, bases, each)
        for index, shard in (one for position, one in enumerate(others) if position in chosen):
            work, values = (index, sent.sequence), (shard.start, shard.end)
            header = Contribution(*plan.place, effect.leader, *work, *values, sent.tokens)
            payload = sent.encoded.slice_blocks(shard.start, shard.end - shard.start).pack()
            num_bytes = context.links.send(plan.reducer_of(index), self._signed(header, payload), payload)
            fragment.traffic.sent(num_bytes, shard.end - shard.start)
        late = staleness_of(context.rule.mode, plan.version, entry[1].base_version)
        up_bytes = fragment.traffic.up_bytes
        context.ports.report(SentContribution(fragment.index, plan.version, up_bytes, sent.tokens, sent.steps, late))
