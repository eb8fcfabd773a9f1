"""Copies of parameters in an optimizer: slow weights, float32 masters, the iterate of a schedule-free optimizer.

A merge moves a parameter. A copy left at the old place would pull the parameter back in the next steps, and this pull
would be measured as this peer's own work. So merges move the copies too. Moments and other averages of gradients stay.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from peer.trainer.devices.portion import Beside, is_sharded

NEAR = 0.1
"""Largest distance of new copies from the parameters, relative to the parameters' norm."""
_WITH_COPIES = re.compile(r"slow|master|\.z$")
"""Matches typical names of copies."""
_NO_COPIES = ("state", "param_groups", "defaults")
_MAX_DEPTH = 4
"""Depth of nested lists, such as one for each parameter of each group."""

_Pair = tuple[Tensor, Tensor]

log = logging.getLogger(__name__)


class AbsoluteState:
    """Finds copies of parameters in optimizers and their wrappers.

    Args:
        holders: optimizers, and wrappers that also keep values, outermost first.
        saved: those holders whose state is restored from a checkpoint.
    """

    def __init__(self, holders: Sequence[Any], saved: Sequence[Any]) -> None:
        self._holders = tuple(holders)
        self._saved = {id(optimizer) for optimizer in saved}
        self._is_absolute: dict[str, bool] = {}
        self._listed: dict[int, list[Tensor]] = {}
        """Copies that are not in a parameter's state, by the parameter's id."""
        self._num_seen = -1

    @property
    def names(self) -> list[str]:
        """Names of the known copies, to be saved for a later session."""
        return sorted(name for name, is_absolute in self._is_absolute.items() if is_absolute)

    def resume(self, names: Any) -> None:
        """Resume with the `names` of an earlier session, after the states of the saved optimizers were restored.

        Copies that are in no checkpoint start again at the parameters.
        """
        known = names if isinstance(names, list) else []
        self._is_absolute |= {name: True for name in known if isinstance(name, str)}
        self._num_seen = -1
        self.look()
        with torch.no_grad():
            for holder, name, pairs in self._found():
                is_saved = id(holder) in self._saved and name.partition(".")[2].startswith("state.")
                for parameter, copy in pairs if self._is_absolute.get(name) and not is_saved else ():
                    copy.copy_(parameter)

    @torch.no_grad()
    def look(self) -> Beside:
        """Find copies that are new since the last call, before the next merge; return `beside`."""
        num_seen = sum(_num_kept(holder) for holder in self._holders)
        if num_seen == self._num_seen and not self._listed:
            return self.beside
        self._num_seen, listed = num_seen, dict[int, list[Tensor]]()
        for holder, name, pairs in self._found():
            if name not in self._is_absolute and (is_near := _are_near(pairs)) is not None:
                self._is_absolute[name] = is_near
                if not is_near and _WITH_COPIES.search(name):
                    log.warning(
                        "the optimizer %s has %r, which differs much from the parameters; if it contains copies of "
                        "parameters, its steps undo the work of other members; join before the optimizer's first step",
                        type(holder).__name__,
                        name.rpartition(".")[2],
                    )
            if self._is_absolute.get(name) and ".state." not in name:
                for parameter, copy in pairs:
                    listed.setdefault(id(parameter), []).append(copy)
        self._listed = listed
        return self.beside

    def beside(self, parameter: Tensor) -> list[Tensor]:
        """Return the copies of a parameter's values, flattened and without duplicates."""
        found = list(self._listed.get(id(parameter), ()))
        if any(self._is_absolute.values()):
            for number, holder in enumerate(self._holders):
                values = _state_of(holder).get(parameter, {})
                found += [
                    tensor
                    for key, tensor in values.items()
                    if self._is_absolute.get(f"{number}.state.{key}") and _is_like(tensor, parameter)
                ]
        return [copy.detach().view(-1) for copy in {id(copy): copy for copy in found}.values()]

    def _found(self) -> Iterator[tuple[Any, str, list[_Pair]]]:
        """Yield (holder, name, pairs of parameter and tensor of its shape) for all tensors that may be copies."""
        for number, holder in enumerate(self._holders):
            for name, pairs in _in_state(holder).items():
                yield holder, f"{number}.state.{name}", pairs
            for name, pairs in _in_lists(holder).items():
                yield holder, f"{number}.{name}", pairs


def _state_of(holder: Any) -> Mapping[Any, Mapping[Any, Any]]:
    state = getattr(holder, "state", None)
    if not isinstance(state, Mapping):
        return {}
    return {key: values for key, values in state.items() if isinstance(values, Mapping)}


