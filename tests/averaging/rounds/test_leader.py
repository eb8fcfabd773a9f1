"""The leader's half of a round: when it starts, what it waits for, and how it ends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.duration_statistics import (
    FEWEST_ARRIVALS,
    MISSES_OF_ABSENT,
)
from averaging.rounds.leader import Leading
from averaging.rounds.round_facts import MembersAwaited
from averaging.rounds.waits import HEARTBEAT_SECONDS, QUIET_SECONDS, QUORUM_INTERVALS, SHARE_OF_INTERVAL, Waits
from averaging.wire.messages import (
    DIGEST_BYTES,
    MAX_ROSTER,
    Abandon,
    Commit,
    Offer,
    Plan,
    Reduced,
    ShardPlan,
    ShardResult,
    Wait,
)
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of

DIGEST = bytes(DIGEST_BYTES)
PEERS = sorted(named(number) for number in range(8))
START = 1000.0


def offer(sequence=1, attempt=0):
    return Offer(0, 3, attempt, DIGEST, 2, 100, 10, sequence, 1e6, True)


class Leader:
    """A `Leading` of `PEERS[0]` with two shards, reduced by the first two members, and everything it sent."""

    def __init__(self, *, hard_seconds=60.0, quorum_fraction=0.5, pace=None, not_before=0.0):
        self.sent, self.told = [], []
        self.timing = Waits.with_bounds(hard_seconds)
        if pace is not None:
            for tick in range(4):
                self.timing.own_pace.observe(tick * pace)
        self.leading = Leading(
            PEERS[0],
            0,
            3,
            DIGEST,
            self.timing,
            lambda to, message: self.sent.append((to, message)),
            quorum_fraction,
            notary_of(PEERS[0]),
            shards_for=lambda offers: (ShardPlan(0, 10, 0), ShardPlan(10, 20, min(1, len(offers) - 1))),
            not_before=not_before,
            tell=self.told.append,
        )

    def offers(self, *peers, now=START):
        for peer in peers:
            self.leading.on_offer(peer, offer(), 4, now)

    def check(self, now, num_trainers=4, given_up=frozenset()):
        return self.leading.check(PEERS[:num_trainers], given_up, now)

    def run_until(self, end, num_trainers=4):
        """Wake it whenever it wants to be woken; returns (time, outcome) of the first outcome, or None."""
        now = START
        while now <= end:
            outcome = self.check(now, num_trainers)
            if outcome is not None:
                return now, outcome
            assert self.leading.next_time > now
            now = self.leading.next_time
        return None

    def got(self, kind, to=None):
        return [message for peer, message in self.sent if type(message) is kind and to in (None, peer)]

    def reduced(self, shard, reducer, included=(0, 1), now=START + 1, attempt=0):
        report = Reduced(0, 3, attempt, shard, DIGEST, included)
        plan = self.leading.plan
        if plan is not None and shard < len(plan.shards):
            part = plan.shards[shard]
            result = ShardResult(part.start, part.end, part.reducer, DIGEST, included)
            report = replace(report, signature=notary_of(reducer).sign_result(plan, PEERS[0], result))
        return self.leading.on_reduced(reducer, report, now)


def started(**options):
    leader = Leader(**options)
    leader.offers(*PEERS[:4])
    leader.check(START)
    return leader


# ----------------------------------------------------------------------------------------------------- starting


def test_everyone_is_there_so_it_starts_at_once():
    leader = started()
    (plan, *_) = leader.got(Plan)
    assert [to for to, message in leader.sent if type(message) is Plan] == PEERS[:4]
    assert [entry.peer_id for entry in plan.roster] == PEERS[:4]
    assert (plan.version, plan.anchor_digest) == (3, DIGEST)


def test_whoever_was_silent_as_a_leader_is_not_waited_for():
    leader = Leader()
    leader.offers(*PEERS[:3])
    leader.check(START, given_up=frozenset({PEERS[3]}))
    assert len(leader.got(Plan)) == 3


@given(st.integers(1, 40), st.floats(0.05, 1))
def test_the_quorum_is_a_share_of_the_live_trainers(num_trainers, fraction):
    quorum = Leader(quorum_fraction=fraction).leading.quorum(num_trainers)
    assert quorum - 1 < fraction * num_trainers <= quorum or quorum == 1
    assert Leader(quorum_fraction=fraction).leading.quorum(0) == 1


def test_with_a_quorum_it_waits_for_the_grace_window():
    leader = Leader()
    leader.offers(*PEERS[:2])
    leader.run_until(START + SHARE_OF_INTERVAL * QUIET_SECONDS - 0.01)
    assert not leader.got(Plan)
    leader.run_until(START + SHARE_OF_INTERVAL * QUIET_SECONDS)
    assert len(leader.got(Plan)) == 2


def test_before_it_knows_its_pace_it_waits_for_a_quorum_until_the_hard_bound():
    leader = Leader(hard_seconds=30.0)
    leader.offers(PEERS[2])
    assert leader.run_until(START + 29.9) is None
    assert not leader.got(Plan)
    leader.run_until(START + 30.0)
    assert [entry.peer_id for entry in leader.got(Plan)[0].roster] == [PEERS[2]]


@given(st.floats(1, 40), st.lists(st.floats(0, 40), max_size=20))
def test_a_quorum_is_waited_for_as_long_as_the_missing_take(pace, late):
    leader = Leader(pace=pace)
    for peer in PEERS[1:4]:
        for seconds in late:
            leader.timing.offer.observe(peer, seconds)
    leader.offers(PEERS[0])
    learned = leader.timing.offer.longest(PEERS[1:4])
    leader.run_until(START + 60)
    expected = max(QUORUM_INTERVALS * max(pace, QUIET_SECONDS), learned)
    assert leader.leading.planned_at - START == pytest.approx(min(60.0, expected), abs=1e-6)


def test_it_says_once_whom_it_waits_for_and_then_that_it_did_in_vain():
    leader = Leader(pace=10.0)
    leader.offers(PEERS[0])
    leader.run_until(START + 30)
    awaited, passed = leader.told
    missing = tuple(PEERS[1:4])
    # The grace window is over after 7 s, and after 1.5 intervals nobody else will come.
    assert awaited == MembersAwaited(0, 3, "quorum", missing, 8.0, num_offers=1, quorum=2)
    assert passed == MembersAwaited(0, 3, "offer", missing, 15.0)
    assert len(leader.got(Plan)[0].roster) == 1


def test_trainers_that_do_not_answer_count_for_the_quorum_while_their_records_live():
    """Whoever lost its own line sees only itself, and must not commit alone at once."""
    leader = Leader(pace=8.0)
    leader.offers(PEERS[0])
    leader.leading.check(PEERS[:1], frozenset(), START, num_known=4)
    assert not leader.got(Plan)
    assert leader.leading.next_time <= START + QUORUM_INTERVALS * 8.0
    leader.leading.check(PEERS[:1], frozenset(), START + 11.9, num_known=4)
    assert not leader.got(Plan)
    assert leader.told[0].awaited == "quorum"
    leader.leading.check(PEERS[:1], frozenset(), START + 11.95, num_known=1)  # the records have run out
    assert len(leader.got(Plan)) == 1


def test_a_straggler_has_its_own_time_until_it_missed_three_rounds():
    timing = Waits.with_bounds(60.0)
    starts = []
    for _ in range(MISSES_OF_ABSENT + 2):
        leader = Leader(pace=20.0)
        leader.leading.timing = leader.timing = timing
        for tick in range(4):
            timing.own_pace.observe(tick * 20.0)
        if not starts:
            for _ in range(FEWEST_ARRIVALS):
                for peer, seconds in ((PEERS[1], 0.1), (PEERS[2], 0.1), (PEERS[3], 9.0)):
                    timing.offer.observe(peer, seconds)
        leader.offers(*PEERS[:3])
        leader.run_until(START + 20)
        starts.append(leader.leading.planned_at - START)
    assert starts[:MISSES_OF_ABSENT] == pytest.approx([9.9] * MISSES_OF_ABSENT)
    assert starts[MISSES_OF_ABSENT:] == [0.0, 0.0]
    assert timing.offer.is_absent(PEERS[3])
    timing.offer.observe(PEERS[3], 1.0)
    assert not timing.offer.is_absent(PEERS[3])


def test_a_quorum_that_is_lost_does_not_count():
    leader = Leader(hard_seconds=30.0)
    leader.offers(*PEERS[:2])
    leader.check(START)
    leader.leading.on_lost(PEERS[1])
    leader.run_until(START + 20)
    assert not leader.got(Plan)
    leader.offers(PEERS[3], now=START + 20)
    leader.check(START + 20)
    assert len(leader.got(Plan)) == 2


def test_it_does_not_open_a_round_before_the_others_can_be_ready():
    leader = Leader(pace=1.0, not_before=START + 12.0)
    leader.offers(*PEERS[:3])
    leader.run_until(START + 11.9)
    assert not leader.got(Plan)
    leader.run_until(START + 12.0)
    assert leader.got(Plan)


def test_the_plan_carries_the_newest_attempt_and_the_newest_offer_of_each():
    leader = Leader()
    leader.offers(PEERS[0])
    leader.leading.on_offer(PEERS[1], offer(5, attempt=2), 4, START)
    leader.leading.on_offer(PEERS[1], offer(6, attempt=1), 4, START)
    leader.check(START, 2)
    plan = leader.got(Plan)[0]
    assert plan.attempt == 2
    assert [entry.sequence for entry in plan.roster] == [1, 6]


def test_the_deadlines_of_a_plan_follow_from_its_members():
    """Nobody waits for the slow member of another round; a newcomer gets what the group takes."""

    def deadlines(*members):
        leader = Leader(quorum_fraction=0.1)
        for peer in PEERS[:3]:
            for _ in range(8):
                leader.timing.line.observe(peer, 2.0)
                leader.timing.mean.observe(peer, 3.0)
        for _ in range(FEWEST_ARRIVALS):
            leader.timing.line.observe(PEERS[3], 20.0)
        leader.offers(*members)
        leader.leading.check(members, frozenset(), START)
        plan = leader.got(Plan)[0]
        return plan.contribution_deadline_seconds, plan.commit_deadline_seconds

    assert deadlines(*PEERS[:3]) == pytest.approx((3.3, 6.6))
    assert deadlines(*PEERS[:4]) == pytest.approx((22.0, 25.3))
    assert deadlines(*PEERS[:2], PEERS[7]) == pytest.approx((3.3, 6.6))


# ------------------------------------------------------------------------------------------------ while it waits


def test_whoever_offered_hears_from_it_all_the_time():
    leader = Leader(hard_seconds=30.0)
    leader.offers(PEERS[2])
    leader.run_until(START + 10.5)
    assert len(leader.got(Wait, PEERS[2])) == 11
    assert leader.got(Wait)[0].num_offers == 1
    assert leader.got(Wait)[0].quorum == 2


def test_late_offers_are_not_in_the_plan_but_hear_from_it_until_the_end():
    leader = started()
    leader.leading.on_offer(PEERS[6], offer(), 5, START + 0.5)
    leader.run_until(START + 5)
    assert not leader.got(Plan, PEERS[6])
    assert len(leader.got(Wait, PEERS[6])) >= 1 + 5 / HEARTBEAT_SECONDS - 1
    assert leader.leading.waiting == sorted([*PEERS[:4], PEERS[6]])


def test_a_full_roster_takes_nobody_else():
    leader = Leader()
    crowd = [named(1000 + number) for number in range(MAX_ROSTER)]
    leader.offers(*crowd, PEERS[0])
    leader.leading.check(crowd, frozenset(), START)
    assert len(leader.got(Plan)[0].roster) == MAX_ROSTER
    assert PEERS[0] in leader.leading.waiting


# ----------------------------------------------------------------------------------------------------- the end


def test_all_shards_reduced_is_a_commit():
    leader = started()
    assert leader.reduced(0, PEERS[0], (0, 1, 2, 3))
    assert leader.check(START + 1) is None
    assert leader.reduced(1, PEERS[1], (0, 2))
    commit = leader.check(START + 1)
    assert isinstance(commit, Commit)
    assert commit.leader == PEERS[0]
    assert [shard.included for shard in commit.shards] == [(0, 1, 2, 3), (0, 2)]
    assert commit.tokens == 300  # two members are in half of the values
    assert leader.leading.next_time == math.inf
    assert leader.check(START + 999) is None


@pytest.mark.parametrize(
    ("steps", "has_mean"),
    [
        ("reports 0, loses 1", [True, False]),
        ("reports 1, loses 1, reports 0", [True, True]),
        ("loses 0, loses 1", None),
    ],
    ids=["a reducer vanishes", "it vanishes after its report", "all vanish"],
)
def test_a_round_ends_when_no_further_mean_can_come(steps, has_mean):
    leader = started()
    for step in steps.split(", "):
        assert leader.check(START + 1) is None
        what, number = step.split()
        if what == "reports":
            leader.reduced(int(number), PEERS[int(number)])
        else:
            leader.leading.on_lost(PEERS[int(number)])
    outcome = leader.check(START + 1)
    if has_mean is None:
        assert isinstance(outcome, Abandon)
        assert outcome.reason == "no reducer finished before the deadline"
    else:
        assert isinstance(outcome, Commit)
        assert [bool(shard.digest) for shard in outcome.shards] == has_mean


def test_a_silent_reducer_leaves_a_void_shard_at_the_deadline():
    leader = started()
    leader.reduced(0, PEERS[0])
    deadline = leader.got(Plan)[0].commit_deadline_seconds
    at, commit = leader.run_until(START + 100)
    assert at == pytest.approx(START + deadline)
    assert isinstance(commit, Commit)
    assert [bool(shard.digest) for shard in commit.shards] == [True, False]
    assert leader.told == [MembersAwaited(0, 3, "mean", (PEERS[1],), deadline)]


def test_without_a_single_mean_it_waits_once_more_as_long():
    leader = started()
    deadline = leader.got(Plan)[0].commit_deadline_seconds
    leader.run_until(START + 1.5 * deadline)
    assert not leader.leading.closed
    assert leader.told == [MembersAwaited(0, 3, "first mean", (PEERS[0], PEERS[1]), deadline)]
    leader.reduced(0, PEERS[0])
    leader.reduced(1, PEERS[1])
    commit = leader.check(START + 1.5 * deadline)
    assert isinstance(commit, Commit)
    assert all(shard.digest for shard in commit.shards)


def test_whom_nobody_answers_it_gives_up_after_twice_the_deadline():
    leader = started()
    deadline = leader.got(Plan)[0].commit_deadline_seconds
    at, outcome = leader.run_until(START + 100)
    assert at == pytest.approx(START + 2 * deadline)
    assert isinstance(outcome, Abandon)
    assert [passed.awaited for passed in leader.told] == ["first mean", "mean"]


def test_reports_that_do_not_belong_here_change_nothing():
    leader = started()
    assert not leader.reduced(0, PEERS[1])  # another one's shard
    assert not leader.reduced(2, PEERS[0])  # no such shard
    assert not leader.reduced(0, PEERS[0], attempt=1)
    assert not leader.reduced(0, PEERS[0], (0, 4))  # no such member
    assert not leader.reduced(0, named(99))
    assert not leader.leading.results
    leader.reduced(0, PEERS[0], (0, 1))
    leader.reduced(0, PEERS[0], (0,))
    assert leader.leading.results[0].included == (0, 1)
    assert not Leader().reduced(0, PEERS[0])  # no plan yet
