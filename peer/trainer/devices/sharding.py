"""Shares a model (FSDP2, arXiv 2304.11277) and the sequences of an inner step between the processes of one peer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dht.ground.errors import UsageFault


def check_can_shard(optimizer: str, *, base_bits: str = "full") -> None:
    """Whether an inner optimizer works on rows of matrices, and the weights can be cut into them.

    Args:
        base_bits: of the frozen weights; fewer than "full" are blocks of bitsandbytes, which no row boundary respects.

    Raises:
        UsageFault: one of them needs whole matrices.
    """
    if base_bits != "full":
        raise UsageFault(
            f"--base-bits {base_bits} and --shard are both given, and weights of so few bits are not cut into rows; "
            "expected one of them; with --shard alone each device holds its rows of the frozen weights too"
        )
    if optimizer == "muon":
        raise UsageFault(
            "the run's inner optimizer is muon, which needs whole matrices, and --shard leaves each process some of "
            "their rows; expected adamw; train without --shard: every device then holds the whole model"
        )


def shard(model: nn.Module, device: torch.device, *, offloads: bool) -> nn.Module:
    """Leave every process its rows of all parameters, on `device`; the same module, whole while a layer computes.

    Frozen parameters are cut as well: of a run that trains an adapter they are nearly all there is. Buffers stay whole,
    and each process has its own; those of rank 0 are sent, kept and measured, as with DDP.

    Args:
        offloads: keep rows, gradients and the optimizer's state in host memory.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = (
        CPUOffloadPolicy(pin_memory=device.type == "cuda") if offloads and device.type == "cuda" else OffloadPolicy()
    )
    if device.type == "cuda" and offloads:
        buffers_to(model, device)  # the policy brings rows there while a layer computes, and leaves buffers alone
    else:
        model = model.to(device)
    layers = getattr(model, "blocks", None)
    for layer in layers if isinstance(layers, nn.ModuleList) else ():
        fully_shard(layer, mesh=mesh, offload_policy=policy, reshard_after_forward=True)
    # Also the root: after a measurement without a backward pass its rows alone must be what counts.
    fully_shard(model, mesh=mesh, offload_policy=policy, reshard_after_forward=True)
    return model


def buffers_to(model: nn.Module, device: torch.device) -> None:
    """Move the buffers, such as running statistics and tables of positions, and nothing else."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


def check_division(num_sequences: int, num_ranks: int) -> None:
    """Every rank reads an equal share of a step.

    Raises:
        UsageFault: it cannot be divided so.
    """
    if num_sequences % num_ranks:
        divisors = [str(n) for n in range(1, min(num_sequences, 64) + 1) if num_sequences % n == 0]
        raise UsageFault(
            f"{num_ranks} devices cannot share an inner step of {num_sequences} sequences (batch_size times "
            f"accumulation_steps in the manifest) equally; expected {', '.join(divisors[:-1])} or {divisors[-1]}"
            if len(divisors) > 1
            else f"{num_ranks} devices cannot share an inner step of one sequence; expected one device"
        )


def own_share(positions: NDArray[np.int64], rank: int, num_ranks: int) -> NDArray[np.int64]:
    """The part of a step's blocks that one rank reads: every `num_ranks`-th, so that no two ranks read the same."""
    return positions[rank::num_ranks]
