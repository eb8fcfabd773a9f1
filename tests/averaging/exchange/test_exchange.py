"""Whole rounds over a simulated network: real frames, real values, virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest

from averaging.exchange.applying import MAX_DOUBTS, stored_result
from averaging.lanes.links import DATA_STREAMS, ROUND_PROTOCOL
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.shard_mean import Reduction, reduce_shard
from averaging.rounds.round_facts import CommitTaken, RepairNeeded, RoundStarted, WorkLost
from averaging.wire import frames
from averaging.wire.messages import (
    DIGEST_BYTES,
    Contribution,
    Result,
    ResultRequest,
    VersionIs,
)
from dht.ground.errors import PeerFault
from tests.kit.network.memory_networks import named
from tests.kit.rounds.exchange_swarm import RULE, Swarm, assert_close, scenario
from tests.simulator.network.host import MemoryHost


@pytest.mark.parametrize("codec", ["int4", "fp32"])
@pytest.mark.parametrize("mode", ["carry", "eager", "sync"])
def test_four_peers_agree_to_the_last_bit(mode, codec):
    async def play():
        swarm = Swarm(4, rule=OuterRule(mode, 0.5, 0.5, overlay_gain=0.7), codec=codec)
        await swarm.train(5)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        swarm.assert_shown()
        for peer in swarm.live():
            assert not any(isinstance(report, RepairNeeded) for report in peer.reports)
            assert sum(closed.own_included for closed in peer.closed()) >= 8
        return swarm

    scenario(play)


def test_bytes_on_the_wire_are_few():
    """Payload and all framing of a round, per value of the fragment: 4.125 bits and under 3 % on top, each way."""

    async def play():
        swarm = Swarm(4)
        await swarm.train(4)
        await swarm.settle()
        closed = [one for peer in swarm.live() for one in peer.committed() if one.fragment == 1 and one.bytes_up]
        assert len(closed) >= 12
        payload_bits = swarm.live()[0].codec.bits_per_value
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


def test_a_lone_peer_goes_on():
    async def play():
        swarm = Swarm(1)
        await swarm.train(4)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        swarm.assert_shown()
        return swarm

    scenario(play)


def test_a_follower_has_every_commit():
    """A seed takes no part in rounds, fetches their results and ends with the same bits."""

    async def play():
        swarm = Swarm(4, num_trainers=3)
        seed = next(peer for peer in swarm.live() if peer not in swarm.trainers)
        seed.exchange.sending.take_part(False)
        await swarm.train(4)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        assert not any(isinstance(report, RepairNeeded) for report in seed.reports)
        return swarm

    scenario(play)


async def when_round_begins(swarm, index, choose):
    """Wait until a round of fragment `index` has its plan; returns the peer that `choose` picks from that round."""
    while True:
        for peer in swarm.live():
            for report in peer.reports:
                if isinstance(report, RoundStarted) and report.fragment == index and report.num_contributors == 4:
                    return choose(peer, report)
        await asyncio.sleep(0.005)


def leader_of(peer, report):
    return report.leader


def reducer_of(peer, report):
    reductions = peer.fragments[1].machine._reducing.reductions.values()
    plans = [reduction.plan for reduction in reductions] or [peer.fragments[1].machine._member.plan]
    reducers = [plans[0].roster[shard.reducer].peer_id for shard in plans[0].shards]
    return next((name for name in reducers if name != report.leader), reducers[0])


@pytest.mark.parametrize("choose", [leader_of, reducer_of], ids=["leader", "reducer"])
@pytest.mark.parametrize("how", ["crash", "stall"])
@pytest.mark.parametrize("seed", range(3))
def test_whoever_dies_in_mid_round_the_others_go_on(choose, how, seed):
    async def play():
        swarm = Swarm(4, seed=seed)
        training = asyncio.get_running_loop().create_task(swarm.train(6))
        victim = await when_round_begins(swarm, 1, choose)
        getattr(swarm.network, how)(victim)
        version = max(peer.fragments[1].state.version for peer in swarm.live())
        await asyncio.sleep(10.0)  # its record runs out, and the others see one trainer less
        others = [peer for peer in swarm.live() if peer.name != victim]
        swarm.set_views(lambda peer, other: other.name != victim)
        await training
        if how == "stall":
            swarm.network.crash(victim)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        swarm.assert_shown()
        assert swarm.live() == others
        assert min(peer.fragments[1].state.version for peer in others) > version
        return swarm

    scenario(play)


@pytest.mark.parametrize("seed", range(3))
def test_two_halves_go_on_and_become_one(seed):
    async def play():
        swarm = Swarm(5, seed=seed, partition_break_seconds=5.0)
        await swarm.train(2)
        left, right = swarm.live()[:2], swarm.live()[2:]
        swarm.network.partition([peer.name for peer in left], [peer.name for peer in right])
        swarm.set_views(lambda peer, other: (peer in left) == (other in left))
        await swarm.train(2, interval_seconds=40.0, first_seed=1000)
        digests = {peer.fragments[0].state.digest for peer in swarm.live()}
        assert len(digests) == 2
        swarm.network.heal()
        swarm.set_views()
        await swarm.settle()
        await swarm.train(3, first_seed=2000)
        await swarm.settle()
        swarm.assert_agreement(least_version=6)
        swarm.assert_shown()
        return swarm

    scenario(play)


def test_streams_that_break_all_the_time_stop_nobody():
    async def play():
        swarm = Swarm(4, seed=5, stream_loss=0.2)
        await swarm.train(10)
        await swarm.settle()
        swarm.assert_agreement(least_version=5)
        swarm.assert_shown()
        return swarm

    scenario(play)


def hostile_frames(me, victim):
    """Frames that a hostile member sends after a proper hello: from nonsense to nearly right."""
    chance = random.Random(9)
    digest, version = bytes(DIGEST_BYTES), victim.fragments[1].machine.version
    of_a_shard = victim.codec.encoded_num_bytes(160)
    yield b""
    yield bytes([frames.WIRE_VERSION, 0])
    yield chance.randbytes(500)
    yield b"\x01\xff\xff" + bytes(100)
    yield frames.encode(Contribution(1, version, 0, me, 0, 1, 0, 160, 9)) + bytes(5)
    yield frames.encode(Contribution(1, version, 0, me, 0, 1, 0, 160, 9)) + chance.randbytes(of_a_shard)
    yield frames.encode(Result(1, version, 0, 0, 160)) + chance.randbytes(of_a_shard)
    yield frames.encode(VersionIs(1, 10**9, digest, 2**60))
    yield frames.encode(VersionIs(1, version, digest, 2**59))


def test_garbage_from_a_hostile_member_stops_no_round():
    async def play():
        swarm = Swarm(4)
        villain = MemoryHost(swarm.network, named(66))

        async def attack():
            for round_ in range(6):
                for victim in swarm.trainers:
                    for frame in hostile_frames(villain.peer_id, victim):
                        try:
                            stream = await villain.open_stream(victim.name, ROUND_PROTOCOL, 5.0)
                            await stream.send(b"hello" if round_ % 3 else b"let me in")
                            await stream.receive(100)
                            await stream.send(frame)
                            await stream.send(chance.randbytes(20))
                        except PeerFault:
                            continue
                await asyncio.sleep(2.0)

        chance = random.Random(4)
        attacking = asyncio.get_running_loop().create_task(attack())
        swarm.peers[villain.peer_id] = swarm.trainers[0]  # a repair from it finds nothing heavier
        await swarm.train(6)
        await attacking
        await villain.close()
        del swarm.peers[villain.peer_id]
        await swarm.settle()
        swarm.assert_agreement(least_version=5)
        swarm.assert_shown()
        for peer in swarm.trainers:
            reasons = " ".join(reason for remote, reason in peer.refused if remote == villain.peer_id)
            for part in ("does not know the word", "frame of 2 bytes", "wire version", "5 bytes in a contribution"):
                assert part in reasons
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
            other.exchange.sending.note_reachable(other is liar)
        liar.reduce = with_bad_scales
        await swarm.train(1)
        liar.reduce = reduce_shard
        await swarm.train(3, interval_seconds=20.0, first_seed=1000)
        await swarm.settle()
        for peer in swarm.live():
            if peer is not liar:  # which has half applied its own mean
                assert min(fragment.state.version for fragment in peer.fragments) >= 2
                assert any("are no numbers" in reason for remote, reason in peer.refused if remote == liar.name)
        return swarm

    scenario(play)


def test_a_fault_while_a_commit_is_applied_costs_a_peer_a_version_and_not_the_fragment(monkeypatch, caplog):
    honest = FragmentState.apply
    failed = []

    def fails_once(state, *args):
        if state is failing and state.version == 1 and not failed:
            failed.append(state.version)
            raise RuntimeError("nobody foresaw this")
        return honest(state, *args)

    async def play():
        nonlocal failing
        swarm = Swarm(4)
        failing = swarm.live()[1].fragments[0].state
        monkeypatch.setattr(FragmentState, "apply", fails_once)
        await swarm.train(6)
        await swarm.settle()
        swarm.assert_agreement(least_version=5)
        return swarm

    failing = None
    scenario(play)
    assert failed
    assert "nobody foresaw this" in caplog.text


def test_work_that_nobody_may_apply_any_more_is_dropped_and_leaves_the_live_parameters():
    async def play():
        swarm = Swarm(2)
        peer = swarm.trainers[0]
        peer.exchange.sending.take_part(False)
        await peer.work(0, 1)
        fragment = peer.fragments[0]
        fragment.state.version = fragment.machine.version = 9
        peer.exchange.sending.take_part(True)
        await peer.exchange.sending.offer(fragment)
        assert [report.staleness for report in peer.reports if isinstance(report, WorkLost)] == [8]
        assert_close(peer.live[0], fragment.state.anchor, 1e-5, 1.3e-6)
        return swarm

    scenario(play)


def test_nothing_is_left_behind_after_many_rounds():
    async def play():
        swarm = Swarm(3)
        await swarm.train(30)
        await swarm.settle()
        swarm.assert_agreement(least_version=25)
        for peer in swarm.live():
            assert len(peer.exchange._background._tasks) <= 2
            for fragment in peer.fragments:
                assert len(fragment.store._results) <= 5 * 2
                assert len(fragment.log.digests) <= 5
                assert len(fragment.store._inbound) <= 2
        assert swarm.network.num_streams <= (1 + DATA_STREAMS) * 3 * 2
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
        peer.exchange.applying.repaired(fragment, named(100))
        for number in range(1, 2 * MAX_DOUBTS):
            claim(number)
        assert len(looked_into()) == MAX_DOUBTS + 1
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
