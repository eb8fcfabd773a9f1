"""A wall clock that is wrong from the start, or set in training: work goes on, or one sentence says what to do."""

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
from tests.kit.tiers import sampled
from tests.simulator.peer import EPOCH_SECONDS, Life, simulated_identity
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, SimulationSpec, tiny_manifest
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


MINUTES_5, HOUR, MONTH = 300.0, 3600.0, 30 * 86_400.0
WRONGS = [sign * seconds for seconds in (HOUR, MINUTES_5, MONTH) for sign in (-1, 1)]
SET_AT = 20.0
RECORD_SECONDS = 83.0
"""After so long the others have nothing of the peer but records that it dated after its clock was set."""


@pytest.mark.parametrize("seconds", sampled(WRONGS, one_in=3))
def test_a_clock_that_is_set_in_training_changes_no_round_and_loses_no_work(monkeypatch, seconds):
    course = play(monkeypatch, lambda now: seconds if now >= SET_AT else 0.0, num_steps=320)
    assert course.violations == ()
    assert course.share_with(WRONG, after=SET_AT, before=SET_AT + RECORD_SECONDS) >= 0.7
    assert course.share_with(WRONG, after=SET_AT + RECORD_SECONDS) >= 0.7
    assert not course.lost_tokens
    assert not course.warnings


@pytest.mark.parametrize("seconds", sampled(WRONGS, one_in=3))
def test_a_peer_whose_clock_is_wrong_from_the_start_waits_and_joins_when_it_is_set(monkeypatch, seconds):
    course = play(monkeypatch, lambda now: seconds if now < SET_AT else 0.0)
    assert course.violations == ()
    assert course.share_with(WRONG, after=0.0, before=SET_AT) == 0.0
    assert course.share_with(WRONG, after=SET_AT + 10.0) >= 0.7
    assert not course.lost_tokens
    assert len(course.warnings) == 1
    assert course.warnings[0].seconds_ahead == pytest.approx(seconds, abs=1.0)
    assert course.warnings[0].num_members == NUM_PEERS - 1


def test_ten_members_with_a_false_time_hold_nobody_up_and_move_no_clock(monkeypatch):
    course = play(monkeypatch, lambda now: 0.0, liars=lambda: [HOUR] * 10)
    assert course.share_with(WRONG, after=20.0) >= 0.7
    assert [round(warning.seconds_ahead) for warning in course.warnings] == [-HOUR]


class Clocks:
    """A clock check whose wall clock, steady clock and members are numbers."""

    def __init__(self, members):
        self.wall, self.steady, self.members, self.told = 1e9, 50.0, members, []
        self.clock = SwarmClock(lambda: self.wall, lambda: self.steady)
        self.check = ClockCheck(self.clock, lambda: [1e9 + ahead for ahead in self.members], self.told.append)


def test_the_clock_of_a_peer_counts_on_while_its_wall_clock_is_set():
    clocks = Clocks([0.0])
    clocks.steady += 10.0
    clocks.wall -= HOUR
    assert clocks.clock() == 1e9 + 10.0
    assert clocks.check.look()
    assert clocks.clock() == 1e9 + 10.0
    assert not clocks.told


def test_a_peer_goes_by_its_wall_clock_again_when_that_was_set_right_and_never_by_what_members_say():
    clocks = Clocks([-HOUR, -HOUR])
    assert not clocks.check.look()
    assert clocks.clock() == 1e9
    assert clocks.told == [ClockIsWrong(HOUR, 2)]
    clocks.wall -= HOUR
    assert clocks.check.look()
    assert clocks.clock() == 1e9 - HOUR
    assert len(clocks.told) == 1


@pytest.mark.parametrize(
    ("members", "goes_on", "is_told"),
    [
        ([], True, False),
        ([59.0, -59.0], True, False),
        ([HOUR], False, True),
        ([HOUR, 0.0], True, False),
        ([HOUR, HOUR, 0.0], True, True),
        ([HOUR, -HOUR], True, False),
        ([HOUR, -HOUR, MONTH], False, True),
    ],
)
def test_only_most_members_make_a_clock_wrong_and_one_at_its_side_lets_a_peer_go_on(members, goes_on, is_told):
    clocks = Clocks(members)
    assert clocks.check.look() is goes_on
    assert bool(clocks.told) is is_told
    assert clocks.clock() == 1e9


def test_a_wrong_clock_is_told_once_and_again_when_it_is_wrong_by_something_else():
    clocks = Clocks([HOUR])
    for _ in range(3):
        clocks.check.look()
    clocks.members = [2 * HOUR]
    clocks.check.look()
    assert clocks.told == [ClockIsWrong(-HOUR, 1), ClockIsWrong(-2 * HOUR, 1)]
    sentence = clocks.told[0].sentence()
    assert "1 h behind the clock of the one member" in sentence
    assert "set it" in sentence
