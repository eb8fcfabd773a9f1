"""One of four peers dies in mid-round at 10 M parameters and 100 Mbit/s: what the other three see. Virtual time.

A killed process breaks its streams at once; a host that lost its power says nothing at all (`stall`). Nobody tells the
survivors that it is gone: their view of the swarm stays what it was.
"""

from __future__ import annotations

import asyncio

import pytest

from averaging.rounds.round_facts import AttemptEnded, MembersAwaited, RoundStarted, SentContribution, WorkReturned
from averaging.wire.messages import own_ranges
from tests.kit.rounds.exchange_swarm import Swarm, assert_close, now, scenario

NUM_VALUES = 10_000_000
BITS_PER_SECOND = 100e6
SCALE = 50
"""Most tests take this part of the parameters over this part of the line, which takes the same time."""
INTERVAL_SECONDS = 20.0
NUM_LEARNING_ROUNDS = 4
SURVIVORS_SECONDS = 5.0
"""What the survivors may take at most from the death to their next common commit."""


def began(peer, version):
    return [report for report in peer.reports if isinstance(report, RoundStarted) and report.version == version]


def has_sent(peer, version):
    return any(isinstance(report, SentContribution) and report.version == version for report in peer.reports)


def leader(swarm, version):
    """The leader, when everybody has its plan."""
    if all(began(peer, version) for peer in swarm.live()):
        return swarm.peers[began(swarm.live()[0], version)[0].leader]
    return None


def reducer(swarm, version):
    """A member that reduces and does not lead."""
    chosen = leader(swarm, version)
    return chosen and next(peer for peer in swarm.live() if peer is not chosen and peer.exchange.sending.is_reachable)


def member_before_sending(swarm, version):
    """A member that reduces nothing, when its leader's plan is on the way to it."""
    for peer in swarm.live():
        if not peer.exchange.sending.is_reachable and any(began(other, version) for other in swarm.live()):
            assert not has_sent(peer, version)
            return peer
    return None


def member_after_sending(swarm, version):
    """The same, when everything it sent has arrived."""
    plain = next(peer for peer in swarm.live() if not peer.exchange.sending.is_reachable)
    reducing = [peer.fragments[0].machine._reducing for peer in swarm.live() if peer is not plain]
    arrived = [plain.name in senders for each in reducing for senders in each.arrived.values()]
    plan = plain.fragments[0].machine.plan
    num_shards = len(plan.shards) if plan is not None else 0
    return plain if has_sent(plain, version) and len(arrived) >= max(1, num_shards) and all(arrived) else None


async def one_dies(choose, how, num_values):
    """Returns (the swarm, survivors, the version of the round, seconds from the death to the survivors' commit)."""
    swarm = Swarm(
        4,
        sizes=(num_values,),
        latency_seconds=(0.01, 0.04),
        upload_bits_per_second=BITS_PER_SECOND * num_values / NUM_VALUES,
        download_bits_per_second=BITS_PER_SECOND * num_values / NUM_VALUES,
    )
    is_plain = choose in (member_before_sending, member_after_sending)
    swarm.trainers[2].exchange.sending.is_reachable = not is_plain
    await swarm.train(NUM_LEARNING_ROUNDS, INTERVAL_SECONDS)
    version = swarm.trainers[0].fragments[0].state.version
    assert version == NUM_LEARNING_ROUNDS
    last = asyncio.get_running_loop().create_task(swarm.train(1, INTERVAL_SECONDS, first_seed=500))
    while (victim := choose(swarm, version)) is None:  # noqa: ASYNC110 (looked at from outside)
        await asyncio.sleep(0.002)
    survivors = [peer for peer in swarm.live() if peer is not victim]
    assert all(peer.fragments[0].state.version == version for peer in survivors)
    died_at = now()
    getattr(swarm.network, how)(victim.name)
    while any(peer.fragments[0].state.version == version for peer in survivors):  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    seconds = now() - died_at
    await last
    return swarm, survivors, version, seconds


