"""The reducer's role: collects contributions, averages them, and sends the mean to the members.

A reducer reports a mean to the leader when one other member has read the mean. So a second peer holds each mean that a
commit lists, even if the reducer's link is slow or breaks. If no peer has read the mean when the leader closes the
round, its shard is void, and the work in it returns to its owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from averaging.codec.blocks import Buffer
from averaging.exchange.audit import Audits
from averaging.exchange.exchange_ports import Context
from averaging.exchange.sending import Sending
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import terms_of
from averaging.lanes.links import ACKNOWLEDGED_BYTES, Parts
from averaging.outer.robust_mean import ShardContribution
from averaging.outer.shard_mean import Reduction
from averaging.rounds.machine_events import ContributionArrived, ReduceShard, SendResult, ShardReduced
from averaging.wire import frames
from averaging.wire.messages import HISTORY_COMMITS, Contribution, Plan, Result, own_entry
from dht.ground.host import PeerId


class Averaging:
    """Means that this peer computes, for all fragments.

    Args:
        on_mean: called with the fragment as soon as a mean of this peer is ready.
    """

    def __init__(
        self,
        context: Context,
        sending: Sending,
        audits: Audits,
        on_mean: Callable[[FragmentRuntime], None],
    ) -> None:
        self._context = context
        self._sending = sending
        self._audits = audits
        self._on_mean = on_mean
        self._deliveries = Deliveries(lambda index: context.fragments[index].machine.version)
        context.links.watch(self._deliveries.note_read, self._deliveries.is_stale)

    def take_contribution(
        self, fragment: FragmentRuntime, sender: PeerId, message: Contribution, payload: memoryview, _frame_bytes: int
    ) -> bool:
        """Store a contribution, and report it to the fragment's machine. A handler of messages (`exchange.Hear`).

        Returns:
            False: the machine gets the event `ContributionArrived` instead of the message.

        Raises:
            PeerFault: the payload has the wrong size, or the sender exceeds its share of memory here.
        """
        machine = fragment.machine
        if machine.version <= message.version <= machine.version + 1:
            fragment.store.take_contribution(sender, message, payload)
        if machine.version - 1 <= message.version <= machine.version:
            is_late = message.version < machine.version
            arrived = ContributionArrived(sender, message.attempt, message.leader, message.shard, is_late)
            self._context.step(fragment, arrived)
        return False

    def reduce(self, fragment: FragmentRuntime, effect: ReduceShard) -> None:
        """Compute the mean of a shard in a background task."""
        self._context.spawn(self.make_mean(fragment, effect))

    async def make_mean(self, fragment: FragmentRuntime, effect: ReduceShard) -> None:
        """Average the contributions that have arrived, deliver the mean and report it."""
        context, guard, plan, index = self._context, self._context.guard, effect.plan, effect.shard
        shard, timing = plan.shards[index], fragment.machine.timing
        await self._sending.encoded(fragment)
        members = guard.usable(plan, effect.leader, effect.members, timing)
        members = await self._audits.proven(fragment, plan, effect.leader, index, members)
        contributions = fragment.store.contributions(context.rule, plan, effect.leader, index, members)
        guard.misfits(plan, members, [member for member, _, _ in contributions])
        contributions = self._with_own(guard.believable(plan, contributions, timing), fragment, plan, index)
        # No other peer can know the errors of earlier broadcasts, so audited runs carry none.
        carries = not self._audits.is_on
        carried = fragment.store.carried_error(shard.start, shard.end) if carries else None

        reduce, num_values = context.ports.parts.reduce, shard.end - shard.start

        def run() -> Reduction | None:
            return reduce(contributions, context.rule, fragment.state.codec, num_values, carried)

        reduction = await context.ports.compute(run)
        if reduction is not None:
            guard.refused(plan, reduction.refused)
        if reduction is None or fragment.machine.version != plan.version:
            return
        digest = fragment.store.add_reduction(plan.version, index, shard.start, shard.end, reduction, carries)
        self._on_mean(fragment)
        if reduction.included and fragment.machine.plan == plan:
            await self._deliver(fragment, plan, index)
        context.step(fragment, ShardReduced(plan.attempt, effect.leader, index, digest, reduction.included))

    def send_result(self, fragment: FragmentRuntime, effect: SendResult) -> None:
        """Send a mean of this peer, unless `make_mean` already sent it to the members of the round."""
        payload = fragment.store.own_result(effect.result)
        if not self._deliveries.has(effect.result, payload):
            self._post(effect.to, effect.result, payload)

    def peer_lost(self, peer_id: PeerId) -> None:
        """Handle a lost connection: the peer reads no more means."""
        self._deliveries.lost(peer_id)

    def advanced(self, fragment: FragmentRuntime) -> None:
        self._deliveries.advanced(fragment.index, fragment.state.version)

    # ------------------------------------------------------------------------------------------------------ details

    def _with_own(
        self, contributions: list[ShardContribution], fragment: FragmentRuntime, plan: Plan, index: int
    ) -> list[ShardContribution]:
        """Return the contributions to a shard together with this peer's own if it is in the plan, in roster order."""
        sent, own, shard = fragment.state.pending, own_entry(plan.roster, self._context.me), plan.shards[index]
        if sent is None or own is None or own[1].sequence != sent.sequence:
            return contributions
        blocks = sent.encoded.slice_blocks(shard.start, shard.end - shard.start)
        mine = (own[0], terms_of(self._context.rule, plan, own[0], shard.start, shard.end), blocks)
        return sorted([*contributions, mine], key=lambda one: one[0])

    async def _deliver(self, fragment: FragmentRuntime, plan: Plan, index: int) -> None:
        """Send a mean of this peer, and return when another member has read it or its round is over.

        Also returns when no other member is alive, and in a round of two after the typical time of a delivery.
        """
        to = fragment.machine.to_whom(plan)
        shard = plan.shards[index]
        header = Result(fragment.index, plan.version, index, shard.start, shard.end)
        payload = fragment.store.own_result(header)
        # Short means are not acknowledged, and leave at once.
        if not to or len(frames.encode(header)) + len(payload) <= ACKNOWLEDGED_BYTES:
            return
        read = self._deliveries.begin(header, payload, set(to) - set(self._context.lost))
        self._post(to, header, payload)
        longest = None
        if len(plan.roster) == 2:
            rate = self._context.links.traffic.upload_bits_per_second
            longest = fragment.machine.timing.delivery_seconds(to[0], len(payload), rate)
        with suppress(TimeoutError):
            await asyncio.wait_for(read.wait(), longest)

    def _post(self, to: tuple[PeerId, ...], header: Result, payload: Buffer) -> None:
        for peer_id in to:
            self._context.links.send(peer_id, header, [payload])


