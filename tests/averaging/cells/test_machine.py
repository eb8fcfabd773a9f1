"""Two-level rounds of the pure machine under random orders, deaths and forks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from averaging.cells.cell_scope import MAX_PARTS
from averaging.rounds.learned_durations import HEARTBEAT_SECONDS
from averaging.rounds.machine_events import Advanced, Heard, SendPartials, Tick
from averaging.wire.cell_messages import CellsCommit, Partial
from averaging.wire.messages import MAX_ROSTER, Abandon, Redirect
from tests.kit.network.memory_networks import named
from tests.kit.rounds.cell_swarm import CellSwarm
from tests.kit.rounds.round_swarm import settle
from tests.kit.tiers import sampled


def assert_whole(swarm):
    swarm.assert_agreement()
    swarm.assert_parts_are_true()
    swarm.assert_once()
    for name in swarm.live():
        assert not swarm.lost_units(name)


@pytest.mark.parametrize("seed", sampled(range(4), one_in=2))
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
@pytest.mark.parametrize("first_seed", sampled(range(0, 16, 4), one_in=4))
def test_the_connected_agree_and_nothing_is_lost(kind, first_seed):
    for seed in range(first_seed, first_seed + 4):
        swarm = disturbed(seed, kind)
        assert_whole(swarm)
        assert not any(swarm.members[name].waiting or swarm.members[name].pending for name in swarm.live())


@pytest.mark.parametrize("first_seed", sampled(range(0, 16, 4), one_in=4))
def test_forks_heal(first_seed):
    for seed in range(first_seed, first_seed + 4):
        swarm = disturbed(seed, "links")
        swarm.assert_agreement(may_double=True)
        swarm.assert_parts_are_true()


def victims(swarm, kind):
    """Somebody whose death matters: who leads a cell, who leads above, who reduces."""
    leaders = [name for name in swarm.live() if swarm.scope(name)._bid is not None]
    tops = [name for name in swarm.live() if swarm.scope(name)._top is not None]
    reducers = [name for name in swarm.live() if swarm.scope(name)._orders and name not in (*leaders, *tops)]
    return {"cell leader": [name for name in leaders if name not in tops], "top leader": tops, "reducer": reducers}[
        kind
    ]


@pytest.mark.parametrize("kind", ["cell leader", "top leader", "reducer"])
@pytest.mark.parametrize("seed", sampled(range(6), one_in=2))
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


class TimedSwarm(CellSwarm):
    """Knows when each member took its last commit."""

    def __init__(self, num_peers, **settings):
        self.advanced_at = {}
        super().__init__(num_peers, **settings)

    def step(self, name, event):
        super().step(name, event)
        if isinstance(event, Advanced):
            self.advanced_at[name] = self.now


@pytest.mark.parametrize("seed", sampled(range(6), one_in=2))
def test_a_cell_that_missed_a_round_hears_of_it_at_once(seed):
    chance = random.Random(seed)
    swarm = TimedSwarm(8, sites=["north", "south"] * 4, num_blocks=8)
    for _ in range(4):
        for name in swarm.names:
            swarm.work(name)
        settle(swarm, chance, num_audits=0)
    version = swarm.machine(swarm.names[0]).version
    # One of four is no quorum, so the southern cell is not in this round.
    late = swarm.names[2 * chance.randrange(4) + 1]
    for name in [*swarm.names[::2], late]:
        swarm.work(name)
    swarm.advanced_at.clear()
    for _ in swarm.run(chance):
        if len(swarm.advanced_at) == len(swarm.names):
            break
    commit = swarm.members[late].lineage[version]
    assert [row.name for row in commit.upper.cells] == ["site north"]
    assert max(swarm.advanced_at.values()) - min(swarm.advanced_at.values()) < HEARTBEAT_SECONDS
    settle(swarm, chance)
    for name in swarm.names:
        swarm.work(name)
    settle(swarm, chance)
    assert_whole(swarm)


def until(swarm, chance, condition):
    for _ in swarm.run(chance):
        if found := condition():
            return found
    raise AssertionError("it did not happen")


def tops(swarm):
    return [top for name in swarm.live() if (top := swarm.scope(name)._top) is not None]


def test_after_a_failure_above_the_next_plan_of_the_same_leader_is_told_from_the_first():
    chance = random.Random(1)
    swarm = CellSwarm(8, sites=["north", "south"] * 4, num_blocks=8)
    for name in swarm.names:
        swarm.work(name)
    first = until(swarm, chance, lambda: [top for top in tops(swarm) if top.plan is not None])[0]
    # Its time is up before any owner of a slice has answered.
    first.plan = replace(first.plan, commit_deadline_seconds=0.0)
    first.closes_at = first.planned_at
    swarm.step(first.me, Tick())
    again = until(swarm, chance, lambda: [top for top in tops(swarm) if top is not first and top.plan is not None])[0]
    assert again.me == first.me
    assert again.plan.attempt > first.plan.attempt
    settle(swarm, chance)
    assert_whole(swarm)


def test_a_top_leader_without_a_single_mean_waits_once_more_as_long():
    chance = random.Random(1)
    swarm = CellSwarm(8, sites=["north", "south"] * 4, num_blocks=8)
    for name in swarm.names:
        swarm.work(name)
    leading = until(swarm, chance, lambda: [top for top in tops(swarm) if top.plan is not None])[0]
    deadline = leading.plan.commit_deadline_seconds
    assert leading.check([], leading.planned_at + deadline) is None
    assert leading.check([], leading.planned_at + 1.99 * deadline) is None
    outcome = leading.check([], leading.planned_at + 2 * deadline)
    assert isinstance(outcome, Abandon)


@pytest.mark.parametrize("when", ["before the order", "after the order"])
def test_a_mean_without_the_word_of_its_cells_leader_is_not_the_one_that_is_waited_for(when):
    """One sent by somebody of another cell would leave the whole cell out of a slice."""
    chance = random.Random(1)
    swarm = CellSwarm(8, sites=["north", "south"] * 4, num_blocks=8)
    for name in swarm.names:
        swarm.work(name)

    def orders():
        return [key for name in swarm.live() for key in swarm.scope(name)._slices.slices]

    def begun():
        return [top for top in tops(swarm) if top.plan is not None and (when == "before the order" or orders())]

    plan = until(swarm, chance, begun)[0].plan
    for number, row in enumerate(plan.slices):
        for cell, of_cell in enumerate(plan.cells):
            liar = next(name for name in swarm.names if name != row.owner and swarm.scope(name).cell != of_cell.name)
            place = (*plan.place, plan.leader, number, row.start, row.end, cell, 1.0, row.start, row.end)
            swarm._arrive(liar, row.owner, ("partial", Partial(*place, bytes(64)), frozenset()))
    settle(swarm, chance, num_audits=0)
    assert_whole(swarm)
    (commit,) = swarm.members[swarm.names[0]].lineage
    assert {result.included for result in commit.results} == {(0, 1)}


def test_a_cells_leader_orders_its_means_of_each_plan_once_and_of_few_plans():
    """An order has some hundred bytes, and the cell's mean of a slice up to a megabyte."""
    chance = random.Random(1)
    swarm = CellSwarm(8, sites=["north", "south"] * 4, num_blocks=8)
    for name in swarm.names:
        swarm.work(name)
    scopes = [swarm.scope(name) for name in swarm.names]
    scope = until(swarm, chance, lambda: [one for one in scopes if one._orders and one._slices.slices])[0]
    order, leader = next(iter(scope._orders.values()))
    machine, num_slices = swarm.machine(scope.me), len(scope._slices.slices)
    sent = []
    for attempt in (order.attempt, *range(order.attempt, order.attempt + 3 * MAX_PARTS)):
        sent += machine.step(Heard(leader, replace(order, attempt=attempt)), swarm.now)
    assert sum(isinstance(effect, SendPartials) for effect in sent) == MAX_PARTS - 1
    assert len(scope._slices.slices) <= MAX_PARTS * num_slices


