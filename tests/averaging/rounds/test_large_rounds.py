"""Rounds of more members than a leader sends to, and swarms of more trainers than contribute to a round."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from averaging.rounds import leader, leader_ranking, passing_on, round_machine
from averaging.rounds.leader_ranking import next_contributors, rank_leaders
from averaging.rounds.machine_events import Advanced, Apply, Heard, Ready, SendMessage, View
from averaging.rounds.passing_on import household, passer_of
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.wire import messages
from averaging.wire.messages import DIGEST_BYTES, MAX_ROSTER, Commit, Offer, Plan, RosterEntry, ShardResult
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of
from tests.kit.rounds.exchange_swarm import Swarm, scenario

DIGEST = bytes(DIGEST_BYTES)
NUM_PEERS, FAN_OUT, VERSION = 12, 3, 2


@pytest.fixture
def few(monkeypatch):
    """With 3 members for the 64 that a leader sends to itself, and 3 for the 8 that each passes on to."""
    for module in (round_machine, leader):
        monkeypatch.setattr(module, "DIRECT", 3)
    monkeypatch.setattr(passing_on, "FAN_OUT", FAN_OUT)


def one_round(silent=frozenset(), kind=Plan):
    """(the commit of a round of most, {(sender, Plan or Commit): receivers} of it).

    Messages of `kind` about that round never leave `silent`.
    """
    told, commits = defaultdict(list), []

    def counting(name, send):
        def count(to, message, payload=()):
            if isinstance(message, Plan | Commit) and message.version == VERSION:
                told[name, type(message)].append(to)
                if name in silent and isinstance(message, kind):
                    return 0
            return send(to, message, payload)

        return count

    async def play():
        swarm = Swarm(NUM_PEERS, sizes=(300,))
        for peer in swarm.live():
            peer.links.send = counting(peer.name, peer.links.send)
        await swarm.train(4)
        await swarm.settle()
        swarm.assert_agreement()
        commits.extend(one.commit for one in swarm.live()[0].closed() if one.commit.version == VERSION)
        return swarm

    scenario(play)
    return commits[0], told


def test_a_leader_sends_its_plan_to_few():
    names = sorted(named(number) for number in range(passing_on.DIRECT + 8))
    machine = machine_of(rank_leaders("run", 0, 0, names)[0], names)
    effects = machine.step(READY, 0.0)
    for name in names:
        if name != machine.me:
            effects += machine.step(Heard(name, READY.offer), 0.0)
    receivers = [one.to for one in effects if isinstance(one, SendMessage) and isinstance(one.message, Plan)]
    assert 0 < len(set(receivers) - {machine.me}) <= passing_on.FAN_OUT


@pytest.mark.usefixtures("few")
def test_who_gets_no_plan_from_the_member_that_passes_it_on_asks_the_leader():
    expected, _ = one_round()
    commit, told = one_round(frozenset(named(n) for n in range(NUM_PEERS)) - {expected.leader})
    assert commit.leader == expected.leader
    assert len(commit.included) == len(commit.roster) > 2 * FAN_OUT
    assert len(set(told[commit.leader, Plan])) > FAN_OUT


@pytest.mark.usefixtures("few")
def test_who_gets_no_commit_from_the_members_that_pass_it_on_hears_it_from_the_next_leader():
    expected, _ = one_round()
    # Two members of the first three keep it, and all that they should have passed it on to.
    commit, _ = one_round(frozenset(passing_on.next_from(expected.leader, expected, expected.leader)[:2]), Commit)
    assert commit.leader == expected.leader
    assert len(commit.included) == len(commit.roster) > 2 * FAN_OUT


CROWD = tuple(sorted(named(number) for number in range(MAX_ROSTER + 60)))
TURN = next_contributors("run", 0, 0, CROWD)


def machine_of(name, seen=CROWD):
    machine = RoundMachine(name, "run", 0, 8192, 8192, Waits.with_bounds(60.0), notary_of(name), anchor_digest=DIGEST)
    machine.step(View(tuple(seen)), 0.0)
    return machine


def offers_of(machine, event):
    effects = machine.step(event, 0.0)
    return [one.to for one in effects if isinstance(one, SendMessage) and isinstance(one.message, Offer)]


READY = Ready(Offer(0, 0, 0, DIGEST, 0, 10, 1, 1, 0.0, True))


def test_of_a_crowd_those_whose_turn_it_is_offer_to_one_of_them():
    outside = next(name for name in CROWD if name not in TURN)
    inside = [name for name in CROWD if name in TURN][:3]
    for name in inside:
        machine = machine_of(name)
        assert offers_of(machine, READY) == [machine.leader] * (machine.leader != name)
        assert machine.leader in TURN
    waiting = machine_of(outside)
    assert offers_of(waiting, READY) == []
    assert waiting.leader is None
    # Its turn comes with the next version, or when enough of the others are gone.
    assert offers_of(waiting, View((*sorted(TURN)[:200], outside))) == [waiting.leader]


def test_work_of_a_turn_that_passed_goes_with_a_later_version():
    outside = next(name for name in CROWD if name not in TURN)
    machine = machine_of(outside)
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
        effects = machine_of(name).step(Heard(leader, commit), 0.0)
        assert any(isinstance(one, Apply) for one in effects)
        got.update(one.to for one in effects if isinstance(one, SendMessage) and isinstance(one.message, Commit))
    assert got == Counter(set(CROWD) - {leader})
    outside = next(name for name in CROWD if name not in TURN)
    machine, passer = machine_of(outside), passer_of(outside, commit)
    machine.step(Heard(passer, commit), 0.0)
    assert machine.comes_unasked
    others = [name for name in household(passer, commit, CROWD) if name != outside]
    assert list(machine.next_to(0, passer)) == others
    assert machine.next_to(0, passer) == ()  # once
    asked = machine_of(outside)
    asked.step(Heard(leader, commit), 0.0)
    assert asked.comes_unasked == (leader == passer)


def test_a_swarm_of_four_turns_commits_the_work_of_all(monkeypatch):
    """With 6 contributors for the 256 of a round, and 2 for the 64 that a leader sends to."""
    for module in (round_machine, leader_ranking, messages):
        monkeypatch.setattr(module, "MAX_ROSTER", 6)
    monkeypatch.setattr(leader_ranking, "USUAL_TURN", 5)
    for module in (round_machine, leader):
        monkeypatch.setattr(module, "DIRECT", 2)

    async def play():
        swarm = Swarm(18, sizes=(300,))
        await swarm.train(12)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        commits = [closed.commit for peer in swarm.live() for closed in peer.closed()]
        assert max(len(commit.roster) for commit in commits) == 6
        assert {commit.roster[index].peer_id for commit in commits for index in commit.included} == set(swarm.peers)
        return swarm

    scenario(play)
