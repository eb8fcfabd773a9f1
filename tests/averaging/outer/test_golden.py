"""Golden trajectories of every mode on a tiny quadratic, equal to the last bit on every machine.

`pytest tests/averaging/outer/test_golden.py --regenerate-golden` writes them anew: only after a change that is meant to
change what training does, and then the difference belongs into the changelog.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from averaging.outer.outer_settings import OuterRule
from tests.kit.rounds.replicas import Replicas

GOLDEN = Path(__file__).parents[2] / "golden"
NUM_PEERS, SIZE, H, NUM_ROUNDS = 3, 12, 4, 6
START = torch.linspace(-1, 1, SIZE).numpy()
"""By torch, whose roundings are in the golden files; those of numpy's `linspace` are others."""
CODECS = ("fp32", "int4")

CASES = {
    "sync": {"rule": OuterRule("sync", 0.7, 0.9)},
    "eager": {"rule": OuterRule("eager", 0.7, 0.5)},
    "carry": {"rule": OuterRule("carry", 0.7, 0.5, overlay_gain=0.7)},
    "carry_gain1": {"rule": OuterRule("carry", 0.7, 0.5, overlay_gain=1.0)},
    "streaming_tau0_alpha0": {"rule": OuterRule("streaming", 0.7, 0.9), "tau": 0, "merge_alpha": 0.0},
    "streaming_tau2_alpha0": {"rule": OuterRule("streaming", 0.4, 0.5), "tau": 2, "merge_alpha": 0.0},
    "streaming_tau1_alpha05": {"rule": OuterRule("streaming", 0.7, 0.9), "tau": 1, "merge_alpha": 0.5},
    "streaming_tau3_alpha05": {"rule": OuterRule("streaming", 0.4, 0.5), "tau": 3, "merge_alpha": 0.5},
    "streaming_tau3_alpha09": {"rule": OuterRule("streaming", 0.4, 0.5), "tau": 3, "merge_alpha": 0.9},
}


class Quadratics:
    """Inner SGD on a quadratic per peer, in single multiplications and subtractions, so that the bits are portable."""

    def __init__(self):
        grid = np.arange(SIZE, dtype=np.float32)
        self.curvatures = [0.5 + 0.125 * ((grid + peer) % 5) for peer in range(NUM_PEERS)]
        self.optima = [0.25 * ((3 * grid + 2 * peer) % 7) - 0.5 for peer in range(NUM_PEERS)]

    def step(self, peer, values):
        values -= (values - self.optima[peer]) * self.curvatures[peer] * 0.125


def trajectory(codec, rule, tau=None, merge_alpha=0.0):
    """Anchors and the first peer's live values after each round, one round of delay (none in sync and streaming)."""
    problem, swarm = Quadratics(), Replicas(rule, codec, START, NUM_PEERS)
    references = [values.copy() for values in swarm.live]
    rounds = []
    for round_ in range(NUM_ROUNDS):
        for step in range(H):
            if tau is not None and round_ > 0 and step == tau:
                blend(swarm, references, merge_alpha)
            if tau is None and rule.mode != "sync" and round_ > 0 and step == H - 1:
                apply(swarm, references)
            for peer in range(NUM_PEERS):
                problem.step(peer, swarm.live[peer])
        for peer in range(NUM_PEERS):
            work = references[peer] - swarm.live[peer]
            before = swarm.live[peer].copy()
            swarm.send(peer, work, tokens=10 + peer, steps=H)
            # The reference moves to the live values, and with every change to them: so a merge is never taken for work.
            references[peer] = before + (swarm.live[peer] - before)
        if rule.mode == "sync":
            apply(swarm, references)
        rounds.append({"anchor": swarm.states[0].anchor.tolist(), "live": swarm.live[0].tolist()})
    return rounds


def apply(swarm, references):
    before = [values.copy() for values in swarm.live]
    swarm.commit()
    for peer, values in enumerate(swarm.live):
        references[peer] += values - before[peer]


def blend(swarm, references, merge_alpha):
    """What the trainer does in mode streaming: x <- merge_alpha x + (1 - merge_alpha) A, work measured from A on."""
    before = [values.copy() for values in swarm.live]
    swarm.commit()
    for peer, state in enumerate(swarm.states):
        swarm.live[peer] = before[peer] * merge_alpha + state.anchor * (1 - merge_alpha)
        references[peer] = state.anchor.copy()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("case", sorted(CASES))
def test_trajectory(case, codec, regenerate_golden):
    found = trajectory(codec, **CASES[case])
    path = GOLDEN / f"{case}_{codec}.json"
    if regenerate_golden:
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, separators=(",", ":")).replace('{"anchor"', '\n{"anchor"') + "\n")
        return
    golden = json.loads(path.read_text())
    for round_, (expected, got) in enumerate(zip(golden, found, strict=True)):
        assert got == expected, f"round {round_}"


def test_each_golden_file_belongs_to_a_case():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {f"{case}_{codec}" for case in CASES for codec in CODECS}


def distance(rounds):
    problem = Quadratics()
    total = sum(problem.curvatures)
    optimum = sum(c * o for c, o in zip(problem.curvatures, problem.optima, strict=True)) / total
    return float(np.linalg.norm(np.array(rounds[-1]["anchor"]) - optimum))


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_golden_runs_go_somewhere_sensible(case):
    """A file can be regenerated by mistake; these runs still have to approach the common optimum."""
    found = trajectory("int4", **CASES[case])
    start = [{"anchor": START.tolist()}]
    assert distance(found) < 0.5 * distance(start)
