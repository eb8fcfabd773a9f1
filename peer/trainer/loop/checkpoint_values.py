"""Values of any state in a checkpoint, without pickle: tensors go to the safetensors file, the rest is JSON.

    {"tensor": name}  {"array": [name, type, shape]}  {"bytes": hexadecimal}
    {"list": [...]}  {"tuple": [...]}  {"mapping": [[key, value], ...]}

stand for what JSON does not have; numbers, text, None and truth values stand for themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.checkpoint.tensor_files import TensorFile
from peer.trainer.devices.portion import Part, is_sharded, part_of
from peer.trainer.loop.checkpoint_tensors import can_hold

Held = Tensor | Part
"""A tensor, or this process's rows of one."""

_ARRAY_KINDS = "biufc"
"""Of numpy's types: truth values and numbers; safetensors lacks some of their widths, so their bytes are kept."""


def split(value: Any, place: str, tensors: dict[str, Held]) -> Any:
    """`value` as JSON; its tensors and arrays go to `tensors` under names that begin with `place`.

    Raises:
        TypeError: something in it can be kept in neither; the message names its place.
    """
    if isinstance(value, Tensor):
        if not can_hold(value):
            raise TypeError(f"{place} is a {value.layout} tensor of {value.dtype}; expected a dense one of numbers")
        tensors[place] = part_of(value) if is_sharded(value) else value
        return {"tensor": place}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _ARRAY_KINDS:
            raise TypeError(f"{place} is an array of {value.dtype}; expected one of numbers")
        tensors[place] = torch.from_numpy(np.frombuffer(value.tobytes(), np.uint8).copy())
        return {"array": [place, value.dtype.str, list(value.shape)]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list | tuple):
        items = [split(item, f"{place}.{index}", tensors) for index, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, Mapping) and all(type(key) in (int, str) for key in value):
        return {"mapping": [[key, split(item, f"{place}.{key}", tensors)] for key, item in value.items()]}
    raise TypeError(
        f"{place} is a {type(value).__name__}; expected tensors, arrays, numbers, text, bytes, lists and mappings"
    )


def joined(value: Any, file: TensorFile[Tensor], *, keep: bool) -> Any:
    """The reverse of `split`; `keep`: the tensors outlive the file.

    Raises:
        ValueError: it is not what `split` makes, or the file lacks a tensor.
    """
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "tensor":
            tensor = file.get(inner)
            return tensor.clone() if keep else tensor
        case "array":
            name, dtype, shape = inner
            if np.dtype(dtype).kind not in _ARRAY_KINDS:
                raise ValueError(f"it holds an array of {dtype!r:.20}; expected one of numbers")
            return np.frombuffer(file.get(name).numpy().tobytes(), dtype).reshape(shape).copy()
        case "bytes":
            return bytes.fromhex(inner)
        case "mapping":
            return {key: joined(item, file, keep=keep) for key, item in inner}
        case "list" | "tuple":
            items = [joined(item, file, keep=keep) for item in inner]
            return tuple(items) if kind == "tuple" else items
    raise ValueError(f"it holds a {kind!r:.20}; expected a tensor, array, bytes, mapping, list or tuple")
