"""Rules that are not the default, in whole simulated swarms: everybody computes the same."""

from __future__ import annotations

import dataclasses

import pytest

from tests.simulator.scenarios.spec import LIGHT_WORK, SimulationSpec, plan_churn, tiny_manifest
from tests.simulator.simulation import simulate

RULES = {
    "every bit": {"codec": "fp32"},
    "eager": {"mode": "eager", "outer_lr": 0.4, "staleness_limit": 1},
}


@pytest.mark.parametrize("rule", RULES)
def test_a_swarm_under_other_rules_agrees_and_learns(rule):
    manifest = tiny_manifest(3, **RULES[rule])
    spec = SimulationSpec(6, 40, 3, manifest, step_seconds=(0.4, 2.0), stream_loss=0.01, workload=LIGHT_WORK)
    spec = dataclasses.replace(spec, faults=plan_churn(6, spec.training_seconds, 0.2, 3))
    result = simulate(spec)
    assert result.violations == ()
    assert result.anchors_equal
    assert result.rounds_committed > 0
    assert result.loss_last < 0.7 * result.loss_first
