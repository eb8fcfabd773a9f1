"""The run's clock in a simulated swarm: one rate for all peers, whenever they came, and it never goes back."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from peer.config.access_sections import ChangeSection
from peer.config.learning_rate_schedule import FLOOR, Cooldown, ScheduleSection, rate_factor
from peer.config.manifest import RunManifest
from peer.events.anchor_events import AnchorRepair
from peer.events.peer_events import Event, RefusedPeer, TrainingProgressed
from tests.simulator.peer import EPOCH_SECONDS
from tests.simulator.scenarios.spec import Fault, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

SEED = 3
TRAINING = tiny_manifest(SEED).training
SCHEDULE = ScheduleSection(kind="cosine", tokens=24_000)


def scheduled(schedule: ScheduleSection) -> RunManifest:
    manifest = tiny_manifest(SEED)
    return manifest.model_copy(update={"training": TRAINING.model_copy(update={"schedule": schedule})})


def told(spec: SimulationSpec, repaired: list[int] | None = None) -> dict[int, list[tuple[float, TrainingProgressed]]]:
    """What each peer says of its training, with the virtual second in which it does; `repaired` gets their indices."""
    found: dict[int, list[tuple[float, TrainingProgressed]]] = {index: [] for index in range(spec.num_peers)}

    def on_event(index: int, event: Event) -> None:
        if isinstance(event.fact, TrainingProgressed) and event.fact.learning_rate is not None:
            found[index].append((event.at - EPOCH_SECONDS, event.fact))
        if isinstance(event.fact, AnchorRepair) and event.fact.is_done and repaired is not None:
            repaired.append(index)

    assert simulate(spec, on_event).violations == ()
    return found


@pytest.fixture(scope="module")
def churn() -> dict[int, list[tuple[float, TrainingProgressed]]]:
    """Four peers: one comes late, one crashes and comes back with nothing, one is cut off for a while."""
    faults = (
        Fault(0.0, "start", (0, 1, 2)),
        Fault(40.0, "partition", (2,)),
        Fault(60.0, "crash", (1,)),
        Fault(70.0, "heal", (2,)),
        Fault(80.0, "start", (1,)),
        Fault(120.0, "restart_network", (0,)),
        Fault(150.0, "start", (3,)),
    )
    spec = SimulationSpec(4, 0, SEED, scheduled(SCHEDULE), faults=faults, duration_seconds=200.0)
    return told(replace(spec, step_seconds=(0.8, 1.6)))


def test_a_repair_to_a_lighter_lineage_leaves_the_clock_where_it_was() -> None:
    spec = SimulationSpec(3, 0, SEED, scheduled(SCHEDULE), duration_seconds=75.0)
    slow, fast = (replace(spec.profile(0), step_seconds=seconds) for seconds in (1.0, 0.25))
    # Two against one: the fast peer gives in, though its lineage holds more tokens.
    faults = (Fault(0.0, "start", (0, 1, 2)), Fault(20.0, "partition", (2,)), Fault(45.0, "heal", (2,)))
    repaired: list[int] = []
    facts = told(replace(spec, profiles=(slow, slow, fast), faults=faults), repaired)[2]
    assert 2 in repaired
    alone = [fact for at, fact in facts if 20.0 < at < 45.0]
    assert alone[-1].run_tokens > alone[0].run_tokens + 2_000
    clocks = [fact.run_tokens for _, fact in facts]
    assert clocks == sorted(clocks)
    rates = [fact.learning_rate or 0.0 for _, fact in facts if fact.inner_steps > TRAINING.warmup_steps]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(rates[2:]))


def test_a_cool_down_is_the_same_on_every_peer_also_on_one_that_comes_later() -> None:
    cooldown = Cooldown(10_000, 8_000)
    change = ChangeSection(at_version=6, cooldown_from=cooldown.from_tokens, cooldown_tokens=cooldown.tokens)
    flat = ScheduleSection()
    manifest = scheduled(flat).model_copy(update={"revision": 2, "changes": (change,)})
    faults = (Fault(0.0, "start", (0, 1)), Fault(55.0, "start", (2,)))
    facts = told(SimulationSpec(3, 0, SEED, manifest, faults=faults, duration_seconds=95.0))
    for index in range(3):
        clock = facts[index][-1][1].run_tokens
        assert clock > 18_000
        assert facts[index][-1][1].learning_rate == pytest.approx(0.1 * TRAINING.learning_rate)
        began = [fact for _, fact in facts[index] if fact.inner_steps > TRAINING.warmup_steps]
        # A commit may have come between the step and the event.
        for before, after in itertools.pairwise(began):
            shares = [rate_factor(flat, fact.run_tokens, cooldown) for fact in (before, after)]
            assert after.learning_rate is not None
            assert shares[1] - 1e-9 <= after.learning_rate / TRAINING.learning_rate <= shares[0] + 1e-9
    newcomer = [fact for _, fact in facts[2]]
    assert newcomer[0].run_tokens > cooldown.from_tokens


def test_at_the_floor_a_robust_run_goes_on_and_nobody_is_refused() -> None:
    manifest = scheduled(ScheduleSection(kind="cosine", tokens=6_000))
    robust = manifest.averaging.model_copy(update={"combine": "centered_clip"})
    refused: list[str] = []

    def on_event(_: int, event: Event) -> None:
        if isinstance(event.fact, RefusedPeer):
            refused.append(event.sentence())

    spec = SimulationSpec(4, 0, SEED, manifest.model_copy(update={"averaging": robust}), duration_seconds=55.0)
    result = simulate(spec, on_event)
    assert (result.violations, refused) == ((), [])
    assert result.rounds_failed == 0


def test_no_peers_clock_goes_back(churn: dict[int, list[tuple[float, TrainingProgressed]]]) -> None:
    for index, facts in churn.items():
        clocks = [fact.run_tokens for _, fact in facts]
        assert len(clocks) > 5, index
        lives = 2 if index == 1 else 1
        assert sum(later < earlier for earlier, later in itertools.pairwise(clocks)) < lives


def test_a_peer_that_comes_at_the_end_never_has_more_than_the_swarms_rate(
    churn: dict[int, list[tuple[float, TrainingProgressed]]],
) -> None:
    began = churn[3][0][1].run_tokens
    assert 0.85 * 24_000 < began < 24_000
    shares = [fact.learning_rate / TRAINING.learning_rate for _, fact in churn[3] if fact.learning_rate is not None]
    assert max(shares) <= rate_factor(SCHEDULE, began)
    assert shares[-1] == pytest.approx(FLOOR)


def test_a_peer_that_comes_back_with_nothing_warms_its_moments_up_and_has_the_swarms_rate(
    churn: dict[int, list[tuple[float, TrainingProgressed]]],
) -> None:
    again = [fact for at, fact in churn[1] if at > 80.0]
    assert 0 < again[0].inner_steps <= TRAINING.warmup_steps
    assert again[0].run_tokens > 2_000
    warm = [fact for fact in again if fact.inner_steps > TRAINING.warmup_steps]
    for fact in warm:
        # A commit may have come between the step and the event.
        assert fact.learning_rate is not None
        assert fact.learning_rate >= TRAINING.learning_rate * rate_factor(SCHEDULE, fact.run_tokens) - 1e-12


def test_at_one_time_all_rates_are_alike(churn: dict[int, list[tuple[float, TrainingProgressed]]]) -> None:
    last = {index: facts[-1][1].learning_rate for index, facts in churn.items()}
    rates = [rate for rate in last.values() if rate is not None]
    assert len(rates) == 4
    assert rates == pytest.approx([FLOOR * TRAINING.learning_rate] * 4)
    # And in the middle of the cosine: the first three, after the cut-off one is back.
    middle = [next(fact for at, fact in churn[index] if at > 90.0).learning_rate for index in (0, 2)]
    assert middle[0] == pytest.approx(middle[1], rel=0.1)
