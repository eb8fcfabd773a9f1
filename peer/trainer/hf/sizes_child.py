"""Builds an architecture on torch's meta device in a limited child, and returns its names, shapes and types.

A few tokens then pass through the module, without values: a config can repeat the same parameters 10^9 times.

Most of the library is imported with this module, before any limit, because a slow machine may take a minute.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from dht.ground.errors import Incompatible
from peer.trainer.hf.library_modules import library, library_config, library_module

MAX_USES: Final = 64
"""Limit on the uses of the average parameter in a forward pass. ALBERT uses most parameters 12 times; other
models use theirs once."""
_aten: Final = torch.ops.aten
_LOOKUPS: Final = (_aten.embedding, _aten.gather, _aten.index, _aten.index_select)
"""Operations that read only as many values of a table as they return."""
_LENGTHS: Final = ((2, "cpu"), (64, "cpu"), (64, "meta"), (4096, "cpu"))
"""Number of tokens, and the default device for new tensors: some architectures need longer text, or mix devices."""


def prepare(setup: dict[str, Any]) -> Callable[[dict[str, Any], bytes], dict[str, Any]]:
    """Load the library, and answer questions with `architecture_parts`."""
    library()
    return lambda question, _: architecture_parts(question["config"], question["task"])


def architecture_parts(config: str, task: str | None) -> dict[str, Any]:
    """Build the architecture that a config text describes, without values.

    Args:
        task: None: only the config object is made.

    Returns:
        `parameters` and `buffers`, saved or not, each a list of (name, shape, bytes per value), tied ones once;
        `other_bytes`, the bytes of tensors that the module holds but has not registered; and `peak_bytes`, the largest
        total of all tensors at one moment while the module is built with values, or a few tokens pass through it.

    Raises:
        Incompatible: see `library_module`; also if a forward pass uses the parameters more than `MAX_USES` times.
    """
    if task is None:
        library_config(config)
        return {"parameters": [], "buffers": [], "other_bytes": 0, "peak_bytes": 0}
    tensors = _Tensors()
    with tensors:
        module = library_module(config, task, torch.device("meta"))
    assert isinstance(module, PreTrainedModel)
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    registered = {_storage(tensor) for tensor in (*parameters.values(), *buffers.values())}
    others = {
        _storage(thing): thing.untyped_storage().nbytes()
        for thing in gc.get_objects()
        if issubclass(type(thing), Tensor) and thing.is_meta
    }
    answer = {
        "parameters": _described(parameters.items()),
        "buffers": _described(buffers.items()),
        "other_bytes": sum(num_bytes for storage, num_bytes in others.items() if storage not in registered),
    }
    _pass_tokens(module, tensors)
    return answer | {"peak_bytes": tensors.peak_bytes}


def _pass_tokens(module: PreTrainedModel, tensors: _Tensors) -> None:
    """Pass the first of `_LENGTHS` that the module accepts through it; report those that fail on standard error."""
    # Some mixtures of experts compute only in this type.
    module.to(torch.bfloat16)  # type: ignore[arg-type]
    for length, device in _LENGTHS:
        tensors.count_uses(module.parameters())
        try:
            with torch.no_grad(), torch.device(device), tensors:
                module(input_ids=torch.zeros(1, length, dtype=torch.int64, device="meta"))
        except (MemoryError, Incompatible):
            raise
        except Exception as error:  # noqa: BLE001  whatever the architecture's code ran into
            # Operations before the failure were counted. A module that accepts none of these lengths also fails in its
            # first step, or cannot compute without values.
            print(f"{length} tokens did not pass: {error}", file=sys.stderr)
        else:
            return


class _Tensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the bytes of all live tensors, and how often parameters are used."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._living: set[int] = set()
        self._num_bytes = self.peak_bytes = 0
        self._parameters: set[int] = set()
        self._num_uses = self._most_uses = 0

    def count_uses(self, parameters: Iterable[Tensor]) -> None:
        """Count from now on how many values of these parameters are used, and stop a pass that uses too many.

        Raises:
            Incompatible: a later operation exceeds `MAX_USES` of each value.
        """
        sizes = {_storage(parameter): parameter.numel() for parameter in parameters}
        self._parameters, self._num_uses, self._most_uses = set(sizes), 0, MAX_USES * sum(sizes.values())

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function.overloadpacket is _aten._local_scalar_dense and args[0].is_meta:
            # A substitute for a value that a meta tensor does not have, for a decision in the architecture's code.
            return {torch.bool: False}.get(args[0].dtype, 0.0 if args[0].is_floating_point() else 0)
        result = function(*args, **(kwargs or {}))
        returned = {_storage(tensor): tensor for tensor in _tensors_in((result,))}
        if self._parameters:
            self._count(function, _tensors_in((*args, *(kwargs or {}).values())), returned)
        for key, tensor in returned.items():
            if key not in self._living:
                storage = tensor.untyped_storage()
                self._living.add(key)
                self._num_bytes += storage.nbytes()
                weakref.finalize(storage, self._forget, key, storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self._num_bytes)
        return result

    def _count(self, function: Any, given: Iterable[Tensor], returned: dict[int, Tensor]) -> None:
        for tensor in given:
            if (key := _storage(tensor)) in self._parameters and key not in returned:
                num_values = sum(map(Tensor.numel, returned.values()))
                is_lookup = function.overloadpacket in _LOOKUPS
                self._num_uses += min(tensor.numel(), num_values) if is_lookup else tensor.numel()
        if self._num_uses > self._most_uses:
            raise Incompatible(
                f"the model's config uses its parameters more than {MAX_USES} times in each forward pass; expected a "
                "model whose work fits its size; correct the number of layers, loops or repeats in the config, or tell "
                "the run's owner"
            )

    def _forget(self, key: int, num_bytes: int) -> None:
        self._living.discard(key)
        self._num_bytes -= num_bytes


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments or results of an operation, including tensors in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _described(tensors: Iterable[tuple[str, Tensor]]) -> list[list[Any]]:
    return [[name, list(tensor.shape), tensor.element_size()] for name, tensor in tensors]
