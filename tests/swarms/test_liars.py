"""Liars among real nodes in simulated swarms: what the others do about them, and that they suspect nobody honest."""

from __future__ import annotations

import dataclasses

import pytest

from peer.events.peer_events import RefusedPeer
from tests.kit.tiers import sampled
from tests.simulator.peer import simulated_identity
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, Lie, SimulationSpec, plan_churn, tiny_manifest
from tests.simulator.simulation import simulate

LIAR = 1


def swarm_with_liar(seed=7, **averaging):
    """Four peers of which one sends -10 times its work until it is killed; returns (result, refusals by the honest)."""
    refusals = []

    def on_event(index, event):
        if isinstance(event.fact, RefusedPeer) and index != LIAR:
            refusals.append(event.fact)

    spec = SimulationSpec(4, 130, seed, tiny_manifest(seed, **averaging), workload=LIGHT_WORK)
    profiles = [spec.profile(index) for index in range(4)]
    profiles[LIAR] = dataclasses.replace(profiles[LIAR], lie=Lie("sign_flipped"))
    # Before training ends: with nobody else at work, its lone commits would be the heaviest.
    death = Fault(spec.training_seconds - 1, "crash", (LIAR,))
    starts = tuple(Fault(1.0 + 0.3 * index, "start", (index,)) for index in range(4))
    return simulate(dataclasses.replace(spec, profiles=tuple(profiles), faults=(*starts, death)), on_event), refusals


def assert_only_the_liar_was_left_out(refusals, seed=7):
    """A member that repaired a fragment has lost the share that an auditor asks for: it may be noted once for that."""
    liar = simulated_identity(seed, LIAR).peer_id
    assert {event.remote for event in refusals if event.left_out_until is not None} == {liar}
    assert len([event for event in refusals if event.remote != liar]) <= 1


def test_a_swarm_with_a_robust_combination_learns_beside_a_liar():
    result, refusals = swarm_with_liar(combine="centered_clip")
    assert result.loss_last < 0.4 * result.loss_first
    assert result.anchors_equal
    assert_only_the_liar_was_left_out(refusals)


def test_the_same_liar_ruins_a_plain_mean():
    result, refusals = swarm_with_liar()
    assert not result.loss_last < 0.8 * result.loss_first
    assert not refusals


@pytest.mark.parametrize("combine", ["mean", "centered_clip"])
@pytest.mark.parametrize("seed", sampled([1, 2, 3], one_in=3))
def test_nobody_honest_is_refused(seed, combine):
    """Ten times slower peers, churn, a partition, restarts and broken streams.

    An audit whose stream broke may be noted once, as what it is: no answer. Nobody is left out for it.
    """
    manifest = tiny_manifest(seed, combine=combine, sync_every=8 + 8 * seed)
    faults = (
        *plan_churn(8, 45.0, 0.3, seed),
        Fault(15.0, "partition", (1, 3)),
        Fault(35.0, "heal"),
        Fault(40.0, "restart_network", (4,)),
        Fault(25.0, "stall", (5,)),
        Fault(33.0, "resume", (5,)),
    )
    pace = {"step_seconds": (0.4, 4.0), "stream_loss": 0.05}
    spec = SimulationSpec(8, 100, seed, manifest, faults, workload=LIGHT_WORK, **pace)
    refusals = []
    result = simulate(
        spec, lambda index, event: refusals.append(event) if isinstance(event.fact, RefusedPeer) else None
    )
    assert result.rounds_committed > 0
    assert len(refusals) <= 1
    assert all(event.fact.kinds == ("evasive",) and event.fact.left_out_until is None for event in refusals)