def _num_kept(holder: Any) -> int:
    """Return the number of values that a holder keeps, which grows when a value is added."""
    kept = [*_state_of(holder).values(), *getattr(holder, "param_groups", ())]
    lists = [value for value in getattr(holder, "__dict__", {}).values() if isinstance(value, list | tuple | dict)]
    return sum(map(len, kept)) + sum(map(len, lists))


def _is_like(tensor: Any, parameter: Tensor) -> bool:
    """Return whether a tensor may be a copy of the parameter: same shape, separate memory."""
    return (
        isinstance(tensor, Tensor)
        and tensor.shape == parameter.shape
        and tensor.is_floating_point()
        and tensor.is_contiguous()
        and not is_sharded(tensor)
        and not is_sharded(parameter)
        and tensor.data_ptr() != parameter.data_ptr()
        and tensor.numel() > 0
    )


def _in_state(holder: Any) -> dict[str, list[_Pair]]:
    """Return pairs by name in a state; leave out names with a different shape than any parameter's, such as a count."""
    found: dict[str, list[_Pair]] = {}
    others: set[str] = set()
    for parameter, values in _state_of(holder).items():
        for key, tensor in values.items() if isinstance(parameter, Tensor) else ():
            if _is_like(tensor, parameter):
                found.setdefault(str(key), []).append((parameter, tensor))
            elif isinstance(tensor, Tensor):
                others.add(str(key))
    return {name: pairs for name, pairs in found.items() if name not in others}


def _in_lists(holder: Any) -> dict[str, list[_Pair]]:
    """Return pairs by name of an attribute or of an entry in a parameter group: lists parallel to those of the
    parameters.
    """
    groups = getattr(holder, "param_groups", None)
    groups = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    parameters = [parameter for group in groups for parameter in group.get("params", ())]
    places = {name: value for name, value in getattr(holder, "__dict__", {}).items() if name not in _NO_COPIES}
    for group in groups:
        for name, value in group.items():
            if name != "params" and isinstance(value, list | tuple | dict):
                places.setdefault(f"param_groups.{name}", []).append(value)
    found = {}
    for name, value in places.items():
        if isinstance(value, list | tuple | dict) and (pairs := _matched([*_tensors(value)], parameters)):
            found[name] = pairs
    return found


def _tensors(value: Any, depth: int = 0) -> Iterator[tuple[Tensor | None, Tensor]]:
    """Yield (the parameter used as key, if any, tensor), in order."""
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | dict):
        for key, one in value.items() if isinstance(value, dict) else ((None, one) for one in value):
            if isinstance(one, Tensor):
                yield key if isinstance(key, Tensor) else None, one
            else:
                yield from _tensors(one, depth + 1)


def _matched(tensors: list[tuple[Tensor | None, Tensor]], parameters: list[Tensor]) -> list[_Pair]:
    """Pair each tensor with its parameter: the parameter used as key, or the next in order that fits."""
    own = {id(parameter) for parameter in parameters}
    left, pairs = list(parameters), []
    for key, tensor in tensors:
        if id(tensor) in own:
            continue
        fitting = [one for one in left if (key is None or one is key) and _is_like(tensor, one)]
        if fitting:
            parameter = next((one for one in fitting if _are_near([(one, tensor)])), fitting[0])
            left = [one for one in left if one is not parameter]
            pairs.append((parameter, tensor))
    return pairs


def _are_near(pairs: Sequence[_Pair]) -> bool | None:
    """Return whether tensors nearly equal their parameters; None while all parameters are zero.

    A first moment may be equally near if the gradient is the parameter itself, as the gradient of a norm is.
    """
    found = _distance(pairs)
    if found is None or found >= NEAR:
        return None if found is None else False
    gradients = [(one.grad, tensor) for one, tensor in pairs if one.grad is not None and not is_sharded(one.grad)]
    from_gradients = _distance(gradients)
    return from_gradients is None or from_gradients > found


def _distance(pairs: Sequence[_Pair]) -> float | None:
    """Return the distance of the second tensors from the first, relative to the norm of the first; None if the norm is
    0.
    """
    distance = norm = 0.0
    for one, tensor in pairs:
        values = one.detach().float()
        distance += float((tensor.detach().to(values.device, torch.float32) - values).square().sum())
        norm += float(values.square().sum())
    return math.sqrt(distance / norm) if norm else None
