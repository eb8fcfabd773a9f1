"""What the members of a comparison average, and whether they did."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch

HEAD = 100_000
"""Values on which a mean is checked."""


def made_up_work(num_values: int, number: int, member: int) -> torch.Tensor:
    """Normal float32 [num_values], of the size of an outer gradient; its head can be made alone."""
    generator = torch.Generator().manual_seed(1000 * number + member)
    head = torch.randn(min(HEAD, num_values), generator=generator)
    rest = torch.randn(num_values - len(head), generator=generator)
    return torch.cat([head, rest]).mul_(1e-3)


def mean_of_heads(num_values: int, number: int, num_members: int) -> torch.Tensor:
    """The mean that all members should get, float32 [at most HEAD]."""
    heads = [made_up_work(min(HEAD, num_values), number, member) for member in range(num_members)]
    return torch.stack(heads).mean(0)


def outcome(mean: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """For the answer to a round: the error, and a digest of all values."""
    return {"error": relative_error(mean, expected), "digest": sha256(mean.numpy()).hexdigest()}


def relative_error(mean: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square error of the head, relative to the mean itself."""
    return float((mean[: len(expected)] - expected).norm() / expected.norm())
