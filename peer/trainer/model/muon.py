"""Muon: momentum whose matrices are orthogonalised before they are applied; AdamW for all other parameters.

The iteration and its coefficients are from https://kellerjordan.github.io/posts/muon. The step length and the decoupled
weight decay are from arXiv 2502.16982, section 2.2, so that a rate tuned for AdamW fits. As the inner optimizer of
DiLoCo: arXiv 2505.23725 (MuLoCo), whose outer gradients tolerate coarse codes better than AdamW's.

`torch.optim.Muon` (torch 2.9) makes the same steps, but iterates in bfloat16, which changes parameters by a percent of
each step. Its state has different names, so checkpoints of live runs would not fit. It accepts only matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ_STEPS = 5
DEFAULT_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_RMS_OF_ADAMW = 0.2
"""Root mean square of AdamW's typical step, in learning rates."""
_EPSILON = 1e-8


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return U V^T of matrix = U S V^T, roughly: after five steps the singular values are between about 0.7 and 1.2.

    matrix: [rows, columns], floating point, any device; the result has the same shape. All zeros stay zeros.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (x.norm() + 1e-7)
    first, third, fifth = _COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x.T if is_tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, for matrices; AdamW (arXiv 1711.05101) for the other parameters.

    For a matrix X [rows, columns] with gradient G:
    `V <- mu V + (1 - mu) G; X <- X - lr (0.2 sqrt(max(rows, columns)) U + decay X)`. U is the orthogonalised
    `(1 - mu) G + mu V`.

    Args:
        matrices: each [rows, columns]; may be empty.
        others: parameters of any shape.
        undecayed: parameters of any shape, without weight decay.
        momentum: momentum of the matrices. betas: decay of the two moments of all others.

    Raises:
        ValueError: a parameter in `matrices` is not a matrix, or a number is out of range.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter] = (),
        *,
        undecayed: Iterable[nn.Parameter] = (),
        lr: float = 3e-3,
        momentum: float = DEFAULT_MOMENTUM,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
    ) -> None:
        if lr < 0 or weight_decay < 0 or not all(0 <= rate < 1 for rate in (momentum, *betas)):
            raise ValueError(
                f"lr {lr}, weight_decay {weight_decay}, momentum {momentum}, betas {betas}; expected the first two not "
                "negative, the others at least 0 and below 1"
            )
        groups: list[dict[str, Any]] = [
            {"params": list(matrices), "is_orthogonalised": True},
            {"params": list(others), "is_orthogonalised": False},
            {"params": list(undecayed), "is_orthogonalised": False, "weight_decay": 0.0},
        ]
        for matrix in groups[0]["params"]:
            if matrix.dim() != 2:
                raise ValueError(f"a parameter of shape {tuple(matrix.shape)} is not a matrix; pass it in `others`")
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "weight_decay": weight_decay}
        super().__init__([group for group in groups if group["params"]], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one step of every parameter that has a gradient, in place."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            move = self._orthogonal_step if group["is_orthogonalised"] else self._adamw_step
            for parameter in group["params"]:
                if parameter.grad is not None:
                    move(parameter, parameter.grad, self.state[parameter], group)
        return loss

    @staticmethod
    def _orthogonal_step(matrix: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["velocity"] = torch.zeros_like(matrix)
        velocity, momentum, rate = state["velocity"], group["momentum"], group["lr"]
        velocity.lerp_(gradient, 1 - momentum)
        direction = orthogonalised(torch.lerp(gradient, velocity, momentum))
        matrix.mul_(1 - rate * group["weight_decay"])
        matrix.sub_(direction, alpha=rate * _RMS_OF_ADAMW * math.sqrt(max(matrix.shape)))

    @staticmethod
    def _adamw_step(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["num_steps"] = 0
            state["mean"], state["mean_square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["num_steps"] += 1
        (first, second), rate = group["betas"], group["lr"]
        mean, mean_square = state["mean"], state["mean_square"]
        mean.lerp_(gradient, 1 - first)
        mean_square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = mean_square.sqrt().div_(math.sqrt(1 - second ** state["num_steps"])).add_(_EPSILON)
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.addcdiv_(mean, scale, value=-rate / (1 - first ** state["num_steps"]))
