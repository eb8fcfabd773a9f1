"""Counting bad input, leaving out who keeps sending it, and what the guard of an exchange takes for a lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.outer.robust_mean import RefusedMember
from averaging.rounds.round_facts import PeerRefused
from averaging.rounds.waits import HEARTBEAT_SECONDS, Waits
from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.trust.exclusions import (
    FIRST_SECONDS,
    FORGIVEN_SECONDS,
    LONGEST_SECONDS,
    MAX_REMEMBERED_PEERS,
    STRIKES,
    BlameBook,
)
from averaging.wire.messages import (
    Commit,
    Plan,
    RosterEntry,
    ShardPlan,
    ShardResult,
    VersionIs,
)
from dht.ground.host import PeerId
from tests.kit.clock import Clock
from tests.kit.rounds.guard_scene import DIGEST, HONEST, LIAR, ME, commit_with, follow, objection, offer_of


def strike(book, now, offence="undecodable", times=STRIKES):
    return [book.add(LIAR, offence, now) for _ in range(times)][-1]


# --- the book ---


def test_a_few_refusals_are_no_habit():
    book = BlameBook()
    for number in range(STRIKES - 1):
        assert book.add(LIAR, "undecodable", float(number)) == 0.0
        assert LIAR not in book.excluded(float(number))
    assert book.add(LIAR, "beyond_norm", 9.0) == FIRST_SECONDS
    assert book.counts(LIAR) == {"undecodable": STRIKES - 1, "beyond_norm": 1}
    assert HONEST not in book.excluded(9.0)


def test_exclusions_double_up_to_a_bound():
    book, now, seconds = BlameBook(), 0.0, []
    for _ in range(9):
        seconds.append(strike(book, now))
        assert LIAR in book.excluded(now)
        assert LIAR in book.excluded(now + seconds[-1] - 1e-3)
        now += seconds[-1]
        assert LIAR not in book.excluded(now)
    assert seconds == [min(FIRST_SECONDS * 2**index, LONGEST_SECONDS) for index in range(9)]


def test_what_happens_while_a_peer_is_left_out_does_not_count_again():
    book = BlameBook()
    strike(book, 0.0)
    assert strike(book, 1.0, times=9) == 0.0
    assert LIAR not in book.excluded(FIRST_SECONDS)


@given(st.floats(0, 3 * FORGIVEN_SECONDS))
def test_quiet_time_forgives(quiet):
    book = BlameBook()
    strike(book, 0.0, times=STRIKES - 1)
    assert bool(book.add(LIAR, "undecodable", quiet)) == (quiet < FORGIVEN_SECONDS)


@given(st.floats(0, 5000))
def test_after_an_exclusion_forgiveness_takes_longer(quiet):
    book, end = BlameBook(), 0.0
    for _ in range(4):
        last = strike(book, end)
        end += last
    again = strike(book, end + quiet)
    assert again == (2 * last if quiet < max(FORGIVEN_SECONDS, 2 * last) else FIRST_SECONDS)


def test_the_shards_of_one_contribution_are_one_offence():
    book = BlameBook()
    seconds = [book.add(LIAR, "undecodable", 0.0, evidence=(0, 7)) for _ in range(20)]
    assert seconds == [0.0] + [None] * 19
    assert book.counts(LIAR) == {"undecodable": 1}


def test_what_others_can_bring_about_leaves_nobody_out():
    book = BlameBook()
    for number in range(50):
        assert book.add(LIAR, "misfit", 0.0, evidence=number) == 0.0
    assert LIAR not in book.excluded(0.0)
    assert book.counts(LIAR) == {"misfit": 50}


def test_memory_is_bounded_and_forgets_the_oldest():
    book = BlameBook()
    for number in range(MAX_REMEMBERED_PEERS + 10):
        book.add(PeerId(f"peer{number}"), "malformed", float(number))
    assert book.counts(PeerId("peer9")) == {}
    assert book.counts(PeerId("peer10")) == {"malformed": 1}


# --- claims ---


def guarded(speed_of=lambda peer_id: 100.0, **ports):
    clock, reports = Clock(1000.0), []
    guard = Guard(ME, 4, GuardPorts(clock, reports.append, speed_of=speed_of, **ports))
    timing = Waits.with_bounds(60.0)
    timing.own_pace.observe(0.0)
    timing.own_pace.observe(30.0)
    return guard, clock, reports, timing


def slack(timing):
    return timing.mean.seconds + HEARTBEAT_SECONDS


@given(st.integers(0, 4), st.floats(30, 300), st.floats(0, 100), st.floats(0.1, 2.9))
def test_honest_work_passes_however_late(staleness, interval, since, pace):
    """Its work began when its base came, and it may be almost three times as fast as it announced."""
    guard, clock, reports, timing = guarded()
    follow(guard, clock, timing, range(10, 21), interval)
    clock.now += since
    tokens = int(pace * 100.0 * (staleness * interval + since))
    assert objection(guard, LIAR, offer_of(20, 20 - staleness, max(1, tokens)), timing, 20) == ""
    assert not reports


@given(st.integers(0, 4), st.floats(30, 300))
def test_more_tokens_than_the_speed_allows_are_refused(staleness, interval):
    guard, clock, reports, timing = guarded()
    follow(guard, clock, timing, range(10, 21), interval)
    most = 3 * 100.0 * (staleness * interval + slack(timing))
    # One less: the same bound, added up in another order, may come out just below a whole number.
    assert objection(guard, LIAR, offer_of(20, 20 - staleness, int(most) - 1), timing, 20) == ""
    refusal = objection(guard, LIAR, offer_of(20, 20 - staleness, int(most) + 2), timing, 20)
    assert refusal.startswith(f"claims {int(most) + 2} tokens for fragment 0; at its 100 tokens/s")
    assert reports == [PeerRefused(LIAR, refusal)]


@pytest.mark.parametrize("base_version", [21, 2**53])
def test_work_on_a_version_of_the_future_is_refused(base_version):
    guard, _, reports, timing = guarded(lambda peer_id: 0.0)
    expected = f"claims work on version {base_version} for version 20 of fragment 0"
    assert objection(guard, LIAR, offer_of(20, base_version, 1), timing, 20) == expected
    assert len(reports) == 1


def test_nobody_is_judged_on_what_is_not_known():
    speeds = {}
    guard, clock, reports, timing = guarded(lambda peer_id: speeds.get(peer_id, 0.0))
    follow(guard, clock, timing, range(10, 15), 60.0)
    assert objection(guard, LIAR, offer_of(14, 14, 10**12), timing, 14) == ""  # its speed
    speeds[LIAR] = 100.0
    assert objection(guard, LIAR, offer_of(14, 9, 10**12), timing, 14) == ""  # when its base came
    assert not reports


def test_who_wakes_up_behind_the_others_does_not_blame_them():
    """Three commits at once after ten minutes: the others have trained all the time."""
    guard, clock, _, timing = guarded()
    follow(guard, clock, timing, range(10, 15), 200.0)
    clock.now += 600.0
    follow(guard, clock, timing, [15, 16, 17], 0.1)
    clock.now += 5.0
    assert objection(guard, LIAR, offer_of(17, 16, 100 * 200), timing, 17) == ""
    follow(guard, clock, timing, [40], 0.1)  # fetched
    assert objection(guard, LIAR, offer_of(40, 39, 100 * 200), timing, 40) == ""
    follow(guard, clock, timing, [30], 0.1)  # another lineage
    assert objection(guard, LIAR, offer_of(30, 29, 10**9), timing, 30) == ""


def test_a_peer_that_keeps_lying_is_left_out_and_told_so():
    begun = []
    guard, clock, reports, timing = guarded(on_exclusion=lambda: begun.append(clock.now))
    follow(guard, clock, timing, range(10, 15), 60.0)
    for sequence in range(STRIKES):
        assert not guard.excluded([LIAR, HONEST])
        assert objection(guard, LIAR, offer_of(14, 14, 10**9, sequence), timing, 14)
    assert guard.excluded([LIAR, HONEST]) == {LIAR}
    assert begun == [clock.now]
    reason = "left out of this peer's rounds for 60 s, because it claimed work that it cannot have done 3x"
    assert reports[-1].reason == reason
    assert "left out by this peer for a while" in objection(guard, LIAR, offer_of(14, 14, 1), timing, 14)
    assert objection(guard, HONEST, offer_of(14, 14, 1), timing, 14) == ""
    clock.now += FIRST_SECONDS
    assert objection(guard, LIAR, offer_of(14, 14, 1), timing, 14) == ""


def test_nobody_follows_the_lone_commits_of_a_peer_that_is_left_out():
    guard, _, _, timing = guarded()
    roster = (RosterEntry(HONEST, 10, 1, 14, 0), RosterEntry(LIAR, 10**9, 1, 14, 0))

    def commit_of(included):
        return Commit(0, 14, 0, LIAR, DIGEST, roster, (ShardResult(0, 50, 1, DIGEST, included),))

    messages = (commit_of((1,)), commit_of((0, 1)), VersionIs(0, 15, DIGEST, 10**9), offer_of(13, 13, 1))
    assert [objection(guard, LIAR, message, timing, 14) for message in messages] == [""] * 4
    for _ in range(STRIKES):
        guard.blame(LIAR, "malformed", "sent nonsense")
    assert [bool(objection(guard, LIAR, message, timing, 14)) for message in messages] == [True, False, True, False]
    assert [bool(objection(guard, HONEST, message, timing, 14)) for message in messages] == [True, False, False, False]


@given(st.floats(30, 300), st.integers(0, 1))
def test_a_commit_counts_only_with_tokens_that_its_members_can_have_trained(interval, versions_ago):
    guard, clock, reports, timing = guarded()
    follow(guard, clock, timing, range(10, 15), interval)
    most = 2 * 3 * 100.0 * slack(timing)
    version = 14 - versions_ago
    assert objection(guard, LIAR, commit_with(int(most), version), timing, 14) == ""
    refusal = objection(guard, LIAR, commit_with(int(most) + 10, version), timing, 14)
    assert refusal.startswith(
        f"made a commit of version {version} of fragment 0 with {int(most) + 10} tokens of one peer"
    )
    assert reports == [PeerRefused(LIAR, refusal)]


def test_who_passes_on_a_forged_commit_is_not_to_blame_for_it():
    guard, clock, reports, timing = guarded()
    follow(guard, clock, timing, range(10, 15), 60.0)
    for _ in range(2 * STRIKES):
        assert objection(guard, HONEST, commit_with(10**12), timing, 14)
    assert not reports
    for version in range(14, 14 + STRIKES):
        assert objection(guard, LIAR, commit_with(10**12, version), timing, 14)
    assert {report.peer_id for report in reports} == {LIAR}
    # A leader may not have been able to tell, so that its commits are refused and it is not left out for them.
    assert not guard.excluded([LIAR, HONEST])


def plan_of(tokens):
    roster = tuple(
        RosterEntry(peer_id, tokens.get(peer_id, 100), 10, 14, number)
        for number, peer_id in enumerate((HONEST, ME, LIAR))
    )
    return Plan(0, 14, 0, DIGEST, roster, (ShardPlan(0, 50, 1),), 5.0, 5.0)


def test_only_the_leaders_own_claim_in_a_roster_is_held_against_its_author():
    guard, clock, reports, timing = guarded()
    follow(guard, clock, timing, range(10, 15), 60.0)
    assert guard.usable(plan_of({HONEST: 10**9, ME: 10**9}), LIAR, (0, 1, 2), timing) == (0, 1, 2)
    assert not reports
    assert guard.usable(plan_of({LIAR: 10**9}), LIAR, (0, 1, 2), timing) == (0, 1)
    assert [report.peer_id for report in reports] == [LIAR]


def test_refused_contributions_are_blamed_once_and_never_on_oneself():
    guard, _, reports, _ = guarded()
    plan = plan_of({})
    for _ in range(3):
        guard.refused(plan, [RefusedMember(2, "undecodable", "nan"), RefusedMember(1, "beyond_norm", "norm 9")])
    assert reports == [PeerRefused(LIAR, "its contribution to fragment 0 holds values that are not numbers (nan)")]
    guard.misfits(plan, (0, 1, 2), (0,))
    assert reports[1:] == []  # the same contribution again
    guard.misfits(plan, (0, 1, 2), (2,))
    assert [report.peer_id for report in reports[1:]] == [HONEST]
