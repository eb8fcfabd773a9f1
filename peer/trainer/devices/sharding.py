"""Shards a model over the processes of one peer: FSDP2 (arXiv 2304.11277, `torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

import torch
from torch import nn

from dht.errors import UsageFault


def check_can_shard(optimizer: str, *, has_adapter: bool = False, has_buffers: bool = False) -> None:
    """Whether an inner optimizer works on rows of matrices, and a model can be cut into them.

    Raises:
        UsageFault: it needs whole matrices, there is an adapter beside weights of another type, or running statistics
            are averaged.
    """
    if has_buffers:
        raise UsageFault(
            "the run averages running statistics, of which --shard leaves each process its own; expected a run without "
            "them; train without --shard: every device then holds the whole model"
        )
    if has_adapter:
        raise UsageFault(
            "the run trains an adapter beside a frozen base, which --shard cannot divide; expected a run that trains "
            "all of its model; train without --shard: the adapter itself takes little memory"
        )
    if optimizer == "muon":
        raise UsageFault(
            "the run's inner optimizer is muon, which needs whole matrices, and --shard leaves each process some of "
            "their rows; expected adamw; train without --shard: every device then holds the whole model"
        )


def shard(model: nn.Module, device: torch.device, *, offloads: bool) -> nn.Module:
    """Leave every process its rows of all parameters, on `device`; the same module, whole while a layer computes.

    Args:
        offloads: keep rows, gradients and the optimizer's state in host memory.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = (
        CPUOffloadPolicy(pin_memory=device.type == "cuda") if offloads and device.type == "cuda" else OffloadPolicy()
    )
    if device.type != "cuda" or not offloads:
        model = model.to(device)
    layers = getattr(model, "blocks", None)
    for layer in layers if isinstance(layers, nn.ModuleList) else ():
        fully_shard(layer, mesh=mesh, offload_policy=policy, reshard_after_forward=True)
    # Also the root: after a measurement without a backward pass its rows alone must be what counts.
    fully_shard(model, mesh=mesh, offload_policy=policy, reshard_after_forward=True)
    return model
