"""Muon for the convergence benchmark: momentum whose matrices are orthogonalised before they are applied.

After https://kellerjordan.github.io/posts/muon (the iteration and its coefficients), with the step length of
arXiv 2502.16982, section 2.2, so that AdamW's learning rate and weight decay fit it. As an inner optimizer:
arXiv 2505.23725.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

NEWTON_SCHULZ_STEPS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_RMS_OF_ADAMW = 0.2
"""Root mean square of AdamW's usual step, in learning rates."""


def orthogonalised(matrix: Tensor) -> Tensor:
    """U V^T of matrix = U S V^T, roughly: five steps leave the singular values between about 0.7 and 1.2.

    matrix: float32 [rows, columns], not all zero; so is the result.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (x.norm() + 1e-7)
    first, third, fifth = _COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x.T if is_tall else x


class Muon:
    """Nesterov momentum, orthogonalised, on matrices [rows, columns]; their `grad` is read, they change in place."""

    def __init__(self, matrices: Iterable[nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        self._matrices = list(matrices)
        self._velocities = [torch.zeros_like(matrix) for matrix in self._matrices]
        self._momentum = momentum
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One step of all matrices."""
        for matrix, velocity in zip(self._matrices, self._velocities, strict=True):
            assert matrix.grad is not None
            velocity.lerp_(matrix.grad, 1 - self._momentum)
            direction = orthogonalised(torch.lerp(matrix.grad, velocity, self._momentum))
            matrix.mul_(1 - learning_rate * self._weight_decay)
            matrix.sub_(direction, alpha=learning_rate * _RMS_OF_ADAMW * math.sqrt(max(matrix.shape)))
