"""Whole simulated nodes, one of which has a wall clock that is wrong, or that its owner sets while it trains."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from averaging.rounds.round_facts import RoundCommitted, WorkLost
from dht.ground.clocks import SwarmClock
from peer.events.peer_events import ClockIsWrong, Event
from peer.network.membership.clock_check import ClockCheck
from peer.network.node.node_inputs import NodePorts
from tests.kit.simulated.light_work import LIGHT_WORK
from tests.simulator.peer import EPOCH_SECONDS, Life, simulated_identity
from tests.simulator.scenarios.spec import Fault, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

NUM_PEERS, WRONG = 4, 1
SEED = 4


@dataclass
class Course:
    """What the peers saw: of each commit who was in it, and what the peer with the wrong clock was told and lost."""

    commits: dict[tuple[int, int, int], tuple[str, ...]] = field(default_factory=dict)
    """(peer, fragment, version) -> contributors."""
    committed_at: dict[tuple[int, int, int], float] = field(default_factory=dict)
    warnings: list[ClockIsWrong] = field(default_factory=list)
    lost_tokens: int = 0
    violations: tuple[str, ...] = ()

    def share_with(self, member: int, after: float, before: float = float("inf")) -> float:
        """Of the commits that the other peers saw between two times those in which `member` was."""
        peer_id = simulated_identity(SEED, member).peer_id
        seen = [
            peer_id in contributors
            for key, contributors in self.commits.items()
            if key[0] != member and after <= self.committed_at[key] < before
        ]
        return sum(seen) / len(seen)


def play(
    monkeypatch: pytest.MonkeyPatch,
    ahead: Callable[[float], float],
    num_steps: int = 120,
    liars: Callable[[], Sequence[float]] = tuple,
) -> Course:
    """Simulate four peers, of which one has a wall clock `ahead(virtual seconds)` seconds ahead.

    Args:
        num_steps: inner steps of 0.4 s.
        liars: returns by how many seconds the clocks of further members are ahead; they only answer.
    """
    course, wrong = Course(), simulated_identity(SEED, WRONG).peer_id
    checks: dict[int, ClockCheck] = {}

    def with_swarm_clock(
        host: Any, store: Any, policy: Any, wall_clock: Any, clock: Any, *more: Any, **named: Any
    ) -> NodePorts:
        def wall() -> float:
            return float(wall_clock()) + (ahead(clock()) if host.peer_id == wrong else 0.0)

        swarm_clock = SwarmClock(wall, clock)
        store._records.clocks[host.peer_id] = swarm_clock

        def read() -> list[float]:
            return [*store.member_clocks(), *(wall_clock() + seconds for seconds in liars())]

        def report(fact: Any) -> None:
            assert isinstance(fact, ClockIsWrong)
            if host.peer_id == wrong:
                course.warnings.append(fact)

        ports = NodePorts(host, store, policy, swarm_clock, clock, *more, **named)
        checks[id(ports)] = ClockCheck(swarm_clock, read, report)
        return ports

    async def settle_and_run(life: Life, node: Any, host: Any) -> None:
        await checks[id(node.ports)].settle(lambda: asyncio.sleep(0))
        await node.run()
        await host.close()

    def note(index: int, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, RoundCommitted):
            key = (index, fact.fragment, fact.version)
            course.commits[key] = tuple(fact.contributors)
            course.committed_at[key] = event.at - EPOCH_SECONDS
        elif index == WRONG and isinstance(fact, WorkLost):
            course.lost_tokens += fact.tokens

    monkeypatch.setattr("tests.simulator.peer.NodePorts", with_swarm_clock)
    monkeypatch.setattr(Life, "_run_node", settle_and_run)
    spec = SimulationSpec(NUM_PEERS, num_steps, SEED, tiny_manifest(SEED), workload=LIGHT_WORK)
    starts = tuple(
        Fault(0.5 * (index != WRONG) + 3.0 * (index == WRONG), "start", (index,)) for index in range(NUM_PEERS)
    )
    course.violations = simulate(dataclasses.replace(spec, faults=starts), note).violations
    return course
