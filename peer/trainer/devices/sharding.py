"""Divides a model (FSDP2, arXiv 2304.11277) and the sequences of an inner step among the processes of one peer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dht.ground.errors import UsageFault


def check_can_shard(optimizer: str, *, base_bits: str = "full") -> None:
    """Check that the inner optimizer works on rows of matrices, and that the weights can be divided into rows.

    Args:
        base_bits: bits of the frozen weights; fewer than "full" means blocks of bitsandbytes, which do not end at rows.

    Raises:
        UsageFault: the optimizer or the weights need whole matrices.
    """
    if base_bits != "full":
        raise UsageFault(
            f"--base-bits {base_bits} and --shard are both given, but weights of {base_bits} bits cannot be split into "
            "rows; expected one of them; with only --shard, each device holds its rows of the frozen weights"
        )
    if optimizer == "muon":
        raise UsageFault(
            "the run's inner optimizer is muon, which needs complete matrices, but with --shard each process has only "
            "some of their rows; expected adamw; train without --shard, so that every device holds the complete model"
        )


def shard(model: nn.Module, device: torch.device, *, offloads: bool) -> nn.Module:
    """Keep this process's rows of all parameters on `device`; return the same module, whose layers are whole while
    computing.

    Frozen parameters are divided too, because in a run that trains an adapter they are most of the parameters. Buffers
    stay whole on each process; rank 0's buffers are sent, saved and measured, as with DDP.

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
        buffers_to(model, device)  # the policy moves rows to the device while a layer computes, but no buffers
    else:
        model = model.to(device)
    layers = getattr(model, "blocks", None)
    for layer in layers if isinstance(layers, nn.ModuleList) else ():
        fully_shard(layer, mesh=mesh, offload_policy=policy, reshard_after_forward=True)
    # Also shard the root, so that after a measurement without a backward pass its live values are only its rows.
    fully_shard(model, mesh=mesh, offload_policy=policy, reshard_after_forward=True)
    return model


def buffers_to(model: nn.Module, device: torch.device) -> None:
    """Move only the buffers, such as running statistics and position tables."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


def check_division(num_sequences: int, num_ranks: int) -> None:
    """Check that a step can be divided equally among all ranks.

    Raises:
        UsageFault: the number of sequences is not a multiple of the number of ranks.
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
    """Return the blocks of a step that one rank reads: every `num_ranks`-th, so that no block is read twice."""
    return positions[rank::num_ranks]
