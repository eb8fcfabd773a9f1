"""Builds an architecture on torch's meta device in a limited child, and answers with its names, shapes and types.

Most of the library is imported with this module, before any limit: a slow machine may take a minute for it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
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
        `other_bytes`, of tensors that the module keeps and has not registered.

    Raises:
        Incompatible: as from `library_module`.
    """
    if task is None:
        library_config(config)
        return {"parameters": [], "buffers": [], "other_bytes": 0}
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
    }


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _described(tensors: Iterable[tuple[str, Tensor]]) -> list[list[Any]]:
    return [[name, list(tensor.shape), tensor.element_size()] for name, tensor in tensors]
