"""The optimizer of the built-in inner loop, as the manifest names it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

import torch
from torch import nn

from peer.config.layouts import is_hidden_matrix
from peer.trainer.model.muon import Muon


class OptimizerSettings(Protocol):
    """What an optimizer reads of the manifest's training section."""

    @property
    def optimizer(self) -> Literal["adamw", "muon"]: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...


def load_optimizers() -> None:
    """Load what torch loads with the first optimizer of a process: its compiler, most of a second's work."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])


def make_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]], settings: OptimizerSettings, *, fused: bool = False
) -> torch.optim.Optimizer:
    """AdamW (arXiv 1711.05101), or Muon (see `muon.py`) for the matrices between hidden layers with AdamW for the rest.

    Vectors do not decay: decaying norm gains only slows them down.

    Args:
        parameters: (name, parameter); those that need no gradient are left out.
        fused: use AdamW's fused kernels; Muon has none.
    """
    trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    decayed = [(name, parameter) for name, parameter in trained if parameter.dim() >= 2]
    vectors = [parameter for _, parameter in trained if parameter.dim() < 2]
    betas = (settings.beta1, settings.beta2)
    if settings.optimizer == "muon":
        hidden = [is_hidden_matrix(name, tuple(parameter.shape)) for name, parameter in decayed]
        return Muon(
            [parameter for (_, parameter), is_hidden in zip(decayed, hidden, strict=True) if is_hidden],
            [parameter for (_, parameter), is_hidden in zip(decayed, hidden, strict=True) if not is_hidden],
            undecayed=vectors,
            lr=settings.learning_rate,
            betas=betas,
            weight_decay=settings.weight_decay,
        )
    groups = [
        {"params": [parameter for _, parameter in decayed], "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=settings.learning_rate, betas=betas, fused=fused
    )
