"""Single stories of round machines; random orders, faults and late messages are for `tests.simulator`."""

from __future__ import annotations

import random
from dataclasses import replace

from averaging.rounds.leader_ranking import rank_leaders
from averaging.rounds.machine_events import (
    Apply,
    ContributionArrived,
    Heard,
    Lost,
    Ready,
    Repair,
    SendMessage,
    SendShards,
    Tick,
    View,
)
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.wire.messages import (
    DIGEST_BYTES,
    HISTORY_COMMITS,
    Abandon,
    Commit,
    CommitRequest,
    Offer,
    Plan,
    Redirect,
    Reduced,
    RosterEntry,
    ShardPlan,
    ShardResult,
    VersionIs,
    Wait,
)
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of, signed
from tests.kit.rounds.exchange_swarm import Swarm, now, scenario

NAMES = sorted(named(number) for number in range(5))
BLOCK = 8192
DIGEST = bytes(DIGEST_BYTES)
OFFER = Offer(0, 0, 0, DIGEST, 0, 10, 1, 1, 0.0, True)


def machine_of(me, seen, **options):
    machine = RoundMachine(
        me, "run", 0, 2 * BLOCK, BLOCK, Waits.with_bounds(60.0), notary_of(me), anchor_digest=DIGEST, **options
    )
    machine.step(View(tuple(seen)), 0.0)
    return machine


def roster_of(members):
    return tuple(RosterEntry(name, 10, 1, 0, 1) for name in sorted(members))


def plan_of(leader, members, **changes):
    shards = (ShardPlan(0, BLOCK, 0), ShardPlan(BLOCK, 2 * BLOCK, 1))
    plan = Plan(0, 0, 0, DIGEST, roster_of(members), shards, 5.0, 5.0)
    return notary_of(leader).sign_plan(replace(plan, **changes))


def commit_of(members):
    everyone = tuple(range(len(members)))
    return signed(
        Commit(0, 0, 0, members[0], DIGEST, roster_of(members), (ShardResult(0, 2 * BLOCK, 0, b"d" * 16, everyone),))
    )


def sent(effects, kind):
    return [
        effect.message for effect in effects if isinstance(effect, SendMessage) and isinstance(effect.message, kind)
    ]


def test_who_is_in_a_plan_begins_no_round_for_those_who_left_its_leader():
    first, second, third, stray = rank_leaders("run", 0, 0, NAMES[:4])
    machine = machine_of(second, (first, second, third))
    machine.step(Ready(OFFER), 0.0)
    machine.step(Heard(first, plan_of(first, (first, second, third))), 0.0)
    assert machine.leader == first
    assert machine.plan is not None
    machine.step(Heard(stray, replace(OFFER, attempt=1, sequence=99)), 0.0)
    for second_of_waiting in range(1, 300):
        machine.step(Heard(first, Wait(0, 0, 0, 3, 2)), float(second_of_waiting))
        assert machine.next_time > second_of_waiting
    assert machine.leading.waiting == [stray]
    assert machine.leading.plan is None
    # When that leader is gone as well, they are all there is.
    machine.step(Lost(first, "the link is gone"), 300.0)
    assert machine.leader == second
    while machine.leading.plan is None:
        machine.step(Tick(), machine.next_time)
    assert stray in {entry.peer_id for entry in machine.leading.plan.roster}


def test_a_leader_that_sends_its_member_to_others_again_and_again_is_given_up():
    machine = machine_of(NAMES[0], NAMES)
    machine.step(Ready(OFFER), 0.0)
    first, second = [name for name in machine._ranked() if name != machine.me][:2]
    machine._join_round(0, 0.0, leader=first)
    asked = []
    for _ in range(20):
        liar = machine.leader
        if liar == machine.me:
            break
        other = second if liar == first else first
        asked += sent(machine.step(Heard(liar, Redirect(0, 0, other)), 0.0), Offer)
    # Each is given up once, and no attempt is beyond what others take.
    assert machine.leader == machine.me
    assert max(offer.attempt for offer in asked) <= len(NAMES)


def test_an_attempt_has_one_plan_whatever_its_leader_sends():
    """Each plan more would cost the whole contribution once more, and memory for all who are waited for."""
    leader, me, other = rank_leaders("run", 0, 0, NAMES[:3])
    machine = machine_of(me, (leader, me, other))
    machine.step(Ready(OFFER), 0.0)
    effects = machine.step(Heard(leader, plan_of(leader, (leader, me, other))), 0.0)
    assert any(isinstance(effect, SendShards) for effect in effects)
    plan, num_reductions = machine.plan, len(machine._reducing.reductions)
    for attempt in range(10):
        more = plan_of(leader, (leader, me, other), attempt=attempt, commit_deadline_seconds=99.0 + attempt)
        assert not any(isinstance(effect, SendShards) for effect in machine.step(Heard(leader, more), 0.0))
    assert machine.plan == plan
    assert len(machine._reducing.reductions) == num_reductions


