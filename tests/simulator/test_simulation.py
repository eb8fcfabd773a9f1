"""The real node, exchange, membership and trainer in simulated swarms."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.round_facts import AttemptEnded, RoundCommitted
from peer.events.anchor_events import AnchorRepair
from peer.trainer.loop.mailbox_link import TrainerLink
from tests.kit.tiers import sampled
from tests.simulator import peer as simulated_peer
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, Lie, SimulationSpec, plan_churn, tiny_manifest
from tests.simulator.simulation import simulate


def spec_of(num_peers, inner_steps, seed, *faults, **averaging):
    manifest = tiny_manifest(seed, **averaging)
    return SimulationSpec(num_peers, inner_steps, seed, manifest, faults)


def assert_well(result):
    assert result.violations == (), f"seed {result.seed}"
    assert result.anchors_equal
    assert result.rounds_committed > 0


def with_churn(num_peers):
    spec = spec_of(num_peers, 24, 1)
    churn = plan_churn(num_peers, spec.training_seconds, 0.15, 1)
    return dataclasses.replace(spec, faults=churn, stream_loss=0.01)


@pytest.mark.parametrize("num_peers", sampled([5, 32], one_in=2))
def test_the_same_seed_gives_the_same_trace(num_peers):
    spec = dataclasses.replace(with_churn(num_peers), workload=LIGHT_WORK)
    assert spec.faults
    first, second = simulate(spec), simulate(spec)
    assert first.trace_hash == second.trace_hash
    assert dataclasses.replace(first, real_seconds=0.0) == dataclasses.replace(second, real_seconds=0.0)


@pytest.mark.parametrize("mode", ["sync", "streaming", "eager", "carry"])
def test_every_mode_learns(mode):
    spec = spec_of(3, 50, 5, mode=mode)
    result = simulate(spec if mode == "carry" else dataclasses.replace(spec, workload=LIGHT_WORK))
    assert_well(result)
    assert result.loss_last < (0.8 if mode == "carry" else 0.5) * result.loss_first
    assert min(result.versions) >= 3


def test_leader_and_reducer_die_in_mid_round_and_one_comes_late():
    events = []
    spec = spec_of(
        6,
        60,
        3,
        Fault(12.0, "crash_leader"),
        Fault(12.5, "start", (5,)),
        Fault(18.0, "crash_reducer"),
    )
    # Small shards, so that there are several reducers.
    spec = dataclasses.replace(spec, workload=LIGHT_WORK, min_shard_values=16)
    result = simulate(spec, lambda index, event: events.append(event))
    assert_well(result)
    assert result.num_live_peers == 4
    assert result.loss_last < 0.5 * result.loss_first
    assert result.events["AttemptEnded"] > 0
    assert result.events["Fetched"] >= 1
    hurt = [event for event in events if isinstance(event.fact, RoundCommitted) and event.fact.num_void_shards]
    assert hurt or any(isinstance(event.fact, AttemptEnded) for event in events)


def test_both_sides_of_a_partition_go_on_and_become_one_again():
    """Long enough for streams to break, and for both sides to commit rounds of their own."""
    repaired = []
    spec = spec_of(6, 100, 2, Fault(10.0, "partition", (1, 3, 5)), Fault(40.0, "heal"))
    result = simulate(
        dataclasses.replace(spec, workload=LIGHT_WORK),
        lambda index, event: (
            repaired.append(index) if isinstance(event.fact, AnchorRepair) and event.fact.is_done else None
        ),
    )
    assert_well(result)
    assert result.num_live_peers == 6
    assert repaired, "both sides had the same anchors; the partition was too short to test anything"
    assert result.loss_last < 0.5 * result.loss_first


RESTARTS = tuple(Fault(9.0 + 3.7 * number, "restart_network", (number % 3,)) for number in range(6))


@pytest.mark.parametrize("mode", ["carry", "eager"])
def test_a_network_process_that_is_killed_again_and_again_loses_no_work_of_the_trainer(mode):
    spec = dataclasses.replace(spec_of(3, 70, 4, *RESTARTS, mode=mode), workload=LIGHT_WORK, keeps_books=True)
    result = simulate(spec)
    assert_well(result)
    assert result.loss_last < 0.5 * result.loss_first


def test_the_checks_notice_live_parameters_that_drift(monkeypatch):
    """With the outbox forgotten at a restart, posted work would show twice: where some was posted just before one."""
    monkeypatch.setattr(TrainerLink, "_unabsorbed", lambda self, fragment: [])
    result = simulate(spec_of(3, 40, 4, *RESTARTS[:4], sync_every=3))
    assert any("live parameters" in sentence for sentence in result.violations)


def test_no_clock_and_no_system_randomness_is_read(monkeypatch):
    def forbidden(*_):
        raise AssertionError("the simulated path read a clock or the system's randomness")

    for module, name in ((time, "time"), (time, "monotonic"), (os, "urandom"), (secrets, "randbits")):
        monkeypatch.setattr(module, name, forbidden)
    result = simulate(spec_of(2, 10, 0))
    assert result.violations == ()


@given(st.integers(1, 64), st.floats(10.0, 1000.0), st.floats(0.0, 1.0), st.integers(0, 99))
def test_churn_hits_the_share_of_peers_asked_for_and_spares_the_first(num_peers, seconds, share, seed):
    faults = plan_churn(num_peers, seconds, share, seed)
    hit = {peer for fault in faults for peer in fault.peers}
    assert len(hit) == min(num_peers - 1, round(share * num_peers))
    assert 0 not in hit
    assert all(0.0 < fault.at_seconds < seconds for fault in faults)
    assert faults == plan_churn(num_peers, seconds, share, seed)


def test_a_liar_whose_harm_fails_is_reported(monkeypatch):
    async def fail():
        raise RuntimeError("no harm done")

    monkeypatch.setattr(simulated_peer, "turn_hostile", lambda *_: fail())
    spec = spec_of(2, 20, 7, Fault(0.0, "start", (0, 1)))
    honest = spec.profile(0)
    liar = dataclasses.replace(spec.profile(1), lie=Lie("lone_commits"))
    result = simulate(dataclasses.replace(spec, profiles=(honest, liar)))
    assert "peer 1: the harm ended: RuntimeError: no harm done" in result.violations
