"""Hostile peers of the simulator that harm rounds and joiners from inside: lying reducers, leaders and donors.

- wrong_mean: as a reducer, `scale` times the mean, turned round, signed as if it were the mean;
- drops_members: as a leader, keeps honest members waiting and plans with its friends alone;
- old_work: offers its work as ten versions older than it is;
- shirks: as a reducer, makes no mean;
- free_records: does nothing but take part, and publish the records of its further keys (`free_records`);
- lone_commits: closes each round at once, alone, with a step back, under any leader;
- wrong_state: announces a heavier lineage than anybody's, and serves joiners anchors that nobody has.

Friends are all hostile peers of a simulation. `liars` and `floods` have the other kinds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import numpy as np

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec
from averaging.exchange.exchange_ports import HONEST, RoundParts
from averaging.fragment.runtime import FragmentRuntime
from averaging.outer.outer_settings import OuterRule
from averaging.outer.outer_step import anchor_digest
from averaging.outer.robust_mean import ShardContribution
from averaging.outer.shard_mean import Reduction, keep_error, reduce_shard
from averaging.rounds.leader import Leading
from averaging.transfer.snapshots import Snapshot
from averaging.wire import frames
from averaging.wire.messages import Message, Offer, Result, RosterEntry
from dht.ground.host import Host, PeerId
from dht.records.peer_record import PeerRecord
from peer.network.node.node import Node
from tests.simulator.adversaries.claims import CLAIMS, Claimant, exaggerating, lone_commit
from tests.simulator.adversaries.floods import FLOODS, flood
from tests.simulator.adversaries.free_records import publish_free_records
from tests.simulator.network.host import MemoryHost
from tests.simulator.scenarios.spec import Lie

MOST_TOKENS = 2**50
"""More in a record are refused."""
LOOK_SECONDS = 0.1
"""How often a peer that commits alone looks whether a new version is there."""


def node_type_of(lie: Lie | None) -> type[Node]:
    """What a peer runs."""
    if lie is not None and lie.kind in CLAIMS:
        return Claimant
    return FalseDonor if lie is not None and lie.kind == "wrong_state" else Node


def round_parts_of(lie: Lie | None, friends: frozenset[PeerId], randomness: random.Random) -> RoundParts:
    """What its rounds are made of."""
    if lie is not None and lie.kind == "wrong_mean":
        return RoundParts(reduce=partial(_wrong_mean, lie.scale))
    if lie is not None and lie.kind == "drops_members":
        return RoundParts(leading_type=_leading_for(friends))
    if lie is not None and lie.kind == "inflates":
        return RoundParts(says=exaggerating(randomness))
    if lie is not None and lie.kind == "old_work":
        return RoundParts(says=_older)
    return HONEST


def turn_hostile(
    node: Node, host: MemoryHost, lie: Lie, friends: frozenset[PeerId], randomness: random.Random
) -> Coroutine[Any, Any, None] | None:
    """Make a node do harm in the way of `lie`; returns what is to be run beside it, if anything."""
    harm = _harm(node, host, lie, friends, randomness)
    return publish_free_records(node, host, lie, friends, randomness, harm) if lie.num_keys else harm


def _harm(
    node: Node, host: Host, lie: Lie, friends: frozenset[PeerId], randomness: random.Random
) -> Coroutine[Any, Any, None] | None:
    if lie.kind == "shirks":
        node.exchange.averaging.make_mean = _make_no_mean  # type: ignore[assignment, method-assign]
    if lie.kind == "lone_commits" and not lie.num_keys:
        return _commit_alone(node, lie.scale)
    if isinstance(node, Claimant):
        node.claims(lie.kind, randomness)
        return node.claim_on()
    if lie.kind in FLOODS:
        return flood(lie.kind, node, host, friends, randomness)
    return None


def _wrong_mean(
    scale: float,
    contributions: Sequence[ShardContribution],
    rule: OuterRule,
    codec: Codec,
    num_values: int,
    carried_error: EncodedBlocks | None,
) -> Reduction | None:
    honest = reduce_shard(contributions, rule, codec, num_values, carried_error)
    if honest is None:
        return None
    values: F32 = np.empty(num_values, dtype=np.float32)
    codec.decode(honest.encoded, values)
    values *= -scale
    encoded = codec.encode_with_residual(values)
    return dataclasses.replace(honest, encoded=encoded, error=keep_error(values, codec.block_size))


async def _make_no_mean(*_: object) -> None: ...


def _older(message: Message) -> Message:
    if not isinstance(message, Offer):
        return message
    return dataclasses.replace(message, base_version=max(0, message.base_version - 10))


def _leading_for(friends: frozenset[PeerId]) -> type[Leading]:
    class LeadingForFriends(Leading):
        """A peer that is no friend is kept waiting, as if it had come too late."""

        def _start(self, now: float) -> None:
            strangers = set(self.offers) - friends
            if len(strangers) < len(self.offers):
                for peer_id in strangers:
                    del self.offers[peer_id]
                    self.late.add(peer_id)
            super()._start(now)

    return LeadingForFriends


# ------------------------------------------------------------------------------------------------------ lone commits


async def _commit_alone(node: Node, scale: float) -> None:
    closed: dict[int, int] = {}
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if not node.exchange.sending.takes_part:
            continue
        for fragment in node.fragments:
            version = fragment.machine.version
            if fragment.machine.applying is None and closed.get(fragment.index) != version:
                closed[fragment.index] = version
                _close_alone(node, fragment, scale)


def _close_alone(node: Node, fragment: FragmentRuntime, scale: float) -> None:
    """A round of one member: by its form a round like any other, and everybody's step back."""
    machine, size = fragment.machine, fragment.machine.num_values
    back = fragment.state.momentum * -scale
    if not back.any():
        back.fill(1e-3)
    encoded = node.codec.encode(back)
    digest = fragment.store.add_reduction(machine.version, 0, 0, size, Reduction(encoded, (0,), None))
    steps = node.manifest.averaging.sync_every
    trainer = node.mailbox.trainer
    tokens = max(1, round(steps * trainer.tokens / max(1, trainer.inner_steps)))
    entry = RosterEntry(node.me, tokens, steps, machine.version, int(1000 * node.ports.wall_clock()))
    commit = lone_commit(fragment, machine.version, machine.anchor_digest, entry, digest)
    mean = Result(fragment.index, machine.version, 0, 0, size)
    payload = fragment.store.own_result(mean)
    for peer_id in node.membership.split()[0]:
        node.links.post(peer_id, [frames.encode(mean), memoryview(payload)], "data")
        node.links.post(peer_id, [frames.encode(commit)])


# ------------------------------------------------------------------------------------------------------- wrong state


class FalseDonor(Node):
    """Announces a thousand times the lineage tokens with another anchor, and hands it out as a `StateSource`."""

    async def snapshot(self, fragment: int) -> Snapshot | None:
        honest = await super().snapshot(fragment)
        if honest is None:
            return None
        anchor = -honest.anchor
        tokens = _false_tokens(honest.lineage_tokens)
        digest = anchor_digest(anchor, honest.momentum)
        return dataclasses.replace(honest, anchor=anchor, lineage_tokens=tokens, digest=digest)

    def digest_at(self, fragment: int, version: int) -> bytes:
        state = self.fragments[fragment].state
        if version == state.version:
            return anchor_digest(-state.anchor, state.momentum)
        return super().digest_at(fragment, version)

    def own_record(self) -> PeerRecord:
        record = super().own_record()
        digests = tuple(self.digest_at(index, version)[:8] for index, version in enumerate(record.versions))
        tokens = tuple(_false_tokens(tokens) for tokens in record.lineage_tokens)
        return dataclasses.replace(record, digests=digests, lineage_tokens=tokens)


def _false_tokens(lineage_tokens: int) -> int:
    return min(1000 * (lineage_tokens + 1), MOST_TOKENS)
