"""Muon, the other inner optimizer: its update against float64, which parameters it takes, its state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from peer.config.model_section import ModelSection
from peer.config.model_shapes import is_hidden_matrix
from peer.config.training_section import TrainingSection
from peer.trainer.model.gpt import build_model
from peer.trainer.model.inner_optimizer import make_optimizer
from peer.trainer.model.muon import Muon

RATE, MOMENTUM, DECAY, BETAS = 0.02, 0.9, 0.1, (0.9, 0.95)


def parameter(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


def newton_schulz(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Five times a X + (b A + c A^2) X with A = X X^T, the shorter side first."""
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


@settings(deadline=None)
@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 9), scale=st.floats(1e-4, 1e3))
def test_the_update_of_a_matrix_is_that_of_float64(rows: int, columns: int, seed: int, scale: float) -> None:
    matrix = parameter(rows, columns, seed=seed)
    optimizer = Muon([matrix], lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    expected = matrix.detach().double().numpy().copy()
    velocity = np.zeros_like(expected)
    for step in range(3):
        gradient = scale * torch.randn(rows, columns, generator=torch.Generator().manual_seed(100 + step))
        matrix.grad = gradient.clone()
        optimizer.step()
        wide = gradient.double().numpy()
        velocity = MOMENTUM * velocity + (1 - MOMENTUM) * wide
        direction = newton_schulz((1 - MOMENTUM) * wide + MOMENTUM * velocity)
        expected = expected - RATE * (0.2 * math.sqrt(max(rows, columns)) * direction + DECAY * expected)
    np.testing.assert_allclose(
        matrix.detach().numpy(), expected, atol=2e-4 * RATE * math.sqrt(max(rows, columns)) + 1e-6
    )


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it from 2.9 on")
@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_torch_s_own_takes_the_same_steps_within_bfloat16(shape: tuple[int, int]) -> None:
    """It iterates in bfloat16 and names its velocity otherwise, so that it cannot go on from our checkpoints."""
    start = parameter(*shape)
    mine, theirs = (nn.Parameter(start.detach().clone()) for _ in range(2))
    ours = Muon([mine], lr=RATE, weight_decay=DECAY)
    torchs = torch.optim.Muon([theirs], lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    for step in range(5):
        mine.grad = parameter(*shape, seed=100 + step).detach()
        theirs.grad = mine.grad.clone()
        ours.step()
        torchs.step()
    difference = float((mine - theirs).detach().norm() / (mine - start).detach().norm())
    assert 0 < difference < 0.02
    assert set(ours.state[mine]) != set(torchs.state[theirs])


def test_what_is_no_matrix_is_trained_as_torch_s_adamw_does() -> None:
    """Within float32: torch rounds in another order."""
    mine, theirs = [[parameter(7, 3), parameter(5, seed=1)] for _ in range(2)]
    muon = Muon([], mine[:1], undecayed=mine[1:], lr=RATE, betas=BETAS, weight_decay=DECAY)
    groups = [{"params": theirs[:1], "weight_decay": DECAY}, {"params": theirs[1:], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=RATE, betas=BETAS)
    for step in range(20):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(step))
            other.grad = one.grad.clone()
        muon.step()
        adamw.step()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_the_hidden_matrices_and_only_they_are_orthogonalised() -> None:
    model = build_model(ModelSection(num_layers=1, d_model=16, num_heads=2, context=8), 0)
    training = TrainingSection(optimizer="muon")
    optimizer = make_optimizer(model.named_parameters(), training)
    assert isinstance(optimizer, Muon)
    names = {parameter: name for name, parameter in model.named_parameters()}
    orthogonal, decayed, rest = ([names[one] for one in group["params"]] for group in optimizer.param_groups)
    assert orthogonal == [
        name for name, one in model.named_parameters() if name.startswith("blocks") and one.dim() == 2
    ]
    assert decayed == ["embedding.weight"]
    assert all(dict(model.named_parameters())[name].dim() == 1 for name in rest)
    assert {*orthogonal, *decayed, *rest} == set(names.values())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.1, 0.0]
    assert not is_hidden_matrix("blocks.0.norm.weight", (16,))


def test_a_state_that_was_saved_goes_on_bit_for_bit() -> None:
    def fresh() -> tuple[list[nn.Parameter], Muon]:
        parameters = [parameter(6, 4), parameter(5, seed=1)]
        return parameters, Muon(parameters[:1], parameters[1:], lr=RATE)

    def steps(parameters: list[nn.Parameter], optimizer: Muon, numbers: range) -> None:
        for number in numbers:
            for one in parameters:
                one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(number))
            optimizer.step()

    whole, whole_optimizer = fresh()
    steps(whole, whole_optimizer, range(8))
    first, first_optimizer = fresh()
    steps(first, first_optimizer, range(5))
    second, second_optimizer = fresh()
    second_optimizer.load_state_dict(first_optimizer.state_dict())
    for mine, theirs in zip(second, first, strict=True):
        mine.data.copy_(theirs)
    steps(second, second_optimizer, range(5, 8))
    assert all(torch.equal(one, other) for one, other in zip(whole, second, strict=True))
    # Without its state it would go elsewhere.
    assert any(not torch.equal(one, other) for one, other in zip(whole, first, strict=True))
