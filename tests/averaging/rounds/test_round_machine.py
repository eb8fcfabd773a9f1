"""The round machine under every order of events: exhaustively for three peers, by seeds for more."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import deque

import pytest

from averaging.rounds.machine_events import ContributionArrived, Heard, Lost, Repair, SendMessage, SendShards, Tick
from averaging.rounds.waits import Waits
from averaging.signing.round_signatures import Notary
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
from tests.kit.rounds.round_swarm import RoundSwarm, digest_of, settle
from tests.kit.tiers import sampled, some


def assert_whole(swarm):
    swarm.assert_agreement()
    for name in swarm.live():
        assert not swarm.lost_units(name)


# ----------------------------------------------------------------------------------- every order, for three peers


def frozen(value):
    """A hashable picture of everything that decides what a swarm can still do; learned times and keys are left out."""
    if isinstance(value, Waits | Notary | type) or (callable(value) and not dataclasses.is_dataclass(value)):
        return None
    if dataclasses.is_dataclass(value) and not value.__dataclass_params__.frozen:
        return tuple(frozen(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, dict):
        return tuple(sorted(((repr(key), frozen(item)) for key, item in value.items()), key=lambda pair: pair[0]))
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, list | tuple | deque):
        return tuple(frozen(item) for item in value)
    return value


def three_peers(num_blocks):
    swarm = RoundSwarm(3, num_blocks=num_blocks)
    swarm.tasks = [("work", name, None) for name in swarm.names]
    return swarm


def replayed(num_blocks, path):
    swarm = three_peers(num_blocks)
    for number in path:
        swarm.take(swarm.choices()[number])
    return swarm


@functools.cache
def reachable_paths(num_blocks):
    """One path of choices to each state that three peers can reach in a round while no time passes."""
    seen, stack, found = set(), [()], []
    while stack:
        path = stack.pop()
        swarm = replayed(num_blocks, path)
        picture = hash((frozen(swarm.members), frozen(swarm.queues), frozenset(map(repr, swarm.tasks))))
        if picture in seen:
            continue
        seen.add(picture)
        found.append(path)
        stack += [(*path, number) for number in range(len(swarm.choices()))]
    return found


@pytest.mark.parametrize("num_blocks", sampled([1, 2], one_in=2))
def test_every_order_of_a_round_of_three_ends_in_one_commit_of_all(num_blocks):
    paths = reachable_paths(num_blocks)
    assert len(paths) > 300
    longest = max(len(path) for path in paths)
    ends = [swarm for path in paths if len(path) > longest - 3 and not (swarm := replayed(num_blocks, path)).choices()]
    assert ends
    for swarm in ends:
        assert {swarm.members[name].machine.version for name in swarm.names} == {1}
        assert_whole(swarm)
        (commit,) = swarm.members[swarm.names[0]].lineage
        assert len(swarm.committed_units(swarm.names[0])) == 3 * num_blocks
        assert commit.tokens == 3 * swarm.tokens


@pytest.mark.parametrize("noticed", sampled([True, False], one_in=2))
def test_a_crash_at_any_point_of_a_round_stops_nobody_else(noticed):
    """Whoever it is: leader, reducer, member, all three at once; the others go on and lose nothing."""
    for path in some(reachable_paths(1), one_in=3):
        for victim in range(3):
            swarm = replayed(1, path)
            swarm.crash(swarm.names[victim], noticed=noticed)
            swarm.set_views()
            settle(swarm, random.Random(victim), num_audits=1)
            assert_whole(swarm)
            assert all(swarm.members[name].machine.version >= 1 for name in swarm.live())
            for name in swarm.live():
                assert not swarm.members[name].waiting
                assert swarm.members[name].pending is None


def test_a_link_that_breaks_at_any_point_of_a_round_stops_nobody():
    for path in some(reachable_paths(1), one_in=3):
        for sender, to in sorted({key[:2] for key in replayed(1, path).queues}):
            broken = replayed(1, path)
            broken.lose(sender, to)
            settle(broken, random.Random(0))
            assert_whole(broken)
            assert not any(member.waiting or member.pending for member in broken.members.values())


def test_a_message_that_comes_twice_at_any_point_changes_nothing():
    for path in some(reachable_paths(1), one_in=3):
        for key in sorted(replayed(1, path).queues):
            doubled = replayed(1, path)
            doubled.queues[key].append(doubled.queues[key][0])
            settle(doubled, random.Random(0), num_audits=0)
            assert_whole(doubled)
            assert {member.machine.version for member in doubled.members.values()} == {1}


# ----------------------------------------------------------------------------------------------- chosen by seeds


# ------------------------------------------------------------------------------------------------ single stories


def drain(swarm, *, until=None):
    """Deliver everything in order, without letting time pass."""
    while swarm.choices() and not (until is not None and until()):
        swarm.take(swarm.choices()[0])


def test_a_late_offer_waits_for_the_next_round_and_hears_its_leader_meanwhile():
    swarm = RoundSwarm(3)
    leader = next(name for name in swarm.names if swarm.members[name].machine._ranked()[0] == name)
    early, late = (name for name in swarm.names if name != leader)
    swarm.set_views(lambda me: [leader, early])
    swarm.work(leader)
    swarm.work(early)
    drain(swarm, until=lambda: swarm.members[leader].machine.leading.plan is not None)
    held = swarm.queues.pop((leader, early, "control"))
    swarm.work(late)
    drain(swarm)
    machine = swarm.members[late].machine
    heard_at = machine._member.heard_at
    assert machine.leading is None
    for _ in range(3):
        swarm.now += 1.0
        swarm.tick()
        drain(swarm)
    assert machine._member.leader == leader
    assert machine._member.heard_at > heard_at
    swarm.queues[(leader, early, "control")] = held
    swarm.set_views()
    settle(swarm, random.Random(1))
    assert_whole(swarm)
    assert not swarm.members[late].waiting


def test_who_is_in_a_plan_begins_no_round_for_those_who_left_its_leader():
    swarm = RoundSwarm(4)
    first, second, third, stray = swarm.members[swarm.names[0]].machine._ranked()
    swarm.set_views(lambda me: [first, second, third])
    for name in (first, second, third):
        swarm.work(name)
    machine = swarm.members[second].machine
    drain(swarm, until=lambda: machine.plan is not None)
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
    drain(swarm)
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
    drain(swarm, until=lambda: machine.plan is not None)
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
        swarm._arrive(fake, me, VersionIs(0, 7, bytes(16), 99))
    assert len(machine.later._version_of) <= 256
    assert len(machine.later._asked) <= 256


def test_who_holds_the_lighter_commit_repairs_and_who_holds_the_heavier_passes_it_on():
    swarm = RoundSwarm(5)
    light, heavy = swarm.names[:2], swarm.names[2:]
    swarm.split(light, heavy)
    swarm.set_views(lambda me: light if me in light else heavy)
    for name in swarm.names:
        swarm.work(name)
    settle(swarm, random.Random(1), num_audits=0)
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
        settle(swarm, random.Random(round_), num_audits=0)
    machine = swarm.members[swarm.names[0]].machine
    for version in range(machine.version):
        (effect,) = machine.step(Heard(swarm.names[1], CommitRequest(0, version)), swarm.now)
        is_recent = version >= machine.version - HISTORY_COMMITS
        assert type(effect.message) is (Commit if is_recent else VersionIs)
        assert effect.message.version == (version if is_recent else machine.version)
