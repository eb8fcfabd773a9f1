"""A small simulated swarm of two good peers and a third that may hinder them; what became of everybody's rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from averaging.rounds.round_facts import RoundCommitted, WorkLost
from peer.events.peer_events import Event
from tests.kit.network.limited_host import limit_uploads
from tests.simulator.peer import EPOCH_SECONDS, Life, simulated_identity
from tests.simulator.scenarios.scenario import Scenario
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.scenarios.spec import SimulationSpec
from tests.simulator.simulation import simulate

NUM_GOOD = 2
INTERVAL_SECONDS = 6.0
NUM_FRAGMENTS = 2
SEED = 1
STARTING_SECONDS = 45.0
"""Until lines and durations are known."""
MEASURED_SECONDS = 90.0


def scenario_of(**third: Any) -> Scenario:
    """Contributions of 58 kB, one for each of two fragments every 6 s: 155 kbit/s, with nothing reduced."""
    line = {"upload_mbit_per_second": 50, "download_mbit_per_second": 50, "step_seconds": 0.6}
    return Scenario.model_validate(
        {
            "duration_minutes": (STARTING_SECONDS + MEASURED_SECONDS) / 60,
            "workload": {"num_values": 235_000, "learning_rate": 0.1},
            "averaging": {"sync_every": 10, "num_fragments": NUM_FRAGMENTS},
            "groups": {
                "good": {"count": NUM_GOOD, **line, "joins_at_minute": 0.0},
                "third": {"count": 1, **line, "joins_at_minute": 0.05, **third},
            },
        }
    )


@dataclass
class Outcome:
    """Commits as the good peers saw them between start and end."""

    rounds: list[int] = field(default_factory=lambda: [0] * NUM_GOOD)
    num_with_third: int = 0
    num_lost: int = 0
    violations: tuple[str, ...] = ()

    @property
    def fewest(self) -> int:
        """Of a good peer."""
        return min(self.rounds)


def play(spec: SimulationSpec) -> Outcome:
    """Simulate, and look at the good peers from `STARTING_SECONDS` until training ends."""
    third, outcome = simulated_identity(SEED, NUM_GOOD).peer_id, Outcome()

    def note(index: int, event: Event) -> None:
        if index >= NUM_GOOD or not STARTING_SECONDS <= event.at - EPOCH_SECONDS <= STARTING_SECONDS + MEASURED_SECONDS:
            return
        if isinstance(event.fact, RoundCommitted):
            outcome.rounds[index] += 1
            outcome.num_with_third += third in event.fact.contributors
        outcome.num_lost += isinstance(event.fact, WorkLost)

    outcome.violations = simulate(spec, note).violations
    return outcome


def play_third(monkeypatch: pytest.MonkeyPatch, limit_mbit: float | None = None, **third: Any) -> Outcome:
    """The third peer with a line of its own, or with an upload limit that its owner set."""
    if limit_mbit is not None:
        host_of, run_node = Life._host, Life._run_node

        def limited_host(life):
            host = host_of(life)
            if life.profile.group == "third":
                limit_uploads(host, 1e6 * limit_mbit)
            return host

        async def run_limited(life, node, host):
            if life.profile.group == "third":
                node.links.limit(1e6 * limit_mbit, None)
            await run_node(life, node, host)

        monkeypatch.setattr(Life, "_host", limited_host)
        monkeypatch.setattr(Life, "_run_node", run_limited)
    return play(spec_of(scenario_of(**third), SEED))
