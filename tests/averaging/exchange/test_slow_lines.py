"""Slow and unequal lines: what was averaged counts, and nothing else; nothing is lost that a round could still take."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from averaging.outer.shard_mean import add_error, reduce_shard
from averaging.rounds.round_facts import WorkLost
from averaging.signing.commit_credit import round_of
from tests.kit.rounds.exchange_swarm import Swarm, scenario

NUM_VALUES = 32_768
INTERVAL_SECONDS = 10.0
WHOLE_BITS_PER_SECOND = NUM_VALUES * 4 / INTERVAL_SECONDS
"""A line with this upload rate is busy for a whole interval with one contribution."""


def trained_with(line_shares, num_intervals=16):
    """The swarm after so many intervals in which each member trains 100 tokens; None: a line that carries everything.

    Args:
        line_shares: per member, the part of one contribution that its line can send in an interval.
    """
    swarms = []

    async def play():
        swarm = Swarm(len(line_shares), sizes=(NUM_VALUES,))
        swarms.append(swarm)
        for peer, share in zip(swarm.trainers, line_shares, strict=True):
            if share is not None:
                peer.links.limit(share * WHOLE_BITS_PER_SECOND, None)
        await swarm.train(num_intervals, INTERVAL_SECONDS)
        await swarm.settle(45.0)
        swarm.assert_agreement()
        swarm.assert_shown()
        return swarm

    scenario(play)
    return swarms[0]


def commits_of(swarm):
    return {closed.commit.version: closed.commit for peer in swarm.trainers for closed in peer.closed()}


@pytest.mark.parametrize("line_shares", [(None, None, 0.4, 0.4), (0.2, 0.2, 0.2, 0.2)])
def test_the_clock_counts_what_was_averaged(line_shares):
    swarm = trained_with(line_shares)
    credited = sum(
        share.milli_tokens for commit in commits_of(swarm).values() for share in round_of(commit, NUM_VALUES).shares
    )
    assert 0 < credited < 1000 * 100 * 16 * 4, "some work never arrived, or this shows nothing"
    assert swarm.trainers[0].fragments[0].state.lineage_tokens == pytest.approx(credited / 1000, rel=0.01)


def credit_of(swarm):
    """Tokens of each member that were averaged, in the order of the members."""
    credited = Counter()
    for commit in commits_of(swarm).values():
        for share in round_of(commit, NUM_VALUES).shares:
            credited[share.peer_id] += share.milli_tokens / 1000
    return [credited[peer.name] for peer in swarm.trainers]


def dropped_by(swarm):
    return sum(fact.tokens for peer in swarm.trainers for fact in peer.reports if isinstance(fact, WorkLost))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_slow_line_drops_nothing_that_a_round_could_still_take(share):
    """Each shard gets its turn before its work is too old, whatever else came back meanwhile."""
    swarm = trained_with((None, None, share, share))
    assert dropped_by(swarm) == 0
    assert credit_of(swarm) == pytest.approx([1600] * 4, rel=0.02)


def test_a_line_that_brings_a_seventh_loses_what_is_too_old_and_no_more():
    swarm = trained_with((None, None, 0.2, 0.2))
    fast, slow = credit_of(swarm)[:2], credit_of(swarm)[2:]
    assert fast == pytest.approx([1600] * 2, rel=0.02)
    assert min(slow) > 1600 / 7
    assert sum(slow) + dropped_by(swarm) == pytest.approx(2 * 1600, rel=0.02)


@pytest.mark.parametrize("megabits", [(40, 40, 40, 40), (20, 40, 60, 90)])
def test_reducers_carry_what_their_broadcasts_lose_on_lines_whose_measured_rates_jitter(megabits):
    num_intervals, chance = 8, random.Random(4)
    carried, cuts = [], set()

    def reduce(contributions, rule, codec, num_values, error):
        lost = np.zeros(num_values, dtype=np.float32)
        add_error(error, lost)
        carried.append(np.count_nonzero(lost) / NUM_VALUES)
        return reduce_shard(contributions, rule, codec, num_values, error)

    async def play():
        swarm = Swarm(len(megabits), sizes=(NUM_VALUES,))
        for peer in swarm.trainers:
            peer.reduce = reduce
        for interval in range(num_intervals):
            for peer, rate in zip(swarm.trainers, megabits, strict=True):
                peer.links.limit(1e6 * rate * chance.uniform(0.98, 1.02), None)
            await swarm.train(1, 5.0, first_seed=1000 * interval)
        swarm.assert_agreement(num_intervals - 1)
        cuts.update(tuple(shard.start for shard in commit.shards) for commit in commits_of(swarm).values())
        return swarm

    scenario(play)
    assert len(cuts) == 1 if len(set(megabits)) == 1 else len(cuts) > 4
    # The first round has nothing to carry; one value in a hundred loses nothing.
    assert sum(carried) > 0.9 * (num_intervals - 1)
