"""After a split: what honest peers claim in another lineage is believed, and a forged weight is refused as ever."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.arrays import F32
from averaging.codec.codec import make_codec
from averaging.outer.contribution_weights import staleness_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.rounds.machine_events import Advanced, Heard, SendMessage, View
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.wire.messages import Abandon, Commit, Offer
from peer.events.anchor_events import AnchorRepair
from peer.events.peer_events import Event, RefusedPeer
from tests.kit.clock import Clock
from tests.kit.notaries import notary_of
from tests.kit.rounds.guard_scene import DIGEST, HONEST, LIAR, ME, commit_with, follow, offer_of
from tests.kit.tiers import sampled
from tests.simulator.network.lines import LineSettings
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, PeerSpec, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

OTHER_DIGEST = bytes(range(16))
SPEED = 100.0
PACE = 1.5
"""How much faster than announced an honest peer is here."""
LIMIT = 4
SIZE = 32


# --- whose clock a claim is held against ---


def machine_at(version: int, digest: bytes = DIGEST) -> RoundMachine:
    timing = Waits.with_bounds(60.0)
    timing.own_pace.observe(0.0)
    timing.own_pace.observe(30.0)
    for _ in range(5):
        timing.mean.observe(HONEST, 0.5)
    machine = RoundMachine(ME, "run", 0, 50, 16, timing, notary_of(ME), version=version, anchor_digest=digest)
    machine.step(View((ME,), (HONEST, LIAR), 1), 0.0)
    return machine


def watched(machine: RoundMachine) -> tuple[Guard, Clock, list]:
    clock, reports = Clock(1000.0), []
    guard = Guard(ME, LIMIT, GuardPorts(clock, reports.append, speed_of=lambda peer_id: SPEED))
    machine.objection = partial(guard.claim_objection, timing=machine.timing)
    return guard, clock, reports


@pytest.mark.parametrize("version", [14, 15, 17])
def test_the_work_of_another_lineage_is_not_held_against_the_own_clock(version: int) -> None:
    """Its version 14 may have come long before ours did."""
    machine = machine_at(14)
    guard, clock, reports = watched(machine)
    follow(guard, clock, machine.timing, range(10, 15), 60.0)
    offer = Offer(0, version, 0, OTHER_DIGEST, version, 10**9, 10, 1, 1e6, True)
    assert guard.objection(HONEST, offer, machine) == ""
    effects = machine.step(Heard(HONEST, offer), clock.now)
    assert not [e for e in effects if isinstance(e, SendMessage) and isinstance(e.message, Abandon)]
    commit = commit_with(10**9, version)
    other = Commit(0, version, 0, LIAR, OTHER_DIGEST, commit.roster, commit.shards)
    assert guard.objection(LIAR, other, machine) == ""
    assert not reports
    assert machine.applying is None


def test_a_forged_claim_that_came_early_is_refused_when_its_version_is_there() -> None:
    machine = machine_at(14)
    guard, clock, reports = watched(machine)
    follow(guard, clock, machine.timing, range(10, 15), 60.0)
    machine.step(Heard(LIAR, offer_of(15, 15, 10**9)), clock.now)
    assert not reports
    follow(guard, clock, machine.timing, [15], 60.0)
    effects = machine.step(Advanced(15, DIGEST, 100, None), clock.now)
    (refusal,) = [e.message.reason for e in effects if isinstance(e, SendMessage) and isinstance(e.message, Abandon)]
    assert refusal.startswith(f"claims {10**9} tokens for fragment 0; at its 100 tokens/s")
    assert [report.peer_id for report in reports] == [LIAR]
    assert not machine.is_offering


def test_an_adopted_anchor_says_nothing_about_when_its_versions_came() -> None:
    """Though its number follows the own one."""
    machine = machine_at(14)
    guard, clock, reports = watched(machine)
    follow(guard, clock, machine.timing, range(10, 15), 60.0)
    clock.now += 60.0
    guard.advanced(0, 15, machine.timing, is_adopted=True)
    assert guard.claim_objection(HONEST, offer_of(15, 14, 10**9), machine.timing) == ""
    follow(guard, clock, machine.timing, [16, 17], 60.0)
    assert guard.claim_objection(LIAR, offer_of(17, 16, 10**9), machine.timing)
    assert [report.peer_id for report in reports] == [LIAR]


# --- what the side that gives in claims ---


def zeros() -> F32:
    return np.zeros(SIZE, dtype=np.float32)


def state_of(mode: str = "carry") -> FragmentState:
    rule = OuterRule(mode, 0.7, 0.5, staleness_limit=LIMIT)  # type: ignore[arg-type]
    return FragmentState(rule, make_codec("fp32", 8), zeros(), zeros(), zeros())


def work(state: FragmentState, tokens: int, base_version: int) -> None:
    state.receive_work(np.ones(SIZE, dtype=np.float32), tokens, 2, base_version)


@given(
    rounds_before=st.integers(1, 8),
    own_rounds=st.integers(0, 12),
    own_interval=st.floats(10, 60),
    slowness=st.floats(0.2, 4.0),
    is_fork_known=st.booleans(),
    share_since=st.floats(0, 1),
)
def test_no_honest_claim_is_refused_after_a_split(
    rounds_before: int,
    own_rounds: int,
    own_interval: float,
    slowness: float,
    is_fork_known: bool,
    share_since: float,
) -> None:
    """One side made `own_rounds` while the other made theirs, `slowness` times slower; then this one gives in."""
    clock, reports = Clock(1000.0), []
    guard = Guard(ME, LIMIT, GuardPorts(clock, reports.append, speed_of=lambda peer_id: SPEED))
    timing = machine_at(0).timing
    began, fork, interval = clock.now, rounds_before, own_interval
    their_interval = own_interval * slowness
    end = (own_rounds + share_since) * interval
    theirs = fork + int(end / their_interval)

    def follow_to(seconds: float) -> None:
        """The others' versions, as they came, up to `seconds` after the fork."""
        for number in range(guard_version[0] + 1, fork + int(seconds / their_interval) + 1):
            clock.now = began + (number - fork) * their_interval
            guard.advanced(0, number, timing)
            guard_version[0] = number
        clock.now = began + seconds

    guard_version = [-1]
    follow_to(end)
    state, tokens = state_of(), round(PACE * SPEED * interval)
    state.version = fork
    shards = [CommittedShard(0, SIZE, state.codec.encode(np.ones(SIZE, dtype=np.float32)), 0.5, True)]
    for number in range(fork, fork + own_rounds):
        work(state, tokens, number)
        if number == fork + own_rounds - 1:
            break  # it waits, because the round before is not over
        state.send(number)
        state.apply(shards, tokens)
    left = state.version
    state.adopt(zeros(), zeros(), theirs, 10**9, b"")
    state.settle_in_new_lineage(left, fork if is_fork_known else None)

    def refusal() -> str:
        """Of an offer now; what is too old for anybody to count is dropped and not offered."""
        is_old = staleness_of("carry", state.version, state.unsent_base_version) > LIMIT
        if is_old or not state.unsent_tokens:
            state.drop_waiting()
            return ""
        sent, _ = state.send(99)
        return guard.claim_objection(HONEST, offer_of(state.version, sent.base_version, sent.tokens), timing)

    assert refusal() == ""
    # The trainer was in the middle of its work.
    follow_to((own_rounds + 1) * interval)
    state.pending, state.version = None, guard_version[0]
    work(state, tokens, left)
    assert refusal() == ""
    assert not reports


