"""The frames with payloads: a contribution's shards for their reducers, a mean for the other members."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from averaging.codec.blocks import Buffer
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import payload_digest, terms_of
from averaging.lanes.links import Links
from averaging.outer.combine import ShardContribution
from averaging.outer.contributions import Sent
from averaging.outer.outer_step import OuterRule
from averaging.rounds.events import SendResult, SendShards
from averaging.rounds.line_budget import bytes_each
from averaging.wire import frames
from averaging.wire.cell_messages import Partial
from averaging.wire.messages import Contribution, Plan, Result, ResultRequest, ShardPlan, own_entry
from dht.host import PeerId


def with_own(
    contributions: list[ShardContribution],
    fragment: FragmentRuntime,
    plan: Plan,
    shard: ShardPlan,
    me: PeerId,
    rule: OuterRule,
) -> list[ShardContribution]:
    """The contributions to a shard with this peer's own, if it is in the plan, in roster order."""
    sent, own = fragment.state.pending, own_entry(plan.roster, me)
    if sent is None or own is None or own[1].sequence != sent.sequence:
        return contributions
    blocks = sent.encoded.slice_blocks(shard.start, shard.end - shard.start)
    return sorted([*contributions, (own[0], terms_of(rule, plan, own[0]), blocks)], key=lambda one: one[0])


def post_shards(
    links: Links,
    fragment: FragmentRuntime,
    effect: SendShards,
    sent: Sent,
    me: PeerId,
    signed: Callable[[Contribution, Sequence[Buffer]], Contribution],
) -> None:
    """Queue the own contribution's shards for their reducers, `signed`, and count them in `fragment`.

    Those that the line can bring in time; see `LineBudget`.
    """
    plan = effect.plan
    others = [(index, shard) for index, shard in enumerate(plan.shards) if plan.roster[shard.reducer].peer_id != me]
    sizes = [sent.encoded.slice_blocks(shard.start, shard.end - shard.start).num_bytes for _, shard in others]
    timing = fragment.machine.timing
    each = bytes_each(links.traffic.upload_bits_per_second, timing.own_pace.seconds, timing.num_fragments)
    chosen = fragment.budget.chosen(plan.version, sizes, each)
    for index, shard in (one for position, one in enumerate(others) if position in chosen):
        reducer = plan.roster[shard.reducer].peer_id
        header = Contribution(
            fragment.index,
            plan.version,
            plan.attempt,
            effect.leader,
            index,
            sent.sequence,
            shard.start,
            shard.end,
            sent.tokens,
        )
        payload = sent.encoded.slice_blocks(shard.start, shard.end - shard.start).pack()
        fragment.up_bytes += post_data(links, reducer, signed(header, payload), payload)
        fragment.up_values += shard.end - shard.start


def own_result(fragment: FragmentRuntime, effect: SendResult) -> tuple[Result, Buffer]:
    """The frame of an own mean."""
    shard = effect.plan.shards[effect.shard]
    payload = fragment.store.own_result(effect.plan.version, effect.shard, shard.start, shard.end)
    return Result(fragment.index, effect.plan.version, effect.shard, shard.start, shard.end), payload


def post_result(links: Links, fragment: FragmentRuntime, effect: SendResult) -> None:
    """Queue an own mean for the other members."""
    header, payload = own_result(fragment, effect)
    for peer_id in effect.to:
        post_data(links, peer_id, header, [payload])


def post_data(
    links: Links, to: PeerId, header: Contribution | Result | Partial, payload: Sequence[bytes | bytearray | memoryview]
) -> int:
    """Queue one frame; returns the bytes it will take on the stream."""
    parts: list[bytes | memoryview] = [frames.encode(header), *(memoryview(part) for part in payload)]
    return links.post(to, parts, "data")


def post_stored(links: Links, fragment: FragmentRuntime, to: PeerId, request: ResultRequest) -> bool:
    """Queue a result that is kept here; False when it is not, or belongs to a commit that is not followed here, or when
    the remote has got it too often.

    What this peer reduced itself it gives in any case: nobody else may have it, and others may follow that commit.
    """
    place = _place_in_commit(fragment, request) or fragment.store.unsettled_place(request.digest)
    stored = None if place is None else fragment.store.give(request.version, request.shard, request.digest, to)
    # A disk may have given back other bytes than it took (`peer.checkpoint.spill`).
    if stored is None or place is None or payload_digest(stored) != request.digest:
        return False
    post_data(links, to, Result(fragment.index, request.version, request.shard, *place), [stored])
    return True


def _place_in_commit(fragment: FragmentRuntime, request: ResultRequest) -> tuple[int, int] | None:
    """First value of a result of the commit that is followed here, and the value behind its last."""
    commit = fragment.machine.known_commit(request.version)
    if commit is None or request.shard >= len(commit.results):
        return None
    result = commit.results[request.shard]
    return (result.start, result.end) if result.digest == request.digest else None
