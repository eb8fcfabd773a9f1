"""Single stories of round machines; random orders, faults and repeated messages are for `tests.simulator`."""

from __future__ import annotations

import dataclasses
import random

from averaging.rounds.machine_events import (
    Apply,
    ContributionArrived,
    Heard,
    Lost,
    Repair,
    SendMessage,
    SendShards,
    Tick,
)
from averaging.wire.messages import (
    HISTORY_COMMITS,
    Commit,
    CommitRequest,
    Offer,
    Plan,
    Redirect,
    VersionIs,
    Wait,
)
from tests.kit.rounds.round_swarm import RoundSwarm, digest_of


def test_a_late_offer_waits_for_the_next_round_and_hears_its_leader_meanwhile():
    swarm = RoundSwarm(3)
    leader = next(name for name in swarm.names if swarm.members[name].machine._ranked()[0] == name)
    early, late = (name for name in swarm.names if name != leader)
    swarm.set_views(lambda me: [leader, early])
    swarm.work(leader)
    swarm.work(early)
    swarm.drain(until=lambda: swarm.members[leader].machine.leading.plan is not None)
    held = swarm.queues.pop((leader, early))
    swarm.work(late)
    swarm.drain()
    machine = swarm.members[late].machine
    heard_at = machine._member.heard_at
    assert machine.leading is None
    for _ in range(3):
        swarm.now += 1.0
        swarm.tick()
        swarm.drain()
    assert machine._member.leader == leader
    assert machine._member.heard_at > heard_at
    swarm.queues[leader, early] = held
    swarm.set_views()
    swarm.run(random.Random(1))
    swarm.assert_agreement()
    assert not swarm.members[late].has_work


def test_who_is_in_a_plan_begins_no_round_for_those_who_left_its_leader():
    swarm = RoundSwarm(4)
    first, second, third, stray = swarm.members[swarm.names[0]].machine._ranked()
    swarm.set_views(lambda me: [first, second, third])
    for name in (first, second, third):
        swarm.work(name)
    machine = swarm.members[second].machine
    swarm.drain(until=lambda: machine.plan is not None)
    assert machine.leader == first
    offer = dataclasses.replace(swarm.members[third].machine._offer, attempt=1, sequence=99)
    swarm.step(second, Heard(stray, offer))
    for _ in range(300):
        swarm.now += 1.0
        swarm.step(second, Heard(first, Wait(0, 0, 0, 3, 2)))
        assert machine.next_time > swarm.now
    assert machine.leading.waiting == [stray]
    assert machine.leading.plan is None
    # When that leader is gone as well, they are all there is.
    swarm.step(second, Lost(first, "the link is gone"))
    assert machine.leader == second
    while machine.leading.plan is None:
        swarm.now = machine.next_time
        swarm.step(second, Tick())
    assert stray in {entry.peer_id for entry in machine.leading.plan.roster}


def test_a_plan_of_a_round_that_was_committed_elsewhere_is_answered_with_its_commit():
    swarm = RoundSwarm(3)
    leader, *others = sorted(swarm.names, key=lambda name: swarm.members[name].machine._ranked().index(name))
    swarm.set_views(lambda me: others if me in others else [leader])
    for name in others:
        swarm.work(name)
    swarm.drain()
    swarm.queues.clear()  # the commit has not come to the first one
    for name in others:
        assert swarm.members[name].machine.version == 1
    plan = Plan(0, 0, 0, digest_of("start"), (), (), 1.0, 2.0)
    for heard in (plan, dataclasses.replace(plan, attempt=3)):
        effects = swarm.members[others[0]].machine.step(Heard(leader, heard), swarm.now)
        assert [type(effect.message) for effect in effects] == [Commit]
        assert effects[0].to == leader
        assert effects[0].message == swarm.members[others[1]].lineage[0]


def sent(effects, kind):
    return [
        effect.message for effect in effects if isinstance(effect, SendMessage) and isinstance(effect.message, kind)
    ]


def test_a_leader_that_sends_its_member_to_others_again_and_again_is_given_up():
    swarm = RoundSwarm(5)
    swarm.work(swarm.names[0])
    machine = swarm.members[swarm.names[0]].machine
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
    assert max(offer.attempt for offer in asked) <= len(swarm.names)


