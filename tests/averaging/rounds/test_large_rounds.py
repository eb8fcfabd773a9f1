"""Rounds of more members than a leader sends to, and swarms of more trainers than contribute to a round."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from averaging.rounds import leader, leader_ranking, round_machine
from averaging.rounds.leader_ranking import next_contributors
from averaging.rounds.machine_events import Advanced, Apply, Heard, Ready, SendMessage, View
from averaging.rounds.passing_on import DIRECT, FAN_OUT, household, next_from, passer_of
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.wire import messages
from averaging.wire.messages import DIGEST_BYTES, MAX_ROSTER, Commit, Offer, Plan, RosterEntry, ShardResult
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of
from tests.kit.rounds.round_swarm import RoundSwarm

NUM_PEERS = DIRECT + 8
DIGEST = bytes(DIGEST_BYTES)


class CountingSwarm(RoundSwarm):
    """Counts who sent how many plans and commits; those of one kind never leave `silent` members."""

    def __init__(self, num_peers: int, silent: frozenset[str] = frozenset(), kind: type = Plan) -> None:
        self.sent: Counter[tuple[str, type]] = Counter()
        self.silent, self.kind = silent, kind
        super().__init__(num_peers)

    def _post(self, sender, to, message):
        if isinstance(message, Plan | Commit):
            self.sent[sender, type(message)] += 1
            if sender in self.silent and isinstance(message, self.kind):
                return
        super()._post(sender, to, message)


def committed_once(swarm, seed):
    swarm.work(*swarm.names)
    swarm.run(random.Random(seed))
    swarm.assert_agreement()
    return swarm.members[swarm.names[0]].lineage


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_sends_its_plan_and_commit_to_few_and_everybody_has_them(seed):
    swarm = CountingSwarm(NUM_PEERS)
    first = committed_once(swarm, seed)[0]
    assert len(first.roster) > DIRECT
    for kind in (Plan, Commit):
        assert swarm.sent[first.leader, kind] <= FAN_OUT * (1 + (kind is Commit))
    assert max(swarm.sent.values()) <= 4 * FAN_OUT


def test_who_gets_no_plan_from_the_member_that_passes_it_on_asks_the_leader():
    probe = committed_once(CountingSwarm(NUM_PEERS), 1)[0]
    swarm = CountingSwarm(NUM_PEERS, frozenset(named(n) for n in range(NUM_PEERS)) - {probe.leader})
    first = committed_once(swarm, 1)[0]
    assert first.leader == probe.leader
    assert len(first.included) == NUM_PEERS
    assert swarm.sent[first.leader, Plan] > FAN_OUT


def test_who_gets_no_commit_from_the_members_that_pass_it_on_hears_it_from_the_next_leader():
    probe = committed_once(CountingSwarm(NUM_PEERS), 1)[0]
    # Two members of the first eight keep it, and all that they should have passed it on to.
    passers = frozenset(next_from(probe.leader, probe, probe.leader)[:2])
    swarm = CountingSwarm(NUM_PEERS, passers, Commit)
    first = committed_once(swarm, 1)[0]
    assert first.leader == probe.leader
    assert len(first.included) == NUM_PEERS
    assert swarm.now < 30.0


def test_a_plan_that_its_leader_did_not_sign_is_not_followed_from_others():
    swarm = RoundSwarm(3)
    machine = swarm.members[swarm.names[0]].machine
    machine.step(Ready(Offer(0, 0, 0, machine.anchor_digest, 0, 10, 1, 1, 0.0, True)), 0.0)
    leader = machine.leader
    other = next(name for name in swarm.names if name not in (machine.me, leader))
    roster = tuple(RosterEntry(name, 10, 1, 0, 1) for name in sorted(swarm.names))
    plan = Plan(0, 0, 0, machine.anchor_digest, roster, (), 5.0, 5.0)
    for forged in (plan, notary_of(other).sign_plan(plan)):
        machine.step(Heard(other, forged), 0.0)
        assert machine.plan is None
    machine.step(Heard(other, notary_of(leader).sign_plan(plan)), 0.0)
    assert machine.plan is not None


CROWD = tuple(sorted(named(number) for number in range(MAX_ROSTER + 60)))
TURN = next_contributors("run", 0, 0, CROWD)


def one_of_the_crowd(name):
    machine = RoundMachine(name, "run", 0, 8192, 8192, Waits.with_bounds(60.0), notary_of(name))
    machine.anchor_digest = DIGEST
    machine.step(View(CROWD), 0.0)
    return machine


def offers_of(machine, event):
    effects = machine.step(event, 0.0)
    return [one.to for one in effects if isinstance(one, SendMessage) and isinstance(one.message, Offer)]


READY = Ready(Offer(0, 0, 0, DIGEST, 0, 10, 1, 1, 0.0, True))


def test_of_a_crowd_those_whose_turn_it_is_offer_to_one_of_them():
    outside = next(name for name in CROWD if name not in TURN)
    inside = [name for name in CROWD if name in TURN][:3]
    for name in inside:
        machine = one_of_the_crowd(name)
        assert offers_of(machine, READY) == [machine.leader] * (machine.leader != name)
        assert machine.leader in TURN
    waiting = one_of_the_crowd(outside)
    assert offers_of(waiting, READY) == []
    assert waiting.leader is None
    # Its turn comes with the next version, or when enough of the others are gone.
    assert offers_of(waiting, View((*sorted(TURN)[:200], outside))) == [waiting.leader]


def test_work_of_a_turn_that_passed_goes_with_a_later_version():
    outside = next(name for name in CROWD if name not in TURN)
    machine = one_of_the_crowd(outside)
    for version in range(1, 200):
        machine.step(Advanced(version, DIGEST, 10 * version, ()), 0.0)
        if offers_of(machine, READY):
            break
    assert outside in next_contributors("run", 0, version, CROWD)


def test_a_commit_reaches_those_without_work_in_it_from_one_contributor_each():
    roster = tuple(RosterEntry(name, 10, 1, 0, 1) for name in sorted(TURN))
    contributors = [entry.peer_id for entry in roster]
    leader = contributors[0]
    everyone = tuple(range(len(roster)))
    shards = tuple(ShardResult(32 * n, 32 * n + 32, n, DIGEST, everyone, bytes(64)) for n in everyone)
    commit = notary_of(leader).sign_commit(Commit(0, 0, 0, leader, DIGEST, roster, shards))
    got = Counter()
    for name in contributors:
        effects = one_of_the_crowd(name).step(Heard(leader, commit), 0.0)
        assert any(isinstance(one, Apply) for one in effects)
        got.update(one.to for one in effects if isinstance(one, SendMessage) and isinstance(one.message, Commit))
    assert got == Counter(set(CROWD) - {leader})
    outside = next(name for name in CROWD if name not in TURN)
    machine, passer = one_of_the_crowd(outside), passer_of(outside, commit)
    machine.step(Heard(passer, commit), 0.0)
    assert machine.comes_unasked
    others = [name for name in household(passer, commit, CROWD) if name != outside]
    assert list(machine.next_to(0, passer)) == others
    assert machine.next_to(0, passer) == ()  # once
    asked = one_of_the_crowd(outside)
    asked.step(Heard(leader, commit), 0.0)
    assert asked.comes_unasked == (leader == passer)


@pytest.mark.parametrize("seed", range(2))
def test_a_swarm_of_four_turns_commits_the_work_of_all(monkeypatch, seed):
    """With 6 contributors for the 256 of a round, and 2 for the 64 that a leader sends to."""
    for module in (round_machine, leader_ranking, messages):
        monkeypatch.setattr(module, "MAX_ROSTER", 6)
    monkeypatch.setattr(leader_ranking, "USUAL_TURN", 5)
    for module in (round_machine, leader):
        monkeypatch.setattr(module, "DIRECT", 2)
    swarm, chance = RoundSwarm(18), random.Random(seed)
    for _ in range(12):
        swarm.work(*swarm.names)
        swarm.run(chance)
    swarm.assert_agreement()
    lineage = swarm.members[swarm.names[0]].lineage
    assert max(len(commit.roster) for commit in lineage) == 6
    assert {commit.roster[index].peer_id for commit in lineage for index in commit.included} == set(swarm.names)
