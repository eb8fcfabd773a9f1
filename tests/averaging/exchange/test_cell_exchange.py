"""Two-level rounds with values: equal anchors, the mean of all members, nothing lost, over a simulated network."""

from __future__ import annotations

import asyncio

import pytest

from averaging.cells.formation import CellRule
from averaging.outer.outer_settings import OuterRule
from averaging.wire.cell_messages import CellsCommit
from tests.kit.network.memory_networks import named
from tests.kit.rounds.exchange_swarm import Swarm, assert_close, scenario

SIZES = (300, 70_000)


def commits_of(swarm, index):
    return [report.commit for report in swarm.live()[0].closed(index)]


def test_a_swarm_in_cells_agrees_on_every_bit():
    async def play():
        swarm = Swarm(12, cell_rule=CellRule(4), sizes=SIZES)
        await swarm.train(3)
        await swarm.settle()
        swarm.assert_agreement(3)
        swarm.assert_shown()
        for index in range(len(SIZES)):
            commits = commits_of(swarm, index)
            assert all(isinstance(commit, CellsCommit) for commit in commits)
            assert all(len(commit.upper.cells) >= 2 for commit in commits)
            assert all(result.digest for commit in commits for result in commit.results)
        for peer in swarm.live():
            assert not peer.refused
            assert all(fragment.state.pending is None for fragment in peer.fragments)
            assert all(fragment.state.lineage_tokens == 12 * 3 * 100 for fragment in peer.fragments)
        return swarm

    scenario(play)


def anchor_after_two_rounds(cell_rule, rule):
    found = []

    async def play():
        swarm = Swarm(8, cell_rule=cell_rule, sizes=(20_000,), codec="fp32", rule=rule)
        await swarm.train(2)
        await swarm.settle()
        swarm.assert_agreement(2)
        found.append((commits_of(swarm, 0), swarm.live()[0].fragments[0].state.anchor.copy()))
        return swarm

    scenario(play)
    return found[0]


def test_cells_give_the_mean_that_a_flat_round_gives():
    rule = OuterRule("carry", 0.7, 0.5, overlay_gain=0.7, staleness_power=0.5, momentum_lag_penalty=0.3)
    flat_commits, flat = anchor_after_two_rounds(None, rule)
    commits, anchor = anchor_after_two_rounds(
        CellRule(4, lambda peer_id: "east" if peer_id < named(3) else "west"), rule
    )
    assert all(len(commit.upper.cells) == 2 for commit in commits)
    assert [commit.tokens for commit in commits] == [commit.tokens for commit in flat_commits]
    assert_close(anchor, flat, 1e-6)


@pytest.mark.parametrize("victim", ["top", "reducer"])
def test_the_others_go_on_when_somebody_dies_between_the_levels(victim):
    async def play():
        swarm = Swarm(
            9, cell_rule=CellRule(4, lambda peer_id: "east" if peer_id < named(4) else "west"), sizes=(40_000,)
        )
        training = asyncio.ensure_future(swarm.train(3))
        while not (found := dying(swarm, victim)):  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.01)
        swarm.network.crash(found[0].name)
        await asyncio.sleep(1.0)
        swarm.set_views()
        await training
        await swarm.settle()
        swarm.assert_agreement(2)
        swarm.assert_shown()
        for peer in swarm.live():
            state = peer.fragments[0].state
            assert state.pending is None
            assert not state.unsent_tokens
        return swarm

    scenario(play)


def dying(swarm, victim):
    scopes = [(peer, peer.fragments[0].machine.scope) for peer in swarm.live()]
    if victim == "top":
        return [peer for peer, scope in scopes if scope._top is not None and scope._top.plan is not None]
    return [peer for peer, scope in scopes if scope._orders and scope._top is None and scope._bid is None]