def test_an_attempt_has_one_plan_whatever_its_leader_sends():
    """Each plan more would cost the whole contribution once more, and memory for all who are waited for."""
    swarm = RoundSwarm(3, num_blocks=2)
    leader = swarm.members[swarm.names[0]].machine._ranked()[0]
    name = next(name for name in swarm.names if name != leader)
    for worker in swarm.names:
        swarm.work(worker)
    machine = swarm.members[name].machine
    swarm.drain(until=lambda: machine.plan is not None)
    plan, num_reductions = machine.plan, len(machine._reducing.reductions)
    for attempt in range(10):
        other = dataclasses.replace(plan, attempt=attempt, commit_deadline_seconds=99.0 + attempt)
        effects = machine.step(Heard(leader, other), swarm.now)
        assert not any(isinstance(effect, SendShards) for effect in effects)
    assert machine.plan == plan
    assert len(machine._reducing.reductions) == num_reductions


def test_of_one_sender_the_contributions_to_one_attempt_are_remembered():
    """A shard of a kilobyte for each of ten thousand attempts is no reason to keep ten thousand."""
    swarm = RoundSwarm(3)
    machine = swarm.members[swarm.names[0]].machine
    for attempt in range(1000):
        for shard in range(3):
            machine.step(ContributionArrived(swarm.names[1], attempt, swarm.names[2], shard), swarm.now)
    machine.step(ContributionArrived(swarm.names[2], 5, swarm.names[2], 0), swarm.now)
    assert machine._reducing.arrived == {
        **{(999, swarm.names[2], shard): {swarm.names[1]} for shard in range(3)},
        (5, swarm.names[2], 0): {swarm.names[2]},
    }


def test_a_stranger_cannot_fill_the_memory():
    swarm = RoundSwarm(2)
    me, other = swarm.names
    machine = swarm.members[me].machine
    for number in range(2000):
        fake = f"{other}{number}"
        swarm.members[fake] = swarm.members[other]
        swarm.step(me, Heard(fake, VersionIs(0, 7, bytes(16), 99)))
    assert len(machine.later._version_of) <= 256
    assert len(machine.later._asked) <= 256


def test_who_holds_the_lighter_commit_repairs_and_who_holds_the_heavier_passes_it_on():
    swarm = RoundSwarm(5)
    light, heavy = swarm.names[:2], swarm.names[2:]
    swarm.set_views(lambda me: light if me in light else heavy)
    for name in swarm.names:
        swarm.work(name)
    swarm.run(random.Random(1))
    (lighter,), (heavier,) = (swarm.members[group[0]].lineage for group in (light, heavy))
    for name, message in ((light[0], heavier), (heavy[0], lighter), (heavy[0], heavier)):
        sender = heavy[1] if name in light else light[1]
        effects = swarm.members[name].machine.step(Heard(sender, message), swarm.now)
        expected = {light[0]: [Repair], heavy[0]: [SendMessage] if message == lighter else []}[name]
        assert [type(effect) for effect in effects] == expected
        if expected == [SendMessage]:
            assert effects[0].message == heavier


def test_recent_commits_are_given_to_who_asks_and_older_ones_replaced_by_the_version():
    """The results of older ones are gone; a commit alone would only cost the asker time."""
    swarm = RoundSwarm(2)
    for round_ in range(HISTORY_COMMITS + 3):
        for name in swarm.names:
            swarm.work(name)
        swarm.run(random.Random(round_))
    machine = swarm.members[swarm.names[0]].machine
    for version in range(machine.version):
        (effect,) = machine.step(Heard(swarm.names[1], CommitRequest(0, version)), swarm.now)
        is_recent = version >= machine.version - HISTORY_COMMITS
        assert type(effect.message) is (Commit if is_recent else VersionIs)
        assert effect.message.version == (version if is_recent else machine.version)


def test_everything_that_was_ever_said_may_be_said_again_an_hour_later():
    """No anchor moves, no work is sent, whatever the order."""
    swarm, chance = RoundSwarm(4, num_blocks=2), random.Random(1)
    for _ in range(5):
        swarm.work(*swarm.names)
        swarm.run(chance)
    said = [entry for entry in swarm.said if not isinstance(entry[2], tuple)]
    assert {Offer, Plan, Commit} <= {type(message) for _, _, message in said}
    before = [(m.machine.version, m.machine.anchor_digest, m.lineage) for m in swarm.members.values()]
    assert swarm.members[swarm.names[0]].machine.version >= 3
    swarm.now += 3600.0
    for sender, to, message in chance.sample(said, len(said)):
        effects = swarm.members[to].machine.step(Heard(sender, message), swarm.now)
        assert not any(isinstance(effect, Apply | SendShards) for effect in effects)
    assert [(m.machine.version, m.machine.anchor_digest, m.lineage) for m in swarm.members.values()] == before
