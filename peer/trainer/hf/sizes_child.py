"""Builds an architecture on torch's meta device in a limited child, and answers with its names, shapes and types.

Most of the library is imported with this module, before any limit: a slow machine may take a minute for it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from peer.limited_child.parent_link import ParentLink
from peer.trainer.hf.library_modules import library, library_config, library_module


def prepare(setup: dict[str, Any], parent: ParentLink) -> Callable[[dict[str, Any], bytes], dict[str, Any]]:
    """Load the library; the answers are those of `architecture_parts`."""
    library()
    return lambda question, _: architecture_parts(question["config"], question["task"])


def architecture_parts(config: str, task: str | None) -> dict[str, Any]:
    """Build what a config text describes, without values.

    Args:
        task: None: the config object alone is made.

    Returns:
        `parameters` and `buffers`, saved or not, each a list of (name, shape, bytes per value), tied ones once; and
        `other_bytes`, of tensors that the module keeps and has not registered; and `peak_bytes`, of all tensors that
        are there at one moment while it is built with values.

    Raises:
        Incompatible: as from `library_module`.
    """
    if task is None:
        library_config(config)
        return {"parameters": [], "buffers": [], "other_bytes": 0, "peak_bytes": 0}
    with _Peak() as peak:
        module = library_module(config, task, torch.device("meta"))
    assert isinstance(module, PreTrainedModel)
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    registered = {_storage(tensor) for tensor in (*parameters.values(), *buffers.values())}
    others = {
        _storage(thing): thing.untyped_storage().nbytes()
        for thing in gc.get_objects()
        if isinstance(thing, Tensor) and thing.is_meta
    }
    return {
        "parameters": _described(parameters.items()),
        "buffers": _described(buffers.items()),
        "other_bytes": sum(num_bytes for storage, num_bytes in others.items() if storage not in registered),
        "peak_bytes": peak.peak_bytes,
    }


class _Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the bytes of all tensors that live at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._living: set[int] = set()
        self._num_bytes = self.peak_bytes = 0

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (key := _storage(tensor)) not in self._living:
                storage = tensor.untyped_storage()
                self._living.add(key)
                self._num_bytes += storage.nbytes()
                weakref.finalize(storage, self._forget, key, storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self._num_bytes)
        return result

    def _forget(self, key: int, num_bytes: int) -> None:
        self._living.discard(key)
        self._num_bytes -= num_bytes


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _described(tensors: Iterable[tuple[str, Tensor]]) -> list[list[Any]]:
    return [[name, list(tensor.shape), tensor.element_size()] for name, tensor in tensors]