def test_a_fork_of_one_round_makes_nothing_older_than_it_is() -> None:
    state = state_of()
    work(state, 10, 6)
    state.version = 7
    state.adopt(zeros(), zeros(), 7, 10**9, b"")
    state.settle_in_new_lineage(7, 6)
    assert state.unsent_base_version == 6


def test_the_same_lineage_further_on_caps_nothing() -> None:
    state = state_of()
    state.version = 7
    work(state, 10, 7)
    state.adopt(zeros(), zeros(), 15, 10**9, b"")
    state.settle_in_new_lineage(7, 7)
    assert (state.unsent_base_version, state.base_ceiling) == (7, None)


@pytest.mark.parametrize(("mode", "base"), [("carry", 20 - 3), ("sync", 20 - 2)])
def test_only_what_began_in_the_left_lineage_is_capped(mode: str, base: int) -> None:
    """The trainer hands over what it had begun, and then what it did on the new anchor."""
    state = state_of(mode)
    state.version = 30
    state.adopt(zeros(), zeros(), 20, 10**9, b"")
    state.settle_in_new_lineage(30, None)
    work(state, 10, 30)
    assert state.send(1)[0].base_version == base
    state.take_back()
    state.drop_waiting()
    work(state, 10, 20)
    assert state.send(2)[0].base_version == 20


# --- in whole swarms ---

START = tuple(Fault(1.0 + 0.3 * number, "start", (number,)) for number in range(5))


@pytest.mark.parametrize("heal_at", sampled([43.0, 53.0], one_in=2))
def test_no_peer_of_a_split_swarm_refuses_another_when_it_is_one_again(heal_at: float) -> None:
    """A fast peer alone, and four slow ones: their versions have other numbers and other times."""
    seen: list[Event] = []

    def profile(step_seconds: float) -> PeerSpec:
        return PeerSpec("all", LineSettings(2e7, 1e8, 0.03, 0.0), step_seconds)

    spec = SimulationSpec(
        num_peers=5,
        inner_steps=10,
        seed=0,
        manifest=tiny_manifest(0),
        faults=(*START, Fault(20.0, "partition", (0,)), Fault(heal_at, "heal")),
        profiles=(profile(0.4), *[profile(0.9)] * 4),
        duration_seconds=80.0,
        workload=LIGHT_WORK,
    )
    result = simulate(spec, lambda index, event: seen.append(event))
    assert result.violations == ()
    assert [event for event in seen if isinstance(event.fact, AnchorRepair) and event.fact.is_done], (
        "the sides never differed"
    )
    assert [event.fact.reason for event in seen if isinstance(event.fact, RefusedPeer)] == []
