"""Safetensors files, written and read one tensor at a time, without a copy of the whole file. Loads no torch.

The format's own library reads them; it cannot write one tensor after the other. Both processes write names, type names,
shapes and bytes: the network process from numpy arrays, the trainer from torch tensors
(`peer/trainer/loop/checkpoint_values.py`). A file is 8 bytes with the length of a header, the header, and the tensors'
bytes without gaps, all little-endian. The header is JSON: type, shape and place of each tensor.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from averaging.arrays import F32, U8
from peer.checkpoint.checked_files import OpenFile, WrittenFile, open_new

T = TypeVar("T")

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""safetensors' type names -> bytes of one value."""

_LENGTH_BYTES = 8
_ALIGNMENT = 8  # makes the tensors' bytes aligned for every type

_PIECE_BYTES = 4 * 1024 * 1024
"""Bytes written and hashed at once: large enough for the disk, small enough for the last-level cache of any CPU."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a file; `dtype` is a key of `ITEM_BYTES`."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def write_raw(
    path: Path, specs: Sequence[TensorSpec], tensors: Iterable[U8], open_file: OpenFile = open_new
) -> WrittenFile:
    """Write a safetensors file without syncing it (see `dht.ground.regular_files.sync`).

    Args:
        specs: specs of the tensors, wider types first (the format packs them without gaps).
        tensors: the bytes of each tensor, uint8 [num_bytes], read one after the other.

    Raises:
        OSError: the disk is full or read-only.
        ValueError: a tensor does not match its spec.
    """
    header: dict[str, Any] = {}
    offset = 0
    for spec in specs:
        end = offset + spec.num_bytes
        header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": (offset, end)}
        offset = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % _ALIGNMENT)
    digest = hashlib.sha256()
    with open_file(path) as file:
        for data in (len(head).to_bytes(_LENGTH_BYTES, "little"), head):
            file.write(data)
            digest.update(data)
        for spec, tensor in zip(specs, tensors, strict=True):
            if tensor.size != spec.num_bytes:
                raise ValueError(f"{spec.name} changed to {tensor.size} bytes while it was written")
            for piece in _pieces_of(tensor):
                file.write(piece)
                digest.update(piece)
    return WrittenFile(num_bytes=_LENGTH_BYTES + len(head) + offset, digest=digest.hexdigest())


def write_arrays(path: Path, arrays: Mapping[str, F32 | U8], open_file: OpenFile = open_new) -> WrittenFile:
    """Call `write_raw` for one-dimensional, contiguous arrays, float32 arrays before uint8 arrays.

    Raises:
        OSError: the disk is full or read-only.
    """
    types = {np.dtype(np.float32): "F32", np.dtype(np.uint8): "U8"}
    specs = [TensorSpec(name, types[array.dtype], array.shape) for name, array in arrays.items()]
    return write_raw(path, specs, (array.view(np.uint8) for array in arrays.values()), open_file)


class TensorFile(Generic[T]):
    """A safetensors file whose tensors are read on request, as arrays or tensors of type T.

    Attributes:
        names: names of its tensors.
    """

    def __init__(self, path: Path, framework: Literal["numpy", "pt"]) -> None:
        self._name = path.name
        opener: Any = safe_open  # its stubs leave its methods untyped
        try:
            self._opened = opener(path, framework=framework)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ValueError(f"{path.name} is not a safetensors file ({error!s:.60})") from error
        self.names: frozenset[str] = frozenset(self._opened.keys())

    def check(self, spec: TensorSpec) -> None:
        """Check that the file has such a tensor. Raises ValueError."""
        if spec.name in self.names:
            part = self._opened.get_slice(spec.name)
            if (part.get_dtype(), tuple(part.get_shape())) == (spec.dtype, spec.shape):
                return
        raise ValueError(f"{self._name} has no {spec.name} of {list(spec.shape)} {spec.dtype} values")

    def get(self, name: str) -> T:
        """Return a tensor; a torch tensor may share memory with the file until it is copied.

        Raises:
            ValueError: there is no tensor with this name.
        """
        try:
            tensor: T = self._opened.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{self._name} has no tensor {name:.60}") from error
        return tensor


def open_arrays(path: Path) -> TensorFile[npt.NDArray[Any]]:
    """Open a file that `checked_files.check_file` has accepted, to read numpy arrays.

    Raises:
        ValueError: the file is not a safetensors file.
    """
    return TensorFile(path, "numpy")


def _pieces_of(tensor: U8) -> Iterator[memoryview]:
    for start in range(0, tensor.size, _PIECE_BYTES):
        yield tensor[start : start + _PIECE_BYTES].data
