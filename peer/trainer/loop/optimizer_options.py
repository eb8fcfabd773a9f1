"""What an owner chose for an optimizer, and what it chose in the session of a checkpoint: a change is meant.

A checkpoint has the options of every parameter group as they were, a schedule's learning rate among them, and the
session goes on with these. But an option that its owner gives otherwise than last time is a choice: it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Options = Sequence[Mapping[str, Any]]
"""Of each parameter group, everything but its parameters."""


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The options as they are now; tensors among them as copies."""
    return [
        {
            name: value.detach().clone() if isinstance(value, Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def as_plain(options: Options) -> list[dict[str, Any]]:
    """The same as JSON gives it back; of what JSON cannot hold its text."""
    return [{name: _plain(value) for name, value in group.items()} for group in options]


def take_changed(optimizer: torch.optim.Optimizer, given: Options, given_before: Any) -> list[str]:
    """Put those options of `given` back into `optimizer` that differ from what was given in an earlier session.

    Args:
        given_before: `as_plain` of that session, from a file; None or anything else: nothing has changed.

    Returns:
        For each of them a few words.
    """
    changed = []
    groups = given_before if isinstance(given_before, list) else []
    for number, (group, now, before) in enumerate(zip(optimizer.param_groups, given, groups, strict=False)):
        if not isinstance(before, Mapping):
            continue
        for name, value in now.items():
            if name not in before or _plain(value) != before[name]:
                group[name] = value.clone() if isinstance(value, Tensor) else value
                was = f" in place of {before[name]}" if name in before else ""
                changed.append(f"{name} {_plain(value)}{was} in parameter group {number}")
    return changed


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or type(value) in (bool, int, float, str) else str(value)
