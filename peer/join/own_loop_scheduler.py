"""Learning-rate schedulers for a user's own loop that follow the run's clock instead of this peer's steps.

The rate of each parameter group is its rate when the optimizer was passed to `join`, times a share. The share is the
manifest's schedule at the number of tokens that the swarm has committed, times the warm-up of this peer's moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from dht.ground.errors import UsageFault
from peer.trainer.loop.several_optimizers import innermost

Optimizer = torch.optim.Optimizer


def warm_up_share(age: int, warmup_steps: int) -> float:
    """Return the warm-up's share of the rate for the step after `age` steps of an optimizer.

    The share is below 1 while the optimizer's moments are means of only a few gradients.
    """
    return min(1.0, (age + 1) / warmup_steps) if warmup_steps else 1.0


class RunScheduler(LRScheduler):
    """Sets the rates automatically after each step of its optimizer; a loop may also call `step`, with the same effect.

    The scheduler has no state: the peer's checkpoint restores the run's clock and the age of the optimizer.

    Args:
        optimizer: the optimizer whose rates are set until `close`.
        base_rates: the rate of each parameter group at a share of 1.
        share: returns the share for the next step.
    """

    def __init__(self, optimizer: Optimizer, base_rates: Sequence[float], share: Callable[[], float]) -> None:
        self._share = share
        for group, rate in zip(optimizer.param_groups, base_rates, strict=True):
            group["initial_lr"] = rate
        super().__init__(optimizer)
        self._hook = optimizer.register_step_post_hook(lambda *_: self.step())

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return the rate of each parameter group for the next step."""
        share = self._share()
        return [rate * share for rate in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Set the rates for the current share."""
        self._set(self.get_lr())

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: a later session reads the share from the run."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: there is no state."""

    def close(self) -> None:
        """Restore the base rates, and stop changing the optimizer."""
        self._hook.remove()
        self._set(self.base_lrs)
        for group in self.optimizer.param_groups:
            group.pop("initial_lr", None)

    def _set(self, rates: list[float | torch.Tensor]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(float(rate))
            else:
                group["lr"] = rate
        self._last_lr = rates


class RunSchedulers:
    """The schedulers of a session. Created before a checkpoint restores the last rates of the optimizers."""

    def __init__(self, optimizers: Sequence[Optimizer], share: Callable[[], float]) -> None:
        self._share = share
        self._base_rates = {
            optimizer: [float(group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers
        }
        self._schedulers: dict[Optimizer, RunScheduler] = {}

    def of(self, optimizer: Optimizer) -> RunScheduler:
        """Return the scheduler of an optimizer, always the same object for the same optimizer.

        Raises:
            UsageFault: the optimizer was not passed to `join`.
        """
        inner = innermost(optimizer)
        if inner not in self._base_rates:
            raise UsageFault(
                f"this {type(inner).__name__} was not passed to join(); expected one of the {len(self._base_rates)} "
                "optimizers that were; pass all optimizers of the module to join()."
            )
        if inner not in self._schedulers:
            self._schedulers[inner] = RunScheduler(inner, self._base_rates[inner], self._share)
        return self._schedulers[inner]

    def close(self) -> None:
        """Close all schedulers, at the end of the session."""
        for scheduler in self._schedulers.values():
            scheduler.close()
        self._schedulers.clear()
