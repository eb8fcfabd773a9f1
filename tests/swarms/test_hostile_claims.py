"""Whole simulated swarms with a quarter of peers that claim what is not so: the honest ones learn on, together."""

from __future__ import annotations

import pytest

from tests.simulator.adversaries.claims import CLAIMS
from tests.simulator.scenarios.scenario import Scenario
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.simulation import simulate

HONEST, HOSTILE, MINUTES, TOKENS_PER_STEP = 5, 1, 1.5, 64


def _scenario(kind, seed):
    return Scenario.model_validate(
        {
            "seed": seed,
            "duration_minutes": MINUTES,
            "workload": {"num_values": 600, "tokens_per_step": TOKENS_PER_STEP, "learning_rate": 0.05, "noise": 0.2},
            "averaging": {
                "sync_every": 8,
                "num_fragments": 2,
                "round_deadline_seconds": 20.0,
                "combine": "centered_clip",
            },
            "groups": {
                "honest": {"count": HONEST - 1, "step_seconds": [0.5, 0.8]},
                "late": {"count": 1, "step_seconds": [0.5, 0.8], "joins_at_minute": 0.5 * MINUTES},
                "hostile": {"count": HOSTILE, "step_seconds": [0.5, 0.8], "lie": kind},
            },
        }
    )


@pytest.mark.parametrize("seed", [4])
@pytest.mark.parametrize("kind", sorted(CLAIMS - {"boasts", "pretends"}))
def test_a_swarm_beside_peers_that_claim_what_is_not_so(kind, seed):
    spec = spec_of(_scenario(kind, seed), seed)
    result = simulate(spec)
    assert result.violations == ()
    assert result.anchors_equal
    assert result.loss_last < 0.5 * result.loss_first
    # Of all that was trained no more is committed than there was: forged tokens are nowhere.
    assert 0.5 <= result.goodput <= 1.0
