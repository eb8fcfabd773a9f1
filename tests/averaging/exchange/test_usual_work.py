"""Own work that no training makes: what is withheld, and what is not. And a whole swarm in which a bit flips."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from averaging.exchange.usual_work import UsualWork, length_of
from averaging.rounds.round_facts import PeerRefused, WorkLost
from peer.trainer.loop.mailbox_link import TrainerLink
from tests.simulator.scenarios.spec import LIGHT_WORK, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

STEPS = 10


def withheld(lengths, steps=STEPS):
    """Positions of those that are withheld, of works with these lengths, one after the other."""
    usual = UsualWork()
    return [at for at, length in enumerate(lengths) if usual.objection(length, steps)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param([1.0] * 9 + [10.0] * 9, [], id="a learning rate raised tenfold"),
        pytest.param([1e-6 * step for step in range(40)], [], id="a warm-up from zero"),
        pytest.param([0.0] * 20 + [1.0, 0.0, 2.0], [], id="a part that was frozen"),
        pytest.param([1e-9, 1.0, 1.0, 1.0, 1.0], [], id="a first step that was short"),
        pytest.param([1e12] * 9, [], id="work that is long from the beginning"),
        pytest.param([1.0] * 9 + [0.0, 1e-12, 1.0], [], id="a pause"),
        pytest.param([1.0] * 5 + [1001.0, 1.0, 2.0], [5], id="one that is a thousand times as long as usual"),
        *(
            pytest.param([length] * 20, list(range(20)), id=f"always {length}")
            for length in (2.0**65, math.inf, math.nan)
        ),
    ],
)
def test_only_work_that_no_training_makes_is_withheld(lengths, expected):
    assert withheld(lengths) == expected


def test_a_peer_whose_work_is_longer_for_good_goes_on_after_a_few_rounds():
    late = withheld([1.0] * 8 + [5000.0] * 8)
    assert late == list(range(8, 8 + len(late)))
    assert 0 < len(late) <= 5


def test_a_thousand_times_as_many_steps_may_make_work_as_much_longer():
    usual = UsualWork()
    assert not any(usual.objection(1.0, 1) for _ in range(8))
    assert not usual.objection(5000.0, 5000)
    assert usual.objection(5000.0 * 1001, 5000)


def test_lengths():
    values = np.random.default_rng(1).standard_normal(700_000, dtype=np.float32)
    assert length_of(values) == pytest.approx(float(np.linalg.norm(values.astype(np.float64))), rel=1e-6)
    values[9] = 1e30
    assert length_of(values) == math.inf


def flip_a_bit(monkeypatch, peer, at_step):
    """Flip the top bit of an exponent in the live parameters of one trainer, just before its step `at_step` ends."""
    links, flips = [], []
    after_inner_step = TrainerLink.after_inner_step

    def flipping(link, *args, **kwargs):
        if link not in links:
            links.append(link)
        if links.index(link) == peer and link.inner_steps + 1 == at_step:
            with torch.no_grad():
                live = next(iter(link.portion.live.values())).local
                live.view(torch.int32)[3] ^= 1 << 30
            flips.append(float(live[3]))
        after_inner_step(link, *args, **kwargs)

    monkeypatch.setattr(TrainerLink, "after_inner_step", flipping)
    return flips


@pytest.mark.parametrize(("mode", "num_peers"), [("sync", 1), ("sync", 2), ("streaming", 2), ("carry", 3)])
def test_a_bit_that_flips_in_one_machine_moves_nobody_and_its_owner_hears_of_it(monkeypatch, mode, num_peers):
    flips = flip_a_bit(monkeypatch, num_peers - 1, at_step=25)
    facts = []
    spec = SimulationSpec(num_peers, 50, 4, tiny_manifest(4, mode=mode, sync_every=5, num_fragments=1), ())
    result = simulate(replace(spec, workload=LIGHT_WORK), lambda index, event: facts.append((index, event.fact)))
    (flipped,) = flips
    assert abs(flipped) > 1e30
    assert result.violations == ()
    assert result.anchors_equal
    assert result.loss_last < 0.7 * result.loss_first
    withheld_at = {index for index, fact in facts if isinstance(fact, WorkLost) and fact.cause == "withheld"}
    assert len(withheld_at) == 1
    assert not [fact for _, fact in facts if isinstance(fact, PeerRefused)]
