"""Learning-rate schedulers for own loops that go by the run's clock instead of the peer's own steps.

The rate of each parameter group is the one that its optimizer was given to `join` with, times a share. The share is the
schedule of the manifest at the tokens that the swarm has committed, times the warm-up of this peer's own moments.
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
    """Share of the rate for the step after `age` steps of an optimizer: its moments are means of few gradients yet."""
    return min(1.0, (age + 1) / warmup_steps) if warmup_steps else 1.0


class RunScheduler(LRScheduler):
    """Sets the rates after each step of its optimizer, by itself; `step` does the same and may be called as usual.

    It has no state of its own: the run's clock and the age of the optimizer come back with the peer's checkpoint.

    Args:
        optimizer: whose rates are set, until `close`.
        base_rates: of each parameter group, at a share of 1.
        share: what to multiply them by for the coming step.
    """

    def __init__(self, optimizer: Optimizer, base_rates: Sequence[float], share: Callable[[], float]) -> None:
        self._share = share
        for group, rate in zip(optimizer.param_groups, base_rates, strict=True):
            group["initial_lr"] = rate
        super().__init__(optimizer)
        self._hook = optimizer.register_step_post_hook(lambda *_: self.step())

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rate of each group for the coming step."""
        share = self._share()
        return [rate * share for rate in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Take over the share as it is now."""
        self._set(self.get_lr())

    def state_dict(self) -> dict[str, Any]:
        """Nothing: a later session asks the run."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to take."""

    def close(self) -> None:
        """Leave the optimizer alone from now on, at its base rates."""
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
    """Those of one session. Made before a checkpoint gives the optimizers back the rates that they ended with."""

    def __init__(self, optimizers: Sequence[Optimizer], share: Callable[[], float]) -> None:
        self._share = share
        self._base_rates = {
            optimizer: [float(group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers
        }
        self._schedulers: dict[Optimizer, RunScheduler] = {}

    def of(self, optimizer: Optimizer) -> RunScheduler:
        """The scheduler of an optimizer, one for each.

        Raises:
            UsageFault: it was not given to `join`.
        """
        inner = innermost(optimizer)
        if inner not in self._base_rates:
            raise UsageFault(
                f"this {type(inner).__name__} was not given to join(); expected one of the {len(self._base_rates)} "
                "that were; give join() all optimizers of the module."
            )
        if inner not in self._schedulers:
            self._schedulers[inner] = RunScheduler(inner, self._base_rates[inner], self._share)
        return self._schedulers[inner]

    def close(self) -> None:
        """The session is over."""
        for scheduler in self._schedulers.values():
            scheduler.close()
        self._schedulers.clear()
