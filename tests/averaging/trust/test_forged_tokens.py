"""Claims of tokens by peers that announce no speed, a tiny one, any one, or too late; and what a commit may hold."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.codec.codec import make_codec
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.rounds.round_facts import RoundCommitted
from averaging.rounds.waits import Waits
from averaging.trust.believed_speeds import FASTEST_OF_MEDIAN, BelievedSpeeds
from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.wire import frames
from averaging.wire.field_checks import Limits
from averaging.wire.messages import (
    MAX_STEPS,
    MAX_TOKENS,
    Commit,
    Offer,
    Plan,
    RosterEntry,
    ShardPlan,
    ShardResult,
    WorkPart,
)
from averaging.wire.work_by_range import Waiting
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.records.lineages import MAX_LINEAGE_TOKENS
from peer.network.node.node import Node
from tests.kit.clock import Clock
from tests.kit.rounds.guard_scene import commit_with, follow, objection, offer_of
from tests.kit.tiers import sampled
from tests.simulator import peer
from tests.simulator.peer import simulated_identity
from tests.simulator.scenarios.hostile_scenario import scenario_of
from tests.simulator.scenarios.scenario import Scenario
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.simulation import simulate

ME, LIAR, HONEST = (PeerId(name * 20) for name in ("m", "x", "h"))
DIGEST = bytes(16)
TYPICAL = 100.0
FORGED = (2**50, MAX_TOKENS, 10**12)
INTERVAL = 60.0


class Seen:
    """A peer that has followed rounds 10 to 14 and knows some speeds."""

    def __init__(self, speeds, own=TYPICAL, versions=range(10, 15)):
        self.clock, self.reports, self.speeds = Clock(1000.0), [], dict(speeds)
        ports = GuardPorts(
            self.clock,
            self.reports.append,
            speed_of=lambda peer_id: own if peer_id == ME else self.speeds.get(peer_id, 0.0),
            known_speeds=lambda: [speed for peer_id, speed in self.speeds.items() if peer_id != ME],
        )
        self.guard = Guard(ME, 4, ports)
        self.timing = Waits.with_bounds(60.0)
        self.timing.own_pace.observe(0.0)
        self.timing.own_pace.observe(INTERVAL)
        follow(self.guard, self.clock, self.timing, versions, INTERVAL)
        self.clock.now += INTERVAL

    def takes_offer(self, tokens, base_version=14):
        offer = offer_of(14, base_version, tokens)
        return not objection(self.guard, LIAR, offer, self.timing, 14) and not self.guard.doubts(
            LIAR, offer, self.timing
        )

    def takes_commit(self, tokens, leader=HONEST, base_version=14):
        commit = commit_with(tokens, leader=leader)
        roster = tuple(
            dataclasses.replace(entry, base_version=base_version if entry.peer_id == LIAR else 14)
            for entry in commit.roster
        )
        return not objection(self.guard, leader, dataclasses.replace(commit, roster=roster), self.timing, 14)

    def reduces(self, tokens):
        roster = (RosterEntry(HONEST, 10, 1, 14, 0), RosterEntry(LIAR, tokens, 1, 14, 7))
        plan = Plan(0, 14, 0, DIGEST, roster, (ShardPlan(0, 50, 0),), 5.0, 5.0)
        kept = self.guard.believable(plan, [(0, None, None), (1, None, None)], self.timing)
        return 1 in [member for member, *_ in kept]


ANNOUNCED = {
    "no record": {HONEST: TYPICAL},
    "zero": {HONEST: TYPICAL, LIAR: 0.0},
    "next to nothing": {HONEST: TYPICAL, LIAR: 1e-9},
    "more than there is": {HONEST: TYPICAL, LIAR: 1e15},
    "the same": {HONEST: TYPICAL, LIAR: TYPICAL},
    "nobody's is known": {},
}


@pytest.mark.parametrize("tokens", FORGED)
@pytest.mark.parametrize("announced", ANNOUNCED)
def test_whatever_a_peer_announces_forged_tokens_count_nowhere(announced, tokens):
    seen = Seen(ANNOUNCED[announced], own=0.0 if announced == "nobody's is known" else TYPICAL)
    assert not seen.takes_offer(tokens)
    assert not seen.takes_commit(tokens)
    assert not seen.takes_commit(tokens, leader=LIAR)
    assert not seen.reduces(tokens)


@pytest.mark.parametrize("tokens", FORGED)
@pytest.mark.parametrize("base_version", [0, 3, 9])
@pytest.mark.parametrize("announced", ["no record", "the same"])
def test_a_base_of_which_nothing_is_known_lifts_no_limit(announced, base_version, tokens):
    seen = Seen(ANNOUNCED[announced])
    assert not seen.takes_offer(tokens, base_version)
    assert not seen.takes_commit(tokens, base_version=base_version)
    just_started = Seen(ANNOUNCED[announced], versions=())
    assert not just_started.takes_offer(tokens, base_version)
    assert not just_started.takes_commit(tokens, base_version=base_version)


def test_work_that_nobody_may_apply_any_more_is_in_no_commit_that_is_followed():
    seen = Seen(ANNOUNCED["the same"])
    assert [seen.takes_commit(10, base_version=base) for base in (14, 9, 8, 7, 0)] == [True, True, True, False, False]


def test_a_newcomer_waits_without_blame_until_its_record_is_here():
    """Ten times as fast as the others and not lying: its first offer comes before its first record with a speed."""
    seen = Seen(ANNOUNCED["zero"])
    honest = int(10 * TYPICAL * INTERVAL)
    assert not seen.takes_offer(honest)
    assert not seen.reports
    seen.speeds[LIAR] = 10 * TYPICAL
    seen.clock.now += 2.0
    assert seen.takes_offer(honest)
    # Whoever has not seen that record follows the commit all the same.
    assert Seen(ANNOUNCED["zero"]).takes_commit(honest)
    assert Seen(ANNOUNCED["zero"]).reduces(honest)


@given(
    st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9),
    st.floats(1e-3, 1e9),
    st.floats(0.5, 3.0),
    st.integers(1, MAX_TOKENS),
    st.booleans(),
)
def test_what_an_honest_leader_lets_in_passes_at_whoever_has_not_the_record(speeds, announced, drift, tokens, knows):
    """Both see the same swarm, but for the record of one peer; the clocks of versions differ by a round at most."""
    usual = sorted(speeds)[(len(speeds) - 1) // 2]
    announced = min(announced, 8 * usual)
    others = {PeerId(f"peer{index}" * 5): speed for index, speed in enumerate(speeds)}
    leader = Seen({**others, **({LIAR: announced} if knows else {})}, own=0.0)
    follower = Seen(others, own=0.0)
    follower.clock.now += drift
    if leader.takes_offer(tokens):
        assert follower.takes_commit(tokens)


@given(st.lists(st.floats(1e-6, 1e15), max_size=9), st.floats(0, 1e6), st.floats(0, 1e300))
def test_a_speed_that_is_announced_is_never_worth_less_than_none_would_be_to_a_liar(speeds, own, announced):
    believed = BelievedSpeeds()
    believed.note(lambda: speeds, own, 0.0)
    assert believed.slowest > 0
    assert believed.believed(0.0) <= believed.possible(0.0) <= believed.fastest
    assert believed.believed(announced or 1.0) <= min(announced or 1.0, believed.fastest)


def test_half_of_the_peers_announcing_nothing_much_makes_nobody_a_liar():
    seen = Seen({LIAR: 1e-9, PeerId("y" * 20): 1e-9, HONEST: TYPICAL})
    offer = offer_of(14, 14, int(TYPICAL * INTERVAL))
    assert not objection(seen.guard, HONEST, offer, seen.timing, 14)
    assert not seen.guard.doubts(HONEST, offer, seen.timing)


def test_speeds_are_looked_at_once_in_a_while():
    looked = []

    def known():
        looked.append(None)
        return [TYPICAL]

    believed = BelievedSpeeds()
    for now in (0.0, 0.1, 0.9, 1.1, 1.2):
        believed.note(known, 0.0, now)
    assert len(looked) == 2
    assert believed.fastest == FASTEST_OF_MEDIAN * TYPICAL


@pytest.mark.parametrize(("tokens", "steps"), [(MAX_TOKENS + 1, 1), (2**50, 1), (10, MAX_STEPS + 1), (10, 2**31)])
def test_no_offer_or_roster_holds_more_than_its_limits(tokens, steps):
    limits = Limits((50,), 1000)
    offer = Offer(0, 3, 0, DIGEST, 2, tokens, steps, 1, 1e6, True)
    with pytest.raises(PeerFault, match=r"field (tokens|steps)"):
        frames.decode(frames.encode(offer), LIAR, limits)
    entry = RosterEntry(LIAR, tokens, steps, 2, 1)
    plan = Plan(0, 3, 0, DIGEST, (entry,), (ShardPlan(0, 50, 0),), 5.0, 5.0)
    with pytest.raises(PeerFault, match="field roster"):
        frames.decode(frames.encode(plan), LIAR, limits)


def test_a_lineage_ends_at_its_limit_for_everybody():
    state = FragmentState(
        OuterRule("sync", 0.7, 0.5), make_codec("fp32", 16), *np.zeros((3, 50), dtype=np.float32), version=3
    )
    state.lineage_tokens = MAX_LINEAGE_TOKENS - 5
    for _ in range(2):
        state.apply([CommittedShard(0, 50, None, 0.7, False)], 10)
        assert state.lineage_tokens == MAX_LINEAGE_TOKENS


class UnknownSpeed(Node):
    """Says of itself that it does not know its speed."""

    def own_record(self):
        return dataclasses.replace(super().own_record(), tokens_per_second=0.0)


@pytest.mark.parametrize("scale", sampled([1e3, 2e8], one_in=2))
def test_noise_with_any_tokens_of_peers_without_a_speed_is_in_no_honest_commit(monkeypatch, scale):
    honest_type = peer.node_type_of
    monkeypatch.setattr(peer, "node_type_of", lambda lie: UnknownSpeed if lie else honest_type(lie))
    told = scenario_of(("forged_tokens",)).model_dump(exclude_unset=True)
    told["groups"]["forged_tokens"] |= {"count": 2, "lie_scale": scale}
    scenario = Scenario.model_validate(told)
    num_honest, largest, contributors = 8, 0, set()

    def note(index, event):
        nonlocal largest
        if index < num_honest and isinstance(event.fact, RoundCommitted):
            largest = max(largest, event.fact.tokens)
            contributors.update(event.fact.contributors)

    ids = [simulated_identity(5, index).peer_id for index in range(num_honest + 2)]
    result = simulate(spec_of(scenario, 5), note)
    assert result.violations == ()
    assert set(ids[:num_honest]) <= contributors
    assert 0 < largest < 10**6  # the round of ten honest intervals; forged ones would be 8 million tokens or more


def test_a_commit_counts_only_the_members_that_are_in_it():
    """A claim that no reducer took is no reason to leave the round of all others."""
    seen = Seen(ANNOUNCED["zero"])
    commit = commit_with(MAX_TOKENS, leader=HONEST)
    outside = dataclasses.replace(commit, shards=(ShardResult(0, 50, 0, DIGEST, (0,)),))
    assert not objection(seen.guard, HONEST, outside, seen.timing, 14)
    assert isinstance(outside, Commit)


# --- work that differs between ranges of values ---

INTERVAL_TOKENS = int(TYPICAL * INTERVAL)


def in_parts(*parts):
    """What an entry or offer says of work in these parts of 50 values: (end, tokens, base version)."""
    rows = tuple(WorkPart(end, tokens, 10, base) for end, tokens, base in parts)
    work = Waiting.of_parts(rows)
    return {"tokens": work.tokens, "steps": work.steps, "base_version": work.base_version, "parts": work.parts}


def verdicts(work):
    """Whether a peer that followed the rounds takes such work in an offer, in a commit, and as a reducer."""
    seen = Seen(ANNOUNCED["the same"])
    offer = dataclasses.replace(offer_of(14, 14, 1), **work)
    is_taken = not objection(seen.guard, LIAR, offer, seen.timing, 14) and not seen.guard.doubts(
        LIAR, offer, seen.timing
    )
    commit = commit_with(1, leader=HONEST)
    roster = tuple(dataclasses.replace(one, **(work if one.peer_id == LIAR else {})) for one in commit.roster)
    is_followed = not objection(seen.guard, HONEST, dataclasses.replace(commit, roster=roster), seen.timing, 14)
    plan = Plan(0, 14, 0, DIGEST, roster, (ShardPlan(0, 50, 0),), 5.0, 5.0)
    kept = seen.guard.believable(plan, [(0, None, None), (1, None, None)], seen.timing)
    return is_taken, is_followed, 1 in [member for member, *_ in kept]


def test_work_that_waited_longer_in_some_ranges_is_believed():
    """A quarter of the values waited for each number of intervals, as on a line that brings a quarter at a time."""
    waited = [(12 * quarter + 14, quarter * INTERVAL_TOKENS, 15 - quarter) for quarter in range(1, 3)]
    assert verdicts(in_parts(*waited, (50, 4 * INTERVAL_TOKENS, 11))) == (True, True, True)
    assert verdicts(in_parts((20, 0, 0), (50, INTERVAL_TOKENS, 14))) == (True, True, True)


@pytest.mark.parametrize("tokens", [30 * INTERVAL_TOKENS, *FORGED[1:]])
@pytest.mark.parametrize("end", [1, 25, 49])
def test_tokens_are_judged_by_the_base_of_their_own_range(end, tokens):
    """The old work elsewhere excuses nothing, nor does it when the whole claims little on average."""
    assert verdicts(in_parts((end, tokens, 14), (50, 1, 10))) == (False, False, False)
    assert verdicts(in_parts((end, 1, 10), (50, tokens, 14))) == (False, False, False)


def test_no_range_may_hold_work_of_the_future_or_work_that_nobody_may_apply():
    assert verdicts(in_parts((25, 10, 14), (50, 10, 15)))[0] is False
    assert verdicts(in_parts((25, 10, 14), (50, 10, 7)))[1] is False
    assert verdicts(in_parts((25, 10, 14), (50, 10, 8)))[1] is True
