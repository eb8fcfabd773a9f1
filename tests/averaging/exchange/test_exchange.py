"""Whole rounds over a simulated network: real frames, real values, virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from averaging.exchange.applying import MAX_DOUBTS, stored_result
from averaging.outer.shard_mean import Reduction, reduce_shard
from averaging.rounds.round_facts import CommitTaken, RepairNeeded
from averaging.wire.messages import (
    DIGEST_BYTES,
    Result,
    ResultRequest,
    VersionIs,
)
from tests.kit.network.memory_networks import named
from tests.kit.rounds.exchange_swarm import RULE, Swarm, scenario


def test_bytes_on_the_wire_are_few():
    """Payload and all framing of a round, per value of the fragment: 4.125 bits and under 3 % on top, each way."""

    async def play():
        swarm = Swarm(4)
        await swarm.train(4)
        await swarm.settle()
        closed = [one for peer in swarm.live() for one in peer.committed() if one.fragment == 1 and one.bytes_up]
        assert len(closed) >= 12
        payload_bits = 8 * swarm.live()[0].codec.encoded_num_bytes(12_800) / 12_800
        up = 8 * sum(one.bytes_up for one in closed) / sum(one.contribution_values_sent for one in closed)
        down = 8 * sum(one.bytes_down for one in closed) / sum(one.result_values_received for one in closed)
        assert payload_bits < up < 1.2 * payload_bits
        assert payload_bits < down < 1.2 * payload_bits
        for peer in swarm.live():
            # Every applied commit says how long its results took to come, and to be applied.
            applied = [report for report in peer.reports if isinstance(report, CommitTaken)]
            assert len(applied) == len(peer.closed())
            assert all(report.receive_seconds >= 0 and report.apply_seconds >= 0 for report in applied)
        return swarm

    scenario(play)


@pytest.mark.parametrize("rule", [RULE, replace(RULE, combine="centered_clip", audit_fraction=1.0)])
def test_a_reducer_that_signs_a_mean_of_no_numbers_holds_up_nobody_else_for_long(rule):
    def with_bad_scales(*shard):
        honest = reduce_shard(*shard)
        if honest is None:
            return None
        scales = b"\xff" * memoryview(honest.encoded.scales).nbytes
        return replace(honest, encoded=replace(honest.encoded, scales=scales))

    async def play():
        swarm = Swarm(4, rule=rule)
        liar = swarm.live()[2]
        for other in swarm.live():
            other.exchange.sending.is_reachable = other is liar
        liar.reduce = with_bad_scales
        await swarm.train(1)
        liar.reduce = reduce_shard
        await swarm.train(3, interval_seconds=20.0, first_seed=1000)
        await swarm.settle()
        for peer in swarm.live():
            if peer is not liar:  # which has half applied its own mean
                assert min(fragment.state.version for fragment in peer.fragments) >= 2
                assert any("are not numbers" in reason for remote, reason in peer.refused if remote == liar.name)
        return swarm

    scenario(play)


def test_claims_of_a_better_anchor_are_looked_into_so_many_at_once_and_no_more():
    """In an open run somebody has as many keys as they like, and each of them may claim."""

    async def play():
        swarm = Swarm(2)
        await swarm.train(1)
        await swarm.settle()
        peer = swarm.live()[0]
        fragment = peer.fragments[0]
        peer._repair = lambda report: asyncio.sleep(0)

        def looked_into():
            return [report.peer_id for report in peer.reports if isinstance(report, RepairNeeded)]

        def claim(number):
            better = VersionIs(0, fragment.state.version, bytes(DIGEST_BYTES), 2**40)
            peer.exchange.on_message(named(100 + number), better, memoryview(b""), 64)

        for number in range(2 * MAX_DOUBTS):
            claim(number)
        assert looked_into() == [named(100 + number) for number in range(MAX_DOUBTS)]
        peer.exchange.applying.looked_into(fragment, named(100))
        for number in range(1, 2 * MAX_DOUBTS):
            claim(number)
        assert len(looked_into()) == MAX_DOUBTS + 1
        return swarm

    scenario(play)


def test_a_claim_that_comes_to_nothing_does_not_end_the_repair_that_another_began():
    """Two claims are looked into at once. A round that began while the anchor is replaced would be lost work."""

    async def play():
        swarm = Swarm(2)
        await swarm.train(1)
        await swarm.settle()
        peer = swarm.live()[0]
        fragment, applying = peer.fragments[0], peer.exchange.applying
        peer._repair = lambda report: asyncio.sleep(0)
        better = VersionIs(0, fragment.state.version, bytes(DIGEST_BYTES), 2**40)
        peer.exchange.on_message(named(100), better, memoryview(b""), 64)
        assert applying.begin_repair(fragment)
        applying.looked_into(fragment, named(100))
        assert applying.is_repairing(fragment)
        assert not applying.begin_repair(fragment), "two anchors are not fetched at once"
        applying.end_repair(fragment)
        assert not applying.is_repairing(fragment)
        return swarm

    scenario(play)


def test_a_result_of_a_commit_that_is_not_followed_is_not_sent_as_one_of_the_commit_that_is():
    """Both have the same version and number; in a fork their shards differ, and receivers would blame the sender.

    Its own reduction this peer gives, with the place that it has, as long as no commit decided: in a round that others
    follow and this peer does not yet, nobody else may have it.
    """

    async def play():
        swarm = Swarm(3)
        await swarm.train(3)
        await swarm.settle()
        peer, other = swarm.live()[0], swarm.live()[1]
        fragment = peer.fragments[1]
        version = fragment.state.version - 1
        commit = fragment.machine.known_commit(version)
        result = commit.shards[0]
        assert len(commit.shards) == 2
        assert stored_result(fragment, other.name, ResultRequest(1, version, 0, result.digest))
        whole = Reduction(peer.codec.encode(np.ones(20_000, dtype=np.float32)), (0,), None, ())
        digest = fragment.store.add_reduction(version, 0, 0, 20_000, whole)
        given = stored_result(fragment, other.name, ResultRequest(1, version, 0, digest))
        assert given is not None
        assert given[0] == Result(1, version, 0, 0, 20_000)
        fragment.store.settle(commit)
        assert not stored_result(fragment, other.name, ResultRequest(1, version, 0, digest))
        return swarm

    scenario(play)
