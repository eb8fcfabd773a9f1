"""A scenario with hostile peers of one kind."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulator.scenarios.scenario import Scenario

NUM_HONEST = 8


def scenario_of(kinds: Sequence[str], num_honest: int = NUM_HONEST) -> Scenario:
    hostile = {kind: {"count": 1, "lie": kind, "upload_mbit_per_second": 60} for kind in kinds}
    return Scenario.model_validate(
        {
            "duration_minutes": 1.5,
            "workload": {"num_values": 10_000, "learning_rate": 0.1},
            "averaging": {
                "sync_every": 8,
                "num_fragments": 1,
                "combine": "centered_clip",
                "outer_lr": 0.5,
                "round_deadline_seconds": 20.0,
            },
            "groups": {
                "honest": {"count": num_honest - 1},
                "late": {"count": 1, "joins_at_minute": 0.5},
                **hostile,
            },
        }
    )
