"""Parameters that a module has and does not train: a session goes on beside the same ones, or not at all.

What is trained beside a frozen base (an adapter, a head) is worth nothing beside another one, and nothing shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import nn

from dht.ground.errors import LocalFault
from peer.config.model_shapes import bare_name
from peer.trainer.devices.portion import is_sharded

NUM_SAMPLED = 4096
"""Values of each that are looked at: bases of billions take milliseconds, and another seed or file differs."""


@torch.no_grad()
def frozen_digests(module: nn.Module) -> dict[str, str]:
    """Bare name -> type, size and a digest of some values of each parameter without `requires_grad`."""
    found = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad or is_sharded(parameter) or parameter.layout is not torch.strided:
            continue
        flat = parameter.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // NUM_SAMPLED)].cpu().contiguous()
        digest = blake2b(some.view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()
        found[bare_name(name, module)] = f"{str(parameter.dtype).removeprefix('torch.')} {flat.numel()} {digest}"
    return found


def check_frozen(now: Mapping[str, str], before: object, where: str) -> None:
    """Compare with an earlier session's, as far as both have a parameter of that name and type.

    Raises:
        LocalFault: one has other values.
    """
    if not isinstance(before, Mapping):
        return
    earlier = {bare_name(str(name)): digest for name, digest in before.items()}
    for name, digest in now.items():
        was = earlier.get(name)
        if isinstance(was, str) and was.split()[:1] == digest.split()[:1] and was != digest:
            raise LocalFault(
                f"the frozen parameter {name!r} is not the one beside which this peer trained until now ({where}); "
                "expected the same values: load the same base model, or join with another data folder"
            )
