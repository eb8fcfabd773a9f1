"""Stores any state in a checkpoint without pickle: tensors in the safetensors file, the rest as JSON.

    {"tensor": name}  {"array": [name, type, shape]}  {"bytes": hexadecimal}
    {"list": [...]}  {"tuple": [...]}  {"mapping": [[key, value], ...]}

represent values that JSON does not have; numbers, text, None and booleans represent themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from averaging.arrays import U8
from peer.checkpoint.checked_files import OpenFile, WrittenFile, open_new
from peer.checkpoint.tensor_files import TensorFile, TensorSpec, write_raw
from peer.trainer.devices.portion import Part, is_sharded, part_of

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def can_hold(tensor: Tensor) -> bool:
    """Return whether safetensors has a type for the tensor."""
    return tensor.dtype in _NAMES and tensor.layout is torch.strided


def spec_of(name: str, dtype: torch.dtype, shape: Sequence[int]) -> TensorSpec:
    """Return the spec of a tensor that a file `can_hold`."""
    return TensorSpec(name, _NAMES[dtype], tuple(shape))


def write_tensors(
    path: Path, specs: Sequence[TensorSpec], tensors: Iterable[Tensor], open_file: OpenFile = open_new
) -> WrittenFile:
    """Write a safetensors file without syncing it (see `dht.ground.regular_files.sync`).

    Args:
        specs: specs of the tensors, wider types first.
        tensors: CPU tensors that match `specs`, read one after the other.

    Raises:
        OSError: the disk is full or read-only.
        ValueError: a tensor does not match its spec.
    """
    return write_raw(path, specs, _bytes_of(specs, tensors), open_file)


def open_tensors(path: Path) -> TensorFile[Tensor]:
    """Open a file that `peer.checkpoint.checked_files.check_file` has accepted, to read tensors on the CPU.

    Raises:
        ValueError: the file is not a safetensors file.
    """
    return TensorFile(path, "pt")


def _bytes_of(specs: Sequence[TensorSpec], tensors: Iterable[Tensor]) -> Iterator[U8]:
    for spec, tensor in zip(specs, tensors, strict=True):
        if (_NAMES.get(tensor.dtype), tuple(tensor.shape)) != (spec.dtype, spec.shape):
            raise ValueError(f"{spec.name} changed to {tensor.dtype} {list(tensor.shape)} while it was written")
        yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


Held = Tensor | Part
"""A tensor, or this process's rows of a tensor."""

_ARRAY_KINDS = "biufc"
"""numpy's kinds for booleans and numbers; safetensors lacks some of their widths, so arrays are stored as bytes."""


def split(value: Any, place: str, tensors: dict[str, Held]) -> Any:
    """Convert `value` to JSON; its tensors and arrays go to `tensors` under names that begin with `place`.

    Raises:
        TypeError: a value can be stored in neither; the message names its place.
    """
    if isinstance(value, Tensor):
        if not can_hold(value):
            raise TypeError(f"{place} is a {value.layout} tensor of {value.dtype}; expected a dense tensor of numbers")
        tensors[place] = part_of(value) if is_sharded(value) else value
        return {"tensor": place}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _ARRAY_KINDS:
            raise TypeError(f"{place} is an array of {value.dtype}; expected an array of numbers")
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
    """Reverse `split`. If `keep` is true, the tensors outlive the file.

    Raises:
        ValueError: the value does not come from `split`, or the file lacks a tensor.
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
                raise ValueError(f"it contains an array of {dtype!r:.20}; expected an array of numbers")
            return np.frombuffer(file.get(name).numpy().tobytes(), dtype).reshape(shape).copy()
        case "bytes":
            return bytes.fromhex(inner)
        case "mapping":
            return {key: joined(item, file, keep=keep) for key, item in inner}
        case "list" | "tuple":
            items = [joined(item, file, keep=keep) for item in inner]
            return tuple(items) if kind == "tuple" else items
    raise ValueError(f"it contains a {kind!r:.20}; expected a tensor, array, bytes, mapping, list or tuple")