def test_of_two_parts_of_one_cell_the_one_with_more_work_counts():
    chance = random.Random(1)
    swarm = CellSwarm(8, sites=["north", "south"] * 4, num_blocks=8)
    for name in swarm.names:
        swarm.work(name)
    leading = until(swarm, chance, lambda: tops(swarm))[0]
    name, (sender, offer) = next(iter(leading.offers.items()))
    rival = next(each for each in swarm.names if each not in (sender, leading.me))
    of_few = replace(offer, attempt=5, row=replace(offer.row, tokens=offer.row.tokens - 1))
    leading.on_offer(rival, of_few, swarm.now)
    assert leading.offers[name] == (sender, offer)
    assert rival in leading.waiting
    leading.on_offer(rival, replace(of_few, row=replace(offer.row, tokens=offer.row.tokens + 1)), swarm.now)
    assert leading.offers[name][0] == rival
    assert sender in leading.waiting


def test_a_top_leader_lets_no_more_wait_than_a_roster_has_room_for():
    """In an open run somebody has as many keys as they like, and each of them may offer."""
    chance = random.Random(1)
    swarm = CellSwarm(8, sites=["north", "south"] * 4, num_blocks=8)
    for name in swarm.names:
        swarm.work(name)
    leading = until(swarm, chance, lambda: [top for top in tops(swarm) if top.offers])[0]
    _, offer = next(iter(leading.offers.values()))
    machine, scope = swarm.machine(leading.me), swarm.scope(leading.me)
    scope._seat.rule = replace(scope._seat.rule, site_of=lambda peer_id: "north")
    light, false = (replace(offer, attempt=1, row=replace(offer.row, tokens=tokens)) for tokens in (1, 2**30))
    for number in range(2 * MAX_ROSTER):
        leading.on_offer(named(100 + number), light, swarm.now)
    before = {*leading.late}
    for number in range(MAX_ROSTER):
        machine.step(Heard(named(100 + number), false), swarm.now)
        machine.step(Heard(named(2000 + number), false), swarm.now)
    assert len(before) == len(leading.late) == MAX_ROSTER


def test_when_the_leader_of_a_cell_is_lost_above_another_one_offers_it_again():
    chance = random.Random(1)
    swarm = CellSwarm(8, sites=["north", "south"] * 4, num_blocks=8)
    for name in swarm.names:
        swarm.work(name)
    leading = until(swarm, chance, lambda: [m._top for n in swarm.live() if (m := swarm.scope(n))._top is not None])[0]
    sender, offer = next(iter(leading.offers.values()))
    rival = next(name for name in swarm.names if name not in (sender, leading.me))
    leading.on_offer(rival, replace(offer, attempt=1), swarm.now)
    assert leading.offers[offer.row.name][0] == rival
    sent = []
    leading.send = lambda to, message: sent.append((to, message))
    leading.on_lost(rival)
    assert offer.row.name not in leading.offers
    assert sent == [(sender, Redirect(0, leading.version, leading.me))]


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
