"""Who passes what on: everybody gets it once, nobody sends to all, and a site gets it once from another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.leader_ranking import next_contributors, num_turns
from averaging.rounds.passing_on import FAN_OUT, PassingOn, household, passer_of, reducers_of
from averaging.wire.messages import MAX_ROSTER, Commit, RosterEntry, ShardResult
from tests.kit.network.memory_networks import named

NAMES = sorted(named(number) for number in range(600))


@given(num=st.integers(1, 300), fan_out=st.sampled_from([FAN_OUT, MAX_ROSTER]), data=st.data())
def test_every_member_gets_it_once_and_a_site_once_from_another_one(num, fan_out, data):
    members = NAMES[:num]
    sites = data.draw(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=num, max_size=num))
    sender = data.draw(st.sampled_from(members))
    passers = data.draw(st.sets(st.sampled_from(members)))
    trees = PassingOn(members, passers, fan_out, sites)
    site_of = dict(zip(members, sites, strict=True))
    waiting, got, abroad = [sender], [], 0
    while waiting:
        me = waiting.pop()
        children = trees.children(sender, me)
        assert all(trees.parent(sender, child) == me for child in children)
        abroad += sum(site_of[child] != site_of[me] for child in children)
        waiting += children
        got += children
    assert sorted(got) == sorted(set(members) - {sender})
    assert abroad == len(set(sites)) - 1
    assert trees.parent(sender, sender) is None


@pytest.mark.parametrize("num", [2, 33, MAX_ROSTER])
def test_nobody_sends_to_more_than_the_fan_out(num):
    trees = PassingOn(NAMES[:num], NAMES[:num], FAN_OUT)
    sent = [len(trees.children(sender, me)) for sender in NAMES[:num:7] for me in NAMES[:num]]
    assert max(sent) == min(num - 1, FAN_OUT)
    assert trees.children(NAMES[599], NAMES[0]) == trees.children(NAMES[0], NAMES[599]) == ()


def test_members_that_cannot_be_reached_or_are_slow_pass_nothing_on():
    members, passers = NAMES[:256], set(NAMES[:256:3])
    trees = PassingOn(members, passers, FAN_OUT)
    assert {me for me in members for sender in members[:20] if me != sender and trees.children(sender, me)} <= passers
    between = PassingOn(members, passers, MAX_ROSTER, ["a", "b"] * 128)
    heads = {me for me in members for sender in members[:20] if me != sender and between.children(sender, me)}
    assert heads <= passers
    assert len(heads) > 10


def commit_of(contributors, reducers):
    roster = tuple(RosterEntry(name, 10, 1, 0, 1) for name in contributors)
    shards = tuple(ShardResult(place, place + 1, reducer, b"", ()) for place, reducer in enumerate(reducers))
    return Commit(0, 0, 0, contributors[0], bytes(16), roster, shards)


def test_all_without_work_in_a_round_are_in_the_household_of_one_reducer_whatever_others_see():
    commit, others = commit_of(NAMES[:256], range(0, 256, 3)), NAMES[256:]
    households = {member: household(member, commit, NAMES) for member in NAMES[:256]}
    assert sorted(peer_id for theirs in households.values() for peer_id in theirs) == others
    assert {member for member, theirs in households.items() if theirs} <= set(reducers_of(commit))
    for member, theirs in households.items():
        assert household(member, commit, NAMES[::2]) == tuple(one for one in theirs if one in NAMES[::2])
        assert all(passer_of(peer_id, commit) == member for peer_id in theirs)


def test_all_contribute_in_turns_and_the_first_in_rank_leads():
    assert next_contributors("run", 0, 3, NAMES[:256]) == set(NAMES[:256])
    turns = [next_contributors("run", 0, version, NAMES) for version in range(num_turns(len(NAMES)))]
    assert len(turns) == 3
    assert all(150 < len(turn) <= MAX_ROSTER for turn in turns)
    assert frozenset.union(*turns) == set(NAMES)
    assert sum(map(len, turns)) == len(NAMES)
    # Two views that differ in ten members agree about nearly all.
    assert len(turns[0] & next_contributors("run", 0, 0, NAMES[10:])) >= len(turns[0]) - 10
