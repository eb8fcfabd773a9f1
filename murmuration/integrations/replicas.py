"""Several processes that train one module together (DDP, arXiv 2006.15704) as one peer of a run.

The process of rank 0 joins the run; the other processes hold the same parameters and make the same steps. After each
step, rank 0 sends the parameters that the swarm has changed to the other processes. The processes communicate over the
default group of `torch.distributed`; without a group there is only one process.
"""

from __future__ import annotations

import torch
from torch import distributed, nn

from murmuration import Swarm, UsageFault


class Replicas:
    """The processes that hold `module`; each process creates a `Replicas` and calls the same methods in the same order.

    Args:
        module: the same module in each process, on its device; a sharded module (FSDP, DeepSpeed) is refused.

    Raises:
        UsageFault: the module is sharded.
    """

    def __init__(self, module: nn.Module) -> None:
        if any(hasattr(parameter, "placements") for parameter in module.parameters()):
            raise UsageFault(
                "the module's parameters are split among processes, as with FSDP; expected complete parameters in each "
                "process, as with DDP; use DDP, or one device."
            )
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._seen = -1

    @property
    def is_main(self) -> bool:
        """Whether this process joins the run."""
        return not _is_distributed() or distributed.get_rank() == 0

    @torch.no_grad()
    def follow(self, swarm: Swarm | None) -> bool:
        """Copy the changed parameters of rank 0 to this process, and return whether all processes should stop.

        Call this method once after joining, and after each inner step.

        Args:
            swarm: the session of rank 0; None in the other processes.
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
