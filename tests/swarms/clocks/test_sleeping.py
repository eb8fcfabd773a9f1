"""Machines that sleep for minutes and wake, in simulated swarms: nobody is left out, nobody forks, nobody lies."""

from __future__ import annotations

import dataclasses

import pytest

from peer.events.peer_events import RefusedPeer
from tests.kit.tiers import sampled
from tests.simulator.scenarios.scenario import load_scenario
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate


def refusals_of(spec):
    """(result, what honest peers held against honest peers)."""
    refusals = []
    result = simulate(
        spec, lambda index, event: refusals.append(event) if isinstance(event.fact, RefusedPeer) else None
    )
    return result, [event.fact.reason for event in refusals]


NIGHTS = [
    (8.0, 2, "centered_clip", 6),
    (15.0, 0, "mean", 12),
    (15.0, 1, "centered_clip", 12),
    (15.0, 2, "centered_clip", 12),
]


@pytest.mark.parametrize(("minutes", "seed", "combine", "num_laptops"), sampled(NIGHTS, one_in=len(NIGHTS)))
def test_a_night_of_sleeping_laptops(minutes, seed, combine, num_laptops):
    night = load_scenario("laptops")
    averaging = night.averaging.model_copy(update={"combine": combine})
    groups = {**night.groups, "laptops": night.groups["laptops"].model_copy(update={"count": num_laptops})}
    chosen = {"duration_minutes": minutes, "averaging": averaging, "groups": groups}
    spec = spec_of(night.model_copy(update=chosen), seed)
    assert sum(fault.kind == "sleep" for fault in spec.faults) >= 0.1 * num_laptops * minutes
    result, refusals = refusals_of(spec)
    assert refusals == []
    assert result.violations == ()
    assert result.anchors_equal
    assert result.goodput >= 0.9  # of the tokens trained, those that are in the anchors


def test_everybody_asleep_at_once_goes_on_where_it_was():
    spec = SimulationSpec(4, 300, 3, tiny_manifest(3, combine="centered_clip"), workload=LIGHT_WORK)
    naps = tuple(
        fault
        for peer in range(4)
        for fault in (Fault(40.0 + peer, "sleep", (peer,)), Fault(160.0 + 3 * peer, "wake", (peer,)))
    )
    faults = tuple(sorted(naps, key=lambda fault: fault.at_seconds))
    result, refusals = refusals_of(dataclasses.replace(spec, faults=faults, duration_seconds=240.0))
    assert refusals == []
    assert result.violations == ()
    assert result.anchors_equal
    assert result.rounds_committed >= 40


def test_a_process_that_sleeps_does_nothing_and_loses_nothing():
    """Its steps stop, its clock goes on, and what was cancelled while it slept does not happen."""
    spec = SimulationSpec(2, 200, 5, tiny_manifest(5), workload=LIGHT_WORK)
    awake = simulate(dataclasses.replace(spec, duration_seconds=100.0))
    asleep = simulate(
        dataclasses.replace(
            spec, duration_seconds=100.0, faults=(Fault(20.0, "sleep", (0,)), Fault(80.0, "wake", (0,)))
        )
    )
    steps = awake.inner_steps - asleep.inner_steps
    assert 0.2 * awake.inner_steps < steps < 0.4 * awake.inner_steps
    assert asleep.violations == ()
