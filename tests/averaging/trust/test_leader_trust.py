"""Whose commits are followed among strangers, and leaders that leave members out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from averaging.codec.codec import make_codec
from averaging.outer.fragment_schedule import fastest_believed
from averaging.outer.outer_settings import OuterRule
from averaging.rounds.attempt import RoundAttempt
from averaging.rounds.leader import Leading
from averaging.rounds.machine_events import Heard, View
from averaging.rounds.presence import MemberPresence
from averaging.rounds.shard_plan import MOST_OF_MEDIAN, plan_shards
from averaging.rounds.waits import Waits
from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.trust.leader_trust import FIRST_PASSED_OVER_SECONDS, LONGEST_PASSED_OVER_SECONDS, Leaders
from averaging.wire.messages import MAX_ROSTER, Commit, Offer, RosterEntry, ShardResult, Wait
from dht.ground.errors import PeerFault
from dht.records.lineages import Side, heaviest_side
from peer.config.manifest import AveragingSection
from peer.mailbox.mailbox import Mailbox
from peer.network.node.fragment_memory import build_fragments
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of
from tests.kit.rounds.exchange_swarm import Swarm, scenario
from tests.simulator.adversaries.insiders import _leading_for

ME, OTHERS = named(0), [named(number) for number in range(1, 8)]
STRICT = OuterRule("carry", 0.7, 0.5, overlay_gain=0.7, combine="centered_clip", clip_norm_ratio=2.0)


def commit_of(*members, leader=OTHERS[0], version=3, attempt=0):
    roster = tuple(RosterEntry(name, 100, 10, version, 1) for name in sorted(members))
    return Commit(
        0, version, attempt, leader, bytes(16), roster, (ShardResult(0, 64, 0, b"d" * 16, tuple(range(len(roster)))),)
    )


def objection(commit, *, trainers=OTHERS, mine=None, waited=1.0, is_strict=True, pace=10.0, sent=()):
    leaders = Leaders(ME, is_strict)
    leaders.advanced(0, 3, 100.0)
    for attempt, leader in sent:
        leaders.sent(0, 3, attempt, leader, 100.0)
    timing = Waits.with_bounds(30.0)
    for step in range(20):
        timing.own_pace.observe(step * pace)
    return leaders.objection(commit, trainers, mine, timing, 100.0 + waited)


@pytest.mark.parametrize("num_members", range(1, 8))
def test_a_commit_needs_more_than_a_quarter_of_those_who_live(num_members):
    commit = commit_of(*OTHERS[:num_members])
    assert bool(objection(commit)) == (num_members < 3)  # of eight, with this peer
    assert not objection(commit, is_strict=False)
    assert not objection(commit, waited=60.0)
    assert not objection(commit, trainers=OTHERS[:1])


def test_members_that_nobody_knows_do_not_count():
    assert objection(commit_of(*(named(number) for number in range(20, 40))))


def test_a_round_of_strangers_is_not_followed_however_long_this_peer_waits():
    """Red as long as patience alone decides: a key that has done nothing moves everybody who waits long enough."""
    leaders, timing = Leaders(ME, is_strict=True), Waits.with_bounds(30.0)
    leaders.advanced(0, 3, 0.0)
    presence = MemberPresence(ME)
    rounds = [commit_of(ME, *OTHERS), commit_of(ME, *OTHERS, leader=OTHERS[1], version=4)]
    presence.follow(0, rounds)

    def is_followed(commit, now):
        is_of_strangers = presence.are_strangers(commit)
        return not leaders.objection(commit, OTHERS, None, timing, now, is_of_strangers=is_of_strangers)

    stranger = named(20)
    for members in ((stranger,), (stranger, named(21)), (stranger, ME)):
        assert not is_followed(commit_of(*members, version=3), 10_000.0)
    leaders.sent(0, 3, 0, stranger, 9.0)
    assert is_followed(commit_of(stranger, ME, leader=stranger), 10_000.0)
    assert is_followed(commit_of(OTHERS[0], version=3), 10_000.0)
    assert not is_followed(commit_of(OTHERS[0], version=3), 1.0)


@pytest.mark.parametrize(
    ("rounds", "is_followed"),
    [([OTHERS, OTHERS[:1]], True), ([OTHERS, [named(20)]], False), ([[named(20)], OTHERS], False)],
)
def test_later_commits_on_the_own_anchor_are_followed_all_or_not_at_all(rounds, is_followed):
    """Else a key hangs a chain of its own on a good commit, and members that are behind take its end over."""
    clock = SimpleNamespace(now=0.0)
    guard = Guard(ME, 8, GuardPorts(lambda: clock.now, lambda fact: None), is_strict=True)
    guard.presence.follow(0, [commit_of(ME, *OTHERS, leader=leader) for leader in OTHERS[:2]])
    guard.leaders.advanced(0, 3, 0.0)
    machine = SimpleNamespace(awaited=OTHERS, trainers=OTHERS, followers=(), timing=Waits.with_bounds(30.0))
    chain = [commit_of(*members, leader=members[0], version=3 + n) for n, members in enumerate(rounds)]
    assert not guard.follows(chain, machine)
    clock.now = 10_000.0
    assert guard.follows(chain, machine) == is_followed


def test_in_a_first_round_keys_that_only_push_commits_are_strangers():
    """Red as long as only work makes others known: before anybody had worked, one commit of a liar alone passed."""
    presence, stranger = MemberPresence(ME), named(20)
    presence.meet(stranger)
    assert not presence.are_strangers(commit_of(stranger)), "nobody else is known: it may be all there is"
    presence.take_part(OTHERS[0])
    assert presence.are_strangers(commit_of(stranger))
    assert not presence.are_strangers(commit_of(OTHERS[0]))


def test_nobody_is_counted_in_without_having_sent_anything():
    commit = commit_of(ME, *OTHERS)
    assert "sent nothing" in objection(commit)
    assert "sent nothing" in objection(commit, sent=[(1, commit.leader), (0, OTHERS[1])])
    assert not objection(commit, sent=[(0, commit.leader)])


def test_a_restarted_process_may_have_sent_before_what_it_does_not_know_of():
    leaders, timing = Leaders(ME, is_strict=True), Waits.with_bounds(30.0)
    assert not leaders.objection(commit_of(ME, *OTHERS), OTHERS, None, timing, 100.0)
    assert not leaders.objection(commit_of(ME, *OTHERS, attempt=1), OTHERS, None, timing, 100.0)
    leaders.advanced(0, 4, 101.0)
    assert "sent nothing" in leaders.objection(commit_of(ME, *OTHERS, version=4), OTHERS, None, timing, 102.0)
    fetched = Leaders(ME, is_strict=True)
    fetched.advanced(0, 4, 101.0, is_adopted=True)
    assert not fetched.objection(commit_of(ME, *OTHERS, version=4), OTHERS, None, timing, 102.0)


def test_a_commit_of_few_replaces_none_of_many():
    assert objection(commit_of(OTHERS[0]), mine=commit_of(*OTHERS[:2]), waited=1000.0)
    assert not objection(commit_of(*OTHERS[:3]), mine=commit_of(*OTHERS[:4]))


def test_in_a_large_swarm_a_round_of_all_whose_turn_it_was_is_followed():
    """Red as long as 256 contributors are compared with all of 2000 trainers."""
    crowd = [named(number) for number in range(100, 2100)]
    leaders, timing = Leaders(ME, is_strict=True), Waits.with_bounds(30.0)
    assert not leaders.objection(commit_of(*crowd[:MAX_ROSTER]), crowd, None, timing, 100.0)
    assert leaders.objection(commit_of(*crowd[: MAX_ROSTER // 8]), crowd, None, timing, 100.0)


def test_a_leader_that_leaves_this_peer_out_again_and_again_is_passed_over_for_longer_each_time():
    leaders, now = Leaders(ME, True), 0.0
    without, within = commit_of(*OTHERS), commit_of(ME, *OTHERS)
    for expected in (FIRST_PASSED_OVER_SECONDS, 2 * FIRST_PASSED_OVER_SECONDS):
        for _ in range(3):
            assert leaders.judge(without.leader, now) == 0
            assert leaders.closed(without, without.leader, 20.0, 5.0)
        assert leaders.judge(without.leader, now) == expected
        assert leaders.passed_over(now + expected - 1) == {without.leader}
        assert not leaders.passed_over(now + expected)
        now += expected
    for _ in range(3 * 10):
        leaders.closed(without, without.leader, 20.0, 5.0)
        assert leaders.judge(without.leader, now) <= LONGEST_PASSED_OVER_SECONDS
    fair = Leaders(ME, True)
    for _ in range(5):
        assert fair.closed(without, without.leader, 20.0, 5.0)
        assert fair.closed(without, without.leader, 20.0, 5.0)
        assert not fair.closed(within, without.leader, 20.0, 5.0)
        assert fair.judge(without.leader, 0.0) == 0


def test_who_came_too_late_or_offered_to_somebody_else_was_not_left_out():
    leaders, commit = Leaders(ME, True), commit_of(*OTHERS)
    assert not leaders.closed(commit, commit.leader, 4.0, 5.0)
    assert not leaders.closed(commit, OTHERS[3], 20.0, 5.0)
    assert not leaders.closed(commit, None, 20.0, 5.0)


@pytest.mark.parametrize("is_adopted", [False, True])
@pytest.mark.parametrize("waited", [0.1, 3.0, 10.0])
def test_a_version_that_came_here_late_proves_no_haste(is_adopted, waited):
    """Its leader may have had it, and waited for its quorum, long before: this peer was cut off, or fetched it."""
    leaders = Leaders(ME, True)
    leaders.advanced(0, 3, 100.0, is_adopted=is_adopted)
    assert not leaders.is_hasty(commit_of(OTHERS[0]), None, OTHERS, 100.0 + waited)
    assert not leaders.is_hasty(commit_of(OTHERS[0]), commit_of(*OTHERS, version=2), OTHERS, 100.0 + waited)
    # Of that round, too, nobody here knows when it began: this process sent nothing for it.
    assert not leaders.is_hasty(commit_of(OTHERS[0]), commit_of(ME, *OTHERS, version=2), OTHERS, 100.0 + waited)


@pytest.mark.parametrize(("waited", "is_hasty"), [(0.1, True), (3.0, True), (5.0, False)])
def test_own_work_in_the_round_before_proves_haste(waited, is_hasty):
    leaders = Leaders(ME, True)
    before = commit_of(ME, *OTHERS, version=2)
    leaders.sent(0, 2, 0, before.leader, 100.0)
    leaders.advanced(0, 3, 100.0)
    assert leaders.is_hasty(commit_of(OTHERS[0]), before, OTHERS, 100.0 + waited) == is_hasty
    another_attempt = commit_of(ME, *OTHERS, version=2, attempt=1)
    assert not leaders.is_hasty(commit_of(OTHERS[0]), another_attempt, OTHERS, 100.0 + waited)


# ------------------------------------------------------------------------------------------------------ whole rounds


@pytest.mark.parametrize("num_trainers", [2, 4, 5, 8, 9, 32])
def test_a_leader_takes_no_number_for_a_quorum_that_the_others_do_not_follow(num_trainers):
    section = AveragingSection(combine="centered_clip")
    codec = make_codec("int4", 16)
    (runtime,) = build_fragments(ME, "run", section, STRICT, codec, Mailbox.in_process([64]), notary_of(ME))
    machine, trainers = runtime.machine, [named(number) for number in range(1, num_trainers)]
    machine.step(View((ME, *trainers), ()), 0.0)
    sent = machine.step(Heard(trainers[0], Offer(0, 0, 1, b"", 0, 100, 10, 1, 0.0, True)), 0.0)
    (quorum,) = {effect.message.quorum for effect in sent if isinstance(effect.message, Wait)}
    assert 0.5 * num_trainers <= quorum <= num_trainers
    assert not objection(commit_of(*trainers[:quorum]), trainers=trainers)


@pytest.mark.parametrize("sees_both", [True, False])
def test_a_leader_that_signs_two_histories_is_left_out_by_whoever_sees_both(sees_both):
    async def play():
        swarm = Swarm(5, rule=STRICT)
        await swarm.train(3)
        await swarm.settle()
        peer = swarm.live()[0]
        fragment = peer.fragments[1]
        commit = fragment.machine.log.newest[fragment.machine.version - 1]
        other = notary_of(commit.leader).sign_commit(replace(commit, previous=b"\x01" * 16))
        reporter = next(one for one in swarm.live() if one.name != commit.leader)
        sender = next(one for one in swarm.live() if one not in (reporter, swarm.peers[commit.leader]))
        for seen in (commit, other if sees_both else commit):
            reporter.exchange.on_message(sender.name, seen, memoryview(b""), 100)
        assert (commit.leader in reporter.exchange.guard.excluded([commit.leader])) == sees_both
        assert not reporter.exchange.guard.excluded([sender.name])
        # Whoever makes one up convicts nobody.
        forged = replace(commit, previous=b"\x02" * 16)
        third = next(one for one in swarm.live() if one not in (reporter, sender, swarm.peers[commit.leader]))
        try:
            third.exchange.on_message(sender.name, forged, memoryview(b""), 100)
        except PeerFault as fault:
            assert fault.peer_id == sender.name  # noqa: PT017
        assert not third.exchange.guard.excluded([commit.leader])
        return swarm

    scenario(play)


def test_a_commit_under_a_leaders_name_that_it_has_not_signed_harms_its_sender_alone():
    """Anybody can make one up. It costs the leader neither its name nor the offers that it has."""

    async def play():
        swarm = Swarm(8, rule=STRICT)
        await swarm.train(3)
        await swarm.settle()
        victim, sender, leader = swarm.live()[:3]
        fragment, guard = victim.fragments[0], victim.exchange.guard
        machine = fragment.machine
        sent = [commit for commit in machine.log.newest.values() if commit.version == machine.version - 1]
        guard.leaders._sent[0] = {(sent[0].version, sent[0].attempt, sent[0].leader): victim.exchange._ports.clock()}
        machine._member = RoundAttempt(0, leader.name, 0.0)
        alone = commit_of(sender.name, leader=leader.name, version=machine.version)
        forged = replace(alone, anchor_digest=machine.anchor_digest, signature=bytes(64))
        for commit in (forged, replace(forged, roster=(replace(forged.roster[0], tokens=2**40),))):
            with pytest.raises(PeerFault) as fault:
                victim.exchange.on_message(sender.name, commit, memoryview(b""), 100)
            assert fault.value.peer_id == sender.name
        assert not guard.book.counts(leader.name)
        assert machine.leader == leader.name
        machine._member = None
        return swarm

    scenario(play)


def test_members_go_on_without_a_leader_that_favours_its_friends():
    async def play():
        swarm = Swarm(6, rule=STRICT)
        liar = swarm.live()[0]
        for fragment in liar.fragments:
            fragment.machine.leading_type = _leading_for(frozenset({liar.name}))
        assert issubclass(fragment.machine.leading_type, Leading)
        await swarm.train(16)
        honest = [peer for peer in swarm.live() if peer is not liar]
        for peer in honest:
            led = {closed.commit.leader for closed in peer.closed() if len(closed.commit.roster) < 3}
            assert liar.name not in led
            own = [closed.own_included for closed in peer.closed()]
            assert sum(own) >= 0.7 * len(own)
            assert len(own) >= 20
            assert set(peer.exchange.guard.leaders._passed_over._pauses) <= {liar.name}
        return swarm

    scenario(play)


# ----------------------------------------------------------------------------------------------------- other claims


def test_a_claimed_upload_rate_gives_no_more_than_twice_an_equal_part():
    honest = [20e6] * 7
    shards = plan_shards(1_000_000, 128, [1e15, *honest], [True] * 8, MOST_OF_MEDIAN)
    claimed = sum(shard.end - shard.start for shard in shards if shard.reducer == 0)
    assert 1 / 8 * 1_000_000 < claimed < 2.05 / 8 * 1_000_000
    assert {shard.reducer for shard in shards} == set(range(8))
    assert {shard.reducer for shard in plan_shards(1_000_000, 128, [1e15, *honest], [True] * 8)} == {0}


def test_a_claimed_speed_slows_nobody_down_without_limit():
    assert fastest_believed([1e12, 100, 120, 90], is_strict=True) == 800
    assert fastest_believed([400, 100, 120, 90], is_strict=True) == 400
    assert fastest_believed([1e12, 100], is_strict=False) == 1e12
    assert fastest_believed([0.0, 0.0], is_strict=True) == 0


@pytest.mark.parametrize(
    ("few", "many", "few_win"), [(4, 12, False), (6, 12, False), (11, 12, False), (12, 12, True), (1, 1, True)]
)
def test_claimed_tokens_of_a_few_do_not_outweigh_the_heads_of_many(few, many, few_win):
    heavy, light = Side(b"liars", 2**50, few), Side(b"honest", 1000, many)
    assert (heaviest_side([light, heavy]) is heavy) == few_win
    assert heaviest_side([heavy, light]) is heaviest_side([light, heavy])
