"""The trainer's tensors in safetensors files: what `peer/checkpoint/tensor_files.py` writes and reads, as torch sees
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from averaging.arrays import U8
from peer.checkpoint.checked_files import OpenFile, WrittenFile, open_new
from peer.checkpoint.tensor_files import TensorFile, TensorSpec, write_raw

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
    """Whether safetensors has a type for it."""
    return tensor.dtype in _NAMES and tensor.layout is torch.strided


def spec_of(name: str, dtype: torch.dtype, shape: Sequence[int]) -> TensorSpec:
    """Of a tensor that a file `can_hold`."""
    return TensorSpec(name, _NAMES[dtype], tuple(shape))


def write_tensors(
    path: Path, specs: Sequence[TensorSpec], tensors: Iterable[Tensor], open_file: OpenFile = open_new
) -> WrittenFile:
    """Write a safetensors file; nothing is synced yet (see `dht.ground.regular_files.sync`).

    Args:
        specs: of the tensors, those of wider types first.
        tensors: CPU tensors that fit `specs`, asked for one after the other.

    Raises:
        OSError: the disk is full or read-only.
        ValueError: a tensor does not fit its spec.
    """
    return write_raw(path, specs, _bytes_of(specs, tensors), open_file)


def open_tensors(path: Path) -> TensorFile[Tensor]:
    """Read a file that `peer.checkpoint.checked_files.check_file` has accepted, as tensors on the CPU.

    Raises:
        ValueError: it is no safetensors file.
    """
    return TensorFile(path, "pt")


def _bytes_of(specs: Sequence[TensorSpec], tensors: Iterable[Tensor]) -> Iterator[U8]:
    for spec, tensor in zip(specs, tensors, strict=True):
        if (_NAMES.get(tensor.dtype), tuple(tensor.shape)) != (spec.dtype, spec.shape):
            raise ValueError(f"{spec.name} changed to {tensor.dtype} {list(tensor.shape)} while it was written")
        yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
