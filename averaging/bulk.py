"""The frames with payloads: a contribution's shards for their reducers, a mean for the other members."""

from __future__ import annotations

from collections.abc import Sequence

from averaging import wire
from averaging.fragment_runtime import FragmentRuntime
from averaging.fragment_state import Sent
from averaging.links import Links
from averaging.messages import Contribution, Result
from averaging.round_events import SendResult, SendShards
from dht.host import PeerId


def post_shards(links: Links, fragment: FragmentRuntime, effect: SendShards, sent: Sent, me: PeerId) -> None:
    """Queue the own contribution's shards for their reducers, and count them in `fragment`."""
    plan = effect.plan
    for index, shard in enumerate(plan.shards):
        reducer = plan.roster[shard.reducer].peer_id
        if reducer == me:
            continue
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
        blocks = sent.encoded.slice_blocks(shard.start, shard.end - shard.start)
        fragment.up_bytes += post_data(links, reducer, header, blocks.pack())
        fragment.up_values += shard.end - shard.start


def post_result(links: Links, fragment: FragmentRuntime, effect: SendResult) -> None:
    """Queue an own mean for the other members."""
    shard = effect.plan.shards[effect.shard]
    payload = fragment.store.own_result(effect.plan.version, effect.shard, shard.start, shard.end)
    header = Result(fragment.index, effect.plan.version, effect.shard, shard.start, shard.end)
    for peer_id in effect.to:
        post_data(links, peer_id, header, [payload])


def post_data(
    links: Links, to: PeerId, header: Contribution | Result, payload: Sequence[bytes | bytearray | memoryview]
) -> int:
    """Queue one frame; returns the bytes it will take on the stream."""
    parts: list[bytes | memoryview] = [wire.encode(header), *(memoryview(part) for part in payload)]
    return links.post(to, parts, "data")
