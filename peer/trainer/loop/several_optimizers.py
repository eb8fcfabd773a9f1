"""Combines the optimizers of one module: Muon for its matrices and AdamW for the rest, or one for each layer.

Together they hold every trained parameter. An inner step ends when each optimizer has stepped since the previous inner
step, in any order. With a generator that steps after every fifth step of its critic, an inner step is five critic
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dht.ground.errors import UsageFault

Optimizer = torch.optim.Optimizer

_INNER_NAMES = ("optimizer", "_optimizer", "_base_optimizer", "base_optimizer")
"""Attributes in which wrappers store the wrapped optimizer."""
_MAX_WRAPPERS = 8
MAX_STEPS_ALONE = 1000
"""Steps of one optimizer without a step of another: a WGAN makes up to 100 critic steps."""


class Optimizers:
    """Calls back around every inner step while hooked.

    Args:
        given: one or several optimizers, or wrappers around them.

    Attributes:
        all: the optimizers themselves, in the given order.
        layers: the optimizers and their wrappers.

    Raises:
        UsageFault: the optimizers do not hold all trained parameters of `module`, or one of them holds none.
    """

    def __init__(self, given: Optimizer | Sequence[Optimizer], module: nn.Module) -> None:
        several = [*given] if isinstance(given, Sequence) else [given]
        self.all = tuple(innermost(optimizer) for optimizer in several)
        self.layers = tuple(layer for optimizer in several for layer in layers_of(optimizer))
        _check_held(self.all, module)
        self._steps = [0] * len(self.all)
        self._hooks: list[RemovableHandle] = []

    @property
    def learning_rate(self) -> float | None:
        """The rate of the first optimizer's first group; None if missing, or if reading it would wait for a device."""
        rate = self.all[0].param_groups[0].get("lr")
        if isinstance(rate, torch.Tensor):
            return float(rate) if rate.device.type == "cpu" else None
        return rate if isinstance(rate, int | float) else None

    def hook(self, before_step: Callable[[], None], after_step: Callable[[], None]) -> None:
        """Call `before_step` before each optimizer step, and `after_step` at the end of the step that completes an
        inner step.
        """

        def begins(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> None:
            before_step()

        def stepped(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> None:
            if self._is_complete(optimizer):
                after_step()

        for optimizer in self.all:
            self._hooks += [optimizer.register_step_pre_hook(begins), optimizer.register_step_post_hook(stepped)]

    def unhook(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _is_complete(self, optimizer: Optimizer) -> bool:
        number = next(place for place, one in enumerate(self.all) if one is optimizer)
        self._steps[number] += 1
        if all(self._steps):
            self._steps = [0] * len(self.all)
            return True
        if self._steps[number] >= MAX_STEPS_ALONE:
            idle = next(place for place, steps in enumerate(self._steps) if not steps)
            raise UsageFault(
                f"optimizer {number} ({type(optimizer).__name__}) has taken {MAX_STEPS_ALONE} steps and optimizer "
                f"{idle} ({type(self.all[idle]).__name__}) none; expected a step of each in every inner step; "
                "nothing was counted or sent meanwhile; step all of them in the loop, or give join() only the "
                "optimizers that the loop steps"
            )
        return False


def layers_of(optimizer: Any) -> list[Any]:
    """Return an optimizer and the optimizers that it wraps, outermost first."""
    layers: list[Any] = []
    while optimizer is not None and len(layers) < _MAX_WRAPPERS:
        layers.append(optimizer)
        inner = (getattr(optimizer, name, None) for name in _INNER_NAMES)
        optimizer = next((one for one in inner if one is not None), None)
    return layers


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside wrappers such as those of accelerate, Lightning's Fabric and timm.

    Some wrappers are subclasses of Optimizer, and even share attributes of the wrapped one, but torch runs an
    optimizer's hooks only if its own `__init__` has prepared `step`.

    Raises:
        UsageFault: the wrappers contain no `torch.optim.Optimizer` with hooks.
    """
    for layer in layers_of(optimizer):
        # Dicts for step hooks also exist in some wrappers whose `Optimizer.__init__` was not called.
        is_made = hasattr(layer, "_optimizer_state_dict_pre_hooks")
        if isinstance(layer, Optimizer) and is_made and getattr(type(layer).step, "hooked", False):
            return layer
    raise UsageFault(
        f"the optimizer is a {type(optimizer).__name__}, whose steps call no hooks; expected a torch.optim.Optimizer "
        "whose __init__ was called, or a wrapper with one as `optimizer`; give the optimizer itself."
    )


def _check_held(optimizers: Sequence[Optimizer], module: nn.Module) -> None:
    if not optimizers:
        raise UsageFault("there is no optimizer; expected at least one; give join() the optimizers that the loop steps")
    if len(set(map(id, optimizers))) < len(optimizers):
        raise UsageFault(
            f"{len(optimizers)} optimizers were given, one of them twice; expected each once; remove the duplicate"
        )
    trained = {id(parameter): name for name, parameter in module.named_parameters() if parameter.requires_grad}
    missing, holders = dict(trained), dict[int, int]()
    for number, optimizer in enumerate(optimizers):
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if len(optimizers) > 1 and not held & trained.keys():
            raise UsageFault(
                f"optimizer {number} ({type(optimizer).__name__}) has no trained parameter of the module; expected "
                "only the module's optimizers; leave out this one"
            )
        if twice := [key for key in held & trained.keys() if key in holders]:
            raise UsageFault(
                f"optimizers {holders[twice[0]]} and {number} both have parameter {trained[twice[0]]!r}; expected each "
                "parameter in one optimizer, because both would change it; remove it from one of them"
            )
        holders |= dict.fromkeys(held, number)
        missing = {key: name for key, name in missing.items() if key not in held}
    if missing:
        name, subject = next(iter(missing.values())), "the optimizer does"
        if len(optimizers) > 1:
            subject = f"the {len(optimizers)} optimizers together do"
        raise UsageFault(
            f"{subject} not have parameter {name!r}; expected all trained parameters of the module; create the "
            "optimizer from module.parameters(), give join() every optimizer of the module, or freeze that parameter"
        )