def test_a_plan_that_its_leader_did_not_sign_is_not_followed_from_others():
    leader, me, other = rank_leaders("run", 0, 0, NAMES[:3])
    machine = machine_of(me, (leader, me, other))
    machine.step(Ready(OFFER), 0.0)
    plan = plan_of(leader, (leader, me, other))
    for forged in (replace(plan, signature=b""), notary_of(other).sign_plan(plan)):
        machine.step(Heard(other, forged), 0.0)
        assert machine.plan is None
    machine.step(Heard(other, plan), 0.0)
    assert machine.plan is not None


def test_of_one_sender_the_contributions_to_one_attempt_are_remembered():
    """A shard of a kilobyte for each of ten thousand attempts is no reason to keep ten thousand."""
    machine = machine_of(NAMES[0], NAMES[:3])
    for attempt in range(1000):
        for shard in range(3):
            machine.step(ContributionArrived(NAMES[1], attempt, NAMES[2], shard), 0.0)
    machine.step(ContributionArrived(NAMES[2], 5, NAMES[2], 0), 0.0)
    assert machine._reducing.arrived == {
        **{(999, NAMES[2], shard): {NAMES[1]} for shard in range(3)},
        (5, NAMES[2], 0): {NAMES[2]},
    }


def test_a_stranger_cannot_fill_the_memory():
    machine = machine_of(NAMES[0], NAMES[:2])
    for number in range(2000):
        machine.step(Heard(f"{NAMES[1]}{number}", VersionIs(0, 7, bytes(16), 99)), 0.0)
    assert len(machine.later._version_of) <= 256
    assert len(machine.later._asked) <= 256


def test_who_holds_the_lighter_commit_repairs_and_who_holds_the_heavier_passes_it_on():
    light, heavy = commit_of(NAMES[:2]), commit_of(NAMES[2:])
    for held, heard, expected in ((light, heavy, [Repair]), (heavy, light, [SendMessage]), (heavy, heavy, [])):
        machine = machine_of(held.leader, [entry.peer_id for entry in held.roster], version=1)
        machine.log.newest[0] = held
        effects = machine.step(Heard(heard.roster[1].peer_id, heard), 0.0)
        assert [type(effect) for effect in effects] == expected
        assert sent(effects, Commit) == [heavy] * (expected == [SendMessage])


def test_recent_commits_are_given_to_who_asks_or_plans_and_older_ones_replaced_by_the_version():
    """The results of older ones are gone; a commit alone would only cost the asker time."""

    async def play():
        swarm = Swarm(2, sizes=(300,))
        await swarm.train(HISTORY_COMMITS + 4)
        await swarm.settle()
        peer, asker = swarm.live()
        machine = peer.fragments[0].machine
        assert machine.version > HISTORY_COMMITS
        for version in range(machine.version):
            (effect,) = machine.step(Heard(asker.name, CommitRequest(0, version)), now())
            is_recent = version >= machine.version - HISTORY_COMMITS
            assert type(effect.message) is (Commit if is_recent else VersionIs)
            assert effect.message.version == (version if is_recent else machine.version)
        # So is a leader answered that plans a round which was committed elsewhere.
        newest = machine.log.newest[machine.version - 1]
        for attempt in (0, 3):
            plan = Plan(0, newest.version, attempt, newest.anchor_digest, (), (), 1.0, 2.0)
            assert sent(machine.step(Heard(asker.name, plan), now()), Commit) == [newest]
        return swarm

    scenario(play)


def test_everything_that_was_ever_said_may_be_said_again_an_hour_later():
    """No anchor moves, no work is sent, whatever the order."""

    async def play():
        swarm, said = Swarm(4, sizes=(300,)), []

        def noting(name, send):
            def note(to, message, payload=()):
                said.append((name, to, message))
                return send(to, message, payload)

            return note

        for peer in swarm.live():
            peer.links.send = noting(peer.name, peer.links.send)
        await swarm.train(5)
        await swarm.settle()
        machines = {peer.name: peer.fragments[0].machine for peer in swarm.live()}
        before = {name: (machine.version, machine.anchor_digest) for name, machine in machines.items()}
        assert min(version for version, _ in before.values()) >= 3
        of_rounds = (Offer, Wait, Redirect, Plan, Reduced, Abandon, Commit, CommitRequest, VersionIs)
        heard = [entry for entry in said if isinstance(entry[2], of_rounds)]
        assert {Offer, Plan, Commit} <= {type(message) for _, _, message in heard}
        for sender, to, message in random.Random(1).sample(heard, len(heard)):
            effects = machines[to].step(Heard(sender, message), now() + 3600.0)
            assert not any(isinstance(effect, Apply | SendShards) for effect in effects)
        assert {name: (machine.version, machine.anchor_digest) for name, machine in machines.items()} == before
        return swarm

    scenario(play)
