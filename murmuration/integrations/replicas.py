"""Several processes that train one module together (DDP, arXiv 2006.15704) as one peer of a run.

The process of rank 0 joins; the others hold the same parameters and take the same steps. What the swarm changes in
those of rank 0 is sent to the others, after the step in which it happened. The processes talk over the default group of
`torch.distributed`; without one there is nothing to do.
"""

from __future__ import annotations

import torch
from torch import distributed, nn

from murmuration import Swarm, UsageFault


class Replicas:
    """The processes that hold `module`; all of them make one and call the same methods in the same order.

    Args:
        module: the same in each, on its device; sharded ones (FSDP, DeepSpeed) are refused.

    Raises:
        UsageFault: the module is sharded.
    """

    def __init__(self, module: nn.Module) -> None:
        if any(hasattr(parameter, "placements") for parameter in module.parameters()):
            raise UsageFault(
                "the module's parameters are shared out among processes, as FSDP does; expected whole ones in each, as "
                "with DDP; use that, or one device."
            )
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._seen = -1

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that joins."""
        return not _is_distributed() or distributed.get_rank() == 0

    @torch.no_grad()
    def follow(self, swarm: Swarm | None) -> bool:
        """Once after joining and after every inner step: take over what rank 0 got. Returns whether all shall stop.

        Args:
            swarm: that of rank 0; None in the others.
        """
        if swarm is None and self.is_main:
            return True
        merges = 0 if swarm is None else swarm.training.link.num_merges
        has_changed, stops = merges != self._seen, swarm is not None and swarm.should_stop
        self._seen = merges
        if not _is_distributed():
            return stops
        device = self._parameters[0].device
        said = torch.tensor([has_changed, stops], dtype=torch.int32, device=device)
        distributed.broadcast(said, 0)
        if bool(said[0]):
            for parameter in self._parameters:
                distributed.broadcast(parameter.data, 0)
        return bool(said[1])


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()
