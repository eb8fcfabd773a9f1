"""Of two members the one that does not lead dies: the other goes on as soon as one of three would. Virtual time."""

from __future__ import annotations

import asyncio

import pytest

from averaging.rounds.round_facts import RoundStarted, SentContribution
from tests.kit.rounds.exchange_swarm import Swarm, now, scenario

NUM_VALUES = 200_000
BITS_PER_SECOND = 2e6
INTERVAL_SECONDS = 20.0
NUM_LEARNING_ROUNDS = 4


def leads(peer, version):
    started = [one for one in peer.reports if isinstance(one, RoundStarted) and one.version == version]
    return any(one.leader == peer.name for one in started)


def has_sent(peer, version):
    return any(isinstance(one, SentContribution) and one.version == version for one in peer.reports)


async def seconds_alone(how, delay_seconds):
    """Seconds from the end of the member that does not lead to the leader's commit."""
    swarm = Swarm(
        2,
        sizes=(NUM_VALUES,),
        latency_seconds=(0.01, 0.04),
        upload_bits_per_second=BITS_PER_SECOND,
        download_bits_per_second=BITS_PER_SECOND,
    )
    await swarm.train(NUM_LEARNING_ROUNDS, INTERVAL_SECONDS)
    version = swarm.trainers[0].fragments[0].state.version
    training = asyncio.get_running_loop().create_task(swarm.train(2, INTERVAL_SECONDS, first_seed=500))
    while not all(has_sent(peer, version) for peer in swarm.live()):  # noqa: ASYNC110 (looked at from outside)
        await asyncio.sleep(0.002)
    await asyncio.sleep(delay_seconds)
    (leader,) = [peer for peer in swarm.live() if leads(peer, version)]
    (other,) = [peer for peer in swarm.live() if peer is not leader]
    getattr(swarm.network, how)(other.name)
    died_at = now()
    assert leader.fragments[0].state.version == version
    while leader.fragments[0].state.version == version:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    seconds = now() - died_at
    training.cancel()
    return swarm, seconds


@pytest.mark.parametrize("how", ["crash", "stall"])
@pytest.mark.parametrize("delay_seconds", [0.0, 0.6])
def test_a_leader_that_is_left_alone_commits_soon(how, delay_seconds):
    async def play():
        swarm, seconds = await seconds_alone(how, delay_seconds)
        assert seconds < (0.5 if how == "crash" else 3.0)
        return swarm

    scenario(play)