@dataclass(frozen=True, slots=True)
class _Unread:
    """A sent mean: the members that may still read it, and an event that is set when one has, or when none can."""

    to: set[PeerId]
    read: asyncio.Event = field(default_factory=asyncio.Event)


class Deliveries:
    """Means that this peer sent, and events that are set when a member has read them.

    An entry stays until its round is over, so that `has` also knows means that were read.

    Args:
        version_of: returns the version of a fragment's anchor at this peer.
    """

    def __init__(self, version_of: Callable[[int], int]) -> None:
        self._version_of = version_of
        self._unread: dict[bytes, dict[bytes, _Unread]] = {}
        """By header and payload: several attempts at one round give different means of the same values."""

    def begin(self, header: Result, payload: Buffer, to: set[PeerId]) -> asyncio.Event:
        """Note that a mean was sent to members that are alive.

        The returned event is set when one of them has read the mean, when none of them is alive, or when its round is
        over.
        """
        unread = self._unread.setdefault(frames.encode(header), {})[bytes(payload)] = _Unread(to)
        if not to:
            unread.read.set()
        return unread.read

    def lost(self, peer_id: PeerId) -> None:
        """Remove a member whose connection is lost."""
        for unread in [unread for means in self._unread.values() for unread in means.values()]:
            unread.to.discard(peer_id)
            if not unread.to:
                unread.read.set()

    def has(self, header: Result, payload: Buffer) -> bool:
        """Return whether this mean was sent in a round that is not over, read or not."""
        return bytes(payload) in self._unread.get(frames.encode(header), {})

    def advanced(self, fragment: int, version: int) -> None:
        """End the rounds of a fragment before `version`."""
        places = {header: frames.place_of(header) for header in self._unread}
        past = [header for header, (_, index, base) in places.items() if index == fragment and base < version]
        for header in past:
            for unread in self._unread.pop(header).values():
                unread.read.set()

    def note_read(self, _remote: PeerId, parts: Parts) -> None:
        """Note that a remote has read the message that consists of these parts."""
        means = self._unread.get(bytes(parts[0]))
        unread = means.get(b"".join(parts[1:])) if means else None
        if unread is not None:
            unread.read.set()

    def is_stale(self, parts: Parts) -> bool:
        """Return whether a queued message has become useless. Means of past rounds are kept for `HISTORY_COMMITS`."""
        kind, fragment, version = frames.place_of(parts[0])
        now = self._version_of(fragment)
        if kind == Contribution.KIND:
            return version < now
        return kind == Result.KIND and version < now - HISTORY_COMMITS
