"""Two-level rounds of the pure machine under random orders, deaths and forks."""

from __future__ import annotations

import random

import pytest

from averaging.cell_messages import CellsCommit
from tests.cell_swarm import CellSwarm


def settle(swarm, chance, num_audits=3):
    for _ in swarm.run(chance):
        pass
    for _ in range(num_audits):
        swarm.audit()
        for _ in swarm.run(chance):
            pass


def assert_whole(swarm):
    swarm.assert_agreement()
    swarm.assert_parts_are_true()
    swarm.assert_once()
    for name in swarm.live():
        assert not swarm.lost_units(name)


@pytest.mark.parametrize("seed", range(4))
def test_all_cells_commit_the_work_of_all(seed):
    swarm = CellSwarm(9, cell_size=2, num_blocks=8)
    assert len(swarm.cells()) == 4
    swarm.checks_frames = True
    for round_ in range(3):
        for name in swarm.names:
            swarm.work(name)
        settle(swarm, random.Random(f"{seed} {round_}"), num_audits=0)
        assert_whole(swarm)
        assert {swarm.machine(name).version for name in swarm.names} == {round_ + 1}
        assert not any(member.waiting or member.pending for member in swarm.members.values())
    commits = swarm.members[swarm.names[0]].lineage
    assert all(isinstance(commit, CellsCommit) for commit in commits)
    assert {commit.tokens for commit in commits} == {9 * swarm.tokens}


def disturbed(seed, kind):
    """A few rounds of which some go wrong in one way; then the swarm may settle."""
    chance = random.Random(f"{kind} {seed}")
    num_peers = chance.choice([6, 8, 11])
    sites = [chance.choice(["north", "south"]) for _ in range(num_peers)] if chance.random() < 0.3 else None
    swarm = CellSwarm(num_peers, cell_size=2, sites=sites, num_blocks=chance.choice([4, 8]))
    swarm.tasks = [("work", name, None) for name in swarm.names]
    trouble = {"quiet": 0, "crash": 3, "links": 20, "twice": 20}[kind]
    num_works = 3 * num_peers
    slow = frozenset(chance.sample(swarm.names, 1)) if chance.random() < 0.3 else frozenset()
    for _ in swarm.run(chance, slow=slow):
        if num_works and chance.random() < 0.03:
            num_works -= 1
            swarm.work(chance.choice(swarm.live()))
        if not trouble or chance.random() > 0.02:
            continue
        trouble -= 1
        if kind == "crash" and len(swarm.live()) > 3:
            swarm.crash(chance.choice(swarm.live()), noticed=chance.random() < 0.7)
            swarm.set_views()
        elif kind == "links" and swarm.queues:
            swarm.lose(*chance.choice(sorted(swarm.queues))[:2])
        elif kind == "twice" and swarm.queues:
            queue = swarm.queues[chance.choice(sorted(swarm.queues))]
            queue.append(chance.choice(list(queue)))
    swarm.set_views()
    settle(swarm, chance)
    for name in swarm.live():
        swarm.work(name)
    settle(swarm, chance)
    return swarm


@pytest.mark.parametrize("kind", ["quiet", "crash", "twice"])
@pytest.mark.parametrize("first_seed", range(0, 16, 8))
def test_the_connected_agree_and_nothing_is_lost(kind, first_seed):
    for seed in range(first_seed, first_seed + 8):
        swarm = disturbed(seed, kind)
        assert_whole(swarm)
        assert not any(swarm.members[name].waiting or swarm.members[name].pending for name in swarm.live())


@pytest.mark.parametrize("first_seed", range(0, 16, 8))
def test_forks_heal(first_seed):
    for seed in range(first_seed, first_seed + 8):
        swarm = disturbed(seed, "links")
        swarm.assert_agreement(may_double=True)
        swarm.assert_parts_are_true()


def victims(swarm, kind):
    """Somebody whose death matters: who leads a cell, who leads above, who reduces."""
    leaders = [name for name in swarm.live() if swarm.machine(name)._bid is not None]
    tops = [name for name in swarm.live() if swarm.machine(name)._top is not None]
    reducers = [name for name in swarm.live() if swarm.machine(name)._crosses and name not in (*leaders, *tops)]
    return {"cell leader": [name for name in leaders if name not in tops], "top leader": tops, "reducer": reducers}[
        kind
    ]


@pytest.mark.parametrize("kind", ["cell leader", "top leader", "reducer"])
@pytest.mark.parametrize("seed", range(6))
def test_a_death_between_the_levels_costs_the_others_nothing(kind, seed):
    chance = random.Random(f"{kind} {seed}")
    swarm = CellSwarm(10, cell_size=2, num_blocks=8)
    for name in swarm.names:
        swarm.work(name)
    is_dead = False
    for _ in swarm.run(chance):
        found = [] if is_dead else victims(swarm, kind)
        if found and chance.random() < 0.1:
            is_dead = True
            swarm.crash(found[0])
    assert is_dead
    swarm.set_views()
    settle(swarm, chance)
    for name in swarm.live():
        swarm.work(name)
    settle(swarm, chance)
    assert_whole(swarm)
    assert not any(swarm.members[name].waiting or swarm.members[name].pending for name in swarm.live())


def test_a_swarm_that_grows_forms_cells_and_one_that_shrinks_is_flat_again():
    swarm = CellSwarm(9, cell_size=2, num_blocks=4)
    few = swarm.names[:3]
    swarm.set_views(lambda me: few)
    kinds = []
    for round_ in range(8):
        if round_ == 2:
            swarm.set_views()
        if round_ == 5:
            for name in swarm.names[2:]:
                swarm.crash(name)
            swarm.set_views()
        for name in few if round_ < 2 else swarm.live():
            swarm.work(name)
        settle(swarm, random.Random(round_), num_audits=2)
        lineage = swarm.members[swarm.names[0]].lineage
        kinds.append(len(lineage[-1].upper.cells) if isinstance(lineage[-1], CellsCommit) else 0)
    assert kinds[:2] == [0, 0]
    assert max(kinds[3:5]) >= 3
    assert kinds[-1] == 0
    assert_whole(swarm)
