"""Rounds that could be shorter than the way to the others, or than a busy machine lets a peer sleep."""

from __future__ import annotations

import random

import pytest

from averaging.rounds.round_facts import RoundCommitted
from tests.kit.tiers import sampled
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

STEP_SECONDS = 0.05
SYNC_EVERY = 2
BUSY_FROM = 4.0


def share_of_common_rounds(seed, seconds, latency_seconds, *faults, after):
    """Of the commits that anybody applies after that virtual second, the part with both trainers in it."""
    manifest = tiny_manifest(seed, sync_every=SYNC_EVERY, num_fragments=1, outer_lr=0.3)
    spec = SimulationSpec(
        2,
        0,
        seed,
        manifest,
        faults,
        step_seconds=(STEP_SECONDS, STEP_SECONDS),
        latency_seconds=(latency_seconds, latency_seconds),
        duration_seconds=seconds,
        workload=LIGHT_WORK,
    )
    began, commits = [], []

    def on_event(index, event):
        began.append(event.at)
        if isinstance(event.fact, RoundCommitted) and after <= event.at - began[0] < seconds:
            commits.append(len(event.fact.contributors) == 2)

    result = simulate(spec, on_event)
    assert result.violations == ()
    assert len(commits) >= 20
    return sum(commits) / len(commits)


@pytest.mark.parametrize(("latency_seconds", "after"), sampled([(0.1, 20.0), (0.05, 20.0), (0.3, 60.0)], 3))
def test_two_whose_rounds_would_be_shorter_than_a_round_trip_train_together(latency_seconds, after):
    assert share_of_common_rounds(1, after + 15.0, latency_seconds, after=after) > 0.95


def test_they_find_each_other_again_after_each_trained_alone():
    faults = (Fault(12.0, "partition", (1,)), Fault(24.0, "heal"))
    assert share_of_common_rounds(1, 70.0, 0.1, *faults, after=45.0) > 0.95


def test_two_on_a_busy_machine_are_in_most_rounds_together():
    """Each runs a fifth of the time, and now and then not at all for some seconds."""
    shares = [share_of_common_rounds(seed, 50.0, 0.005, *naps(seed, 50.0), after=10.0) for seed in range(2)]
    assert sum(shares) / len(shares) > 0.7, shares


def naps(seed, until):
    """When the processes of two peers get no processor, and when they get it back."""
    chance = random.Random(f"busy machine {seed}")
    faults = []
    for peer in range(2):
        at = BUSY_FROM
        while at < until:
            asleep = chance.uniform(3.0, 8.0) if chance.random() < 0.02 else chance.uniform(0.08, 0.8)
            faults += [Fault(at, "sleep", (peer,)), Fault(at + asleep, "wake", (peer,))]
            at += asleep + chance.uniform(0.02, 0.2)
    return tuple(sorted(faults, key=lambda fault: fault.at_seconds))
