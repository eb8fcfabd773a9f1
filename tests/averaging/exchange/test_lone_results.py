"""A reducer is gone when a single member has read its mean: how long the others need to have it. Virtual time."""

from __future__ import annotations

import asyncio

import pytest

from averaging.wire.messages import Result
from tests.kit.rounds.exchange_swarm import Swarm, now, scenario

NUM_LEARNING_ROUNDS = 5
SEED = 2
INTERVAL_SECONDS = 5.0


def give_to_one(swarm):
    """Let the first reducer that does not lead send its mean to the last of the roster only.

    Returns where (the reducer, version) will be.
    """
    lone, given_to = [], []

    def wrap(peer):
        send, machine = peer.links.send, peer.fragments[0].machine

        def one_send(to, message, payload=()):
            if isinstance(message, Result) and message.version >= NUM_LEARNING_ROUNDS and machine.leader != peer.name:
                plan = machine.plan
                if not lone and plan is not None and plan.version == message.version:
                    lone.append((peer, message.version))
                    given_to.append(max(one.peer_id for one in plan.roster if one.peer_id != peer.name))
                if lone and lone[0] == (peer, message.version) and to != given_to[0]:
                    return 0
            return send(to, message, payload)

        peer.links.send = one_send

    for peer in swarm.live():
        wrap(peer)
    return lone


async def seconds_without_reducer(num_peers, how):
    """(the swarm, seconds from the reducer's end to the last survivor's commit)."""
    swarm = Swarm(num_peers, seed=SEED, sizes=(300,), latency_seconds=(0.01, 0.04))
    lone = give_to_one(swarm)
    training = asyncio.get_running_loop().create_task(swarm.train(NUM_LEARNING_ROUNDS + 6, INTERVAL_SECONDS))
    while not lone:  # noqa: ASYNC110 (looked at from outside)
        await asyncio.sleep(0.002)
    reducer, version = lone[0]
    others = [peer.fragments[0] for peer in swarm.live() if peer is not reducer]

    def has_mean(fragment):
        return any(of == version for of, _, _ in fragment.store._results)

    def is_committed(fragment):
        return fragment.machine.applying is not None or fragment.state.version > version

    while not (any(map(is_committed, others)) and any(map(has_mean, others))):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert sum(map(has_mean, others)) == 1
    getattr(swarm.network, how)(reducer.name)
    died_at = now()
    while any(one.state.version == version for one in others):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    seconds = now() - died_at
    training.cancel()
    return swarm, seconds


@pytest.mark.parametrize(
    ("num_peers", "how", "most_seconds"),
    [(16, "crash", 0.9), (16, "stall", 1.5), pytest.param(40, "stall", 2.0, marks=pytest.mark.nightly)],
)
def test_a_mean_that_one_member_has_is_soon_everywhere(num_peers, how, most_seconds):
    async def play():
        swarm, seconds = await seconds_without_reducer(num_peers, how)
        assert seconds < most_seconds
        return swarm

    scenario(play)