def assert_nothing_is_lost(survivors, version):
    """What travelled is in the commit, or came back, value by value."""
    (commit,) = {closed.commit for peer in survivors for closed in peer.closed() if closed.commit.version == version}
    for peer in survivors:
        _, ranges = own_ranges(commit, peer.name)
        returned = sum(
            report.num_values
            for report in peer.reports
            if isinstance(report, WorkReturned) and report.version == version
        )
        assert returned + sum(end - start for start, end in ranges) == peer.swarm.sizes[0]
        assert_close(peer.live[0], peer.fragments[0].state.shown(), 1e-4)
    return commit


async def leader_left_alone(how, delay_seconds):
    """Returns (the swarm, seconds from the end of the member that does not lead to the leader's commit)."""
    line = BITS_PER_SECOND / SCALE
    swarm = Swarm(
        2,
        sizes=(NUM_VALUES // SCALE,),
        latency_seconds=(0.01, 0.04),
        upload_bits_per_second=line,
        download_bits_per_second=line,
    )
    await swarm.train(NUM_LEARNING_ROUNDS, INTERVAL_SECONDS)
    version = swarm.trainers[0].fragments[0].state.version
    training = asyncio.get_running_loop().create_task(swarm.train(2, INTERVAL_SECONDS, first_seed=500))
    while not all(has_sent(peer, version) for peer in swarm.live()):  # noqa: ASYNC110 (looked at from outside)
        await asyncio.sleep(0.002)
    await asyncio.sleep(delay_seconds)
    chosen = leader(swarm, version)
    (other,) = [peer for peer in swarm.live() if peer is not chosen]
    getattr(swarm.network, how)(other.name)
    died_at = now()
    assert chosen.fragments[0].state.version == version
    while chosen.fragments[0].state.version == version:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    seconds = now() - died_at
    training.cancel()
    return swarm, seconds


@pytest.mark.parametrize("how", ["crash", "stall"])
@pytest.mark.parametrize("delay_seconds", [0.0, 0.6])
def test_a_leader_that_is_left_alone_by_its_only_member_commits_soon(how, delay_seconds):
    async def play():
        swarm, seconds = await leader_left_alone(how, delay_seconds)
        assert seconds < (0.5 if how == "crash" else 3.0)
        return swarm

    scenario(play)


ROLES = [leader, reducer, member_before_sending, member_after_sending]


@pytest.mark.parametrize(
    ("choose", "how", "num_values"),
    [
        *((choose, how, NUM_VALUES // SCALE) for choose in ROLES for how in ("crash", "stall")),
        pytest.param(leader, "stall", NUM_VALUES, marks=pytest.mark.nightly),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_survivors_commit_within_one_learned_deadline(choose, how, num_values):
    async def play():
        swarm, survivors, version, seconds = await one_dies(choose, how, num_values)
        assert seconds < SURVIVORS_SECONDS
        assert len({peer.fragments[0].state.digest for peer in survivors}) == 1
        commit = assert_nothing_is_lost(survivors, version)
        included = {commit.roster[index].peer_id for shard in commit.shards for index in shard.included}
        assert {peer.name for peer in survivors} <= included
        return swarm

    scenario(play)


def test_who_was_waited_for_in_vain_is_said_by_whoever_waited():
    async def play():
        swarm, survivors, version, _ = await one_dies(reducer, "stall", NUM_VALUES // SCALE)
        (dead,) = set(swarm.peers) - {peer.name for peer in survivors}
        expired = [report for peer in survivors for report in peer.reports if isinstance(report, MembersAwaited)]
        told = [report for report in expired if report.version == version]
        assert {report.members for report in told} == {(dead,)}
        assert sorted(report.awaited for report in told) == ["contribution"] * 3 + ["mean"]
        assert all(1.0 <= report.seconds < SURVIVORS_SECONDS for report in told)
        replaced = [report for peer in survivors for report in peer.reports if isinstance(report, AttemptEnded)]
        assert all(report.old_leader == dead and "silent for" in report.reason for report in replaced)
        return swarm

    scenario(play)
