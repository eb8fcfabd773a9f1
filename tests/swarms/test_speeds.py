"""Peers of very different speed: the slow ones take part in most rounds, and rare work still counts."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from averaging.outer.contribution_weights import staleness_factor
from averaging.outer.outer_settings import OuterRule
from averaging.rounds.round_facts import RoundCommitted, SentContribution, WorkLost
from tests.kit.rounds.exchange_swarm import Swarm, scenario
from tests.kit.tiers import sampled
from tests.simulator.peer import simulated_identity
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

FAST_SECONDS = 0.4
SLOW = 2


def shares_of_rounds(spec, *, after=6):
    """(per peer, the share of commits it is in, of those that leave version `after` or later; the result; drops)."""
    commits, dropped = {}, []

    def on_event(index, event):
        if isinstance(event.fact, RoundCommitted) and event.fact.version >= after:
            commits[(event.fact.fragment, event.fact.version)] = set(event.fact.contributors)
        elif isinstance(event.fact, WorkLost) and event.fact.cause == "late":
            dropped.append(index)

    result = simulate(spec, on_event)
    ids = [simulated_identity(spec.seed, index).peer_id for index in range(spec.num_peers)]
    assert len(commits) >= 20
    return [sum(peer in members for members in commits.values()) / len(commits) for peer in ids], result, dropped


def spec_with_slow_peer(seed, times_slower, **averaging):
    step_seconds, manifest = (FAST_SECONDS, FAST_SECONDS), tiny_manifest(seed, **averaging)
    spec = SimulationSpec(4, 300, seed, manifest, step_seconds=step_seconds, workload=LIGHT_WORK)
    profiles = [spec.profile(index) for index in range(4)]
    profiles[SLOW] = dataclasses.replace(profiles[SLOW], step_seconds=times_slower * FAST_SECONDS)
    starts = tuple(Fault(0.5 * index, "start", (index,)) for index in range(4))
    return dataclasses.replace(spec, profiles=tuple(profiles), faults=starts)


@pytest.mark.parametrize(("mode", "seed"), sampled([("carry", 0), ("carry", 1), ("eager", 2)], one_in=3))
def test_a_peer_ten_times_slower_is_in_most_rounds(mode, seed):
    shares, result, dropped = shares_of_rounds(spec_with_slow_peer(seed, 10, mode=mode, sync_every=20))
    assert result.violations == ()
    assert shares[SLOW] >= 0.7, shares
    assert min(shares) >= 0.65, shares
    assert not dropped


@pytest.mark.parametrize("every", [2, 5])
def test_a_peer_that_is_in_every_few_rounds_helps_with_its_staleness(every):
    rule = OuterRule("carry", 0.7, 0.5, overlay_gain=0.7)

    async def play():
        swarm = Swarm(4, rule=rule, sizes=(20_000,))
        rare = swarm.trainers.pop()
        base_version = 0
        for interval in range(4 * every):
            if interval % every == every - 1:
                values = 0.01 * np.random.default_rng(interval).standard_normal(20_000, dtype=np.float32)
                rare.live[0] -= values
                began_on = base_version
                base_version = rare.fragments[0].state.version
                work = asyncio.get_running_loop().create_task(
                    rare.exchange.sending.work_arrived(
                        0, lambda state, values=values, base=began_on: state.receive_work(values, 100 * every, 10, base)
                    )
                )
            await swarm.train(1, 20.0, first_seed=1000 + interval)
            await work if interval >= every - 1 else None
        await swarm.settle()
        swarm.assert_agreement()
        swarm.assert_shown()
        assert not any(isinstance(report, WorkLost) for report in rare.reports)
        sent = [report for report in rare.reports if isinstance(report, SentContribution)]
        included = [closed for closed in rare.closed() if closed.own_included]
        assert len(included) == len(sent) == 4
        assert [report.staleness for report in sent][1:] == [every - 1] * 3
        assert all(staleness_factor(report.staleness, rule) > 0 for report in sent)
        for closed in included:
            member = next(i for i, entry in enumerate(closed.commit.roster) if entry.peer_id == rare.name)
            assert all(member in shard.included for shard in closed.commit.shards)
        return swarm

    scenario(play)
