"""Files of a checkpoint: written once from beginning to end, with their SHA-256, and never believed without it.

Tensors are safetensors files, written one tensor after the other: whatever the size, no copy of the whole is made. The
rest is JSON with a check sum.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

MAX_JSON_BYTES = 16 * 1024 * 1024
"""A model of ten thousand tensors takes about a MiB; a longer file is not ours."""

_PIECE_BYTES = 4 * 1024 * 1024
"""Written and hashed in turn: large enough for the disk, small enough for the cache of any CPU's last level."""

_DTYPES = {
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

OpenFile = Callable[[Path], BinaryIO]
"""Makes a new file, readable by its owner alone. Raises OSError."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a file must be when it is read again; `digest` is its SHA-256 in hexadecimal."""

    num_bytes: int
    digest: str


def can_hold(tensor: Tensor) -> bool:
    """Whether safetensors has a type for it."""
    return tensor.dtype in _DTYPES and tensor.layout is torch.strided


def open_new(path: Path) -> BinaryIO:
    """The real `OpenFile`."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def write_tensors(
    path: Path, specs: Sequence[TensorSpec], tensors: Iterable[Tensor], open_file: OpenFile = open_new
) -> WrittenFile:
    """Write a safetensors file; nothing is synced yet (see `sync_file`).

    Args:
        specs: of the tensors, those of wider types first (the format packs them without gaps).
        tensors: CPU tensors that fit `specs`, asked for one after the other.

    Raises:
        OSError: the disk is full or read-only.
        ValueError: a tensor does not fit its spec.
    """
    header: dict[str, Any] = {}
    offset = 0
    for spec in specs:
        end = offset + spec.num_bytes
        header[spec.name] = {"dtype": _DTYPES[spec.dtype], "shape": spec.shape, "data_offsets": (offset, end)}
        offset = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()
    with open_file(path) as file:
        for data in (len(head).to_bytes(8, "little"), head):
            file.write(data)
            digest.update(data)
        for spec, tensor in zip(specs, tensors, strict=True):
            if (tensor.dtype, tuple(tensor.shape)) != (spec.dtype, spec.shape):
                raise ValueError(f"{spec.name} changed to {tensor.dtype} {list(tensor.shape)} while it was written")
            for piece in _pieces_of(tensor):
                file.write(piece)
                digest.update(piece)
    return WrittenFile(8 + len(head) + offset, digest.hexdigest())


def write_json(path: Path, content: Mapping[str, Any], open_file: OpenFile = open_new) -> WrittenFile:
    """Write a JSON object under `content` with its `check`; nothing is synced yet. Raises OSError."""
    data = json.dumps({"content": content, "check": _check_of(content)}, indent=1).encode()
    with open_file(path) as file:
        file.write(data)
    return WrittenFile(len(data), hashlib.sha256(data).hexdigest())


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote.

    Raises:
        ValueError: the file is not there, damaged, or was changed.
    """
    found = file_num_bytes(path)
    if found > MAX_JSON_BYTES:
        raise ValueError(f"{path.name} has {found} bytes; expected at most {MAX_JSON_BYTES}")
    try:
        whole = json.loads(path.read_bytes())
        content, check = whole["content"], whole["check"]
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged or of another version ({type(error).__name__})") from error
    if type(content) is not dict or check != _check_of(content):
        raise ValueError(f"{path.name} was changed: its content does not have its check sum")
    return content


def check_file(path: Path, written: WrittenFile) -> None:
    """Read all of a file and compare.

    Raises:
        ValueError: it is not there or not what was written.
    """
    check_length(path, written)
    if measure_file(path).digest != written.digest:
        raise ValueError(f"{path.name} is damaged: it does not have its SHA-256")


def check_length(path: Path, written: WrittenFile) -> None:
    """The part of `check_file` that reads nothing. Raises ValueError."""
    num_bytes = file_num_bytes(path)
    if num_bytes != written.num_bytes:
        raise ValueError(f"{path.name} has {num_bytes} bytes; expected {written.num_bytes}")


def measure_file(path: Path) -> WrittenFile:
    """Length and digest of a file as it is now.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return WrittenFile(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error


class TensorFile:
    """A safetensors file that is read one tensor at a time; get it from `open_tensors`."""

    def __init__(self, name: str, opened: Any) -> None:
        self._name = name
        self._opened = opened
        self.names = frozenset(opened.keys())

    def check(self, spec: TensorSpec) -> None:
        """Raises ValueError when the file has no such tensor."""
        if spec.name in self.names:
            part = self._opened.get_slice(spec.name)
            if (part.get_dtype(), tuple(part.get_shape())) == (_DTYPES[spec.dtype], spec.shape):
                return
        raise ValueError(f"{self._name} has no {spec.name} of {list(spec.shape)} {_DTYPES[spec.dtype]} values")

    def get(self, name: str) -> Tensor:
        """A tensor on the CPU; it may share memory with the file until it is copied.

        Raises:
            ValueError: there is none of this name.
        """
        try:
            tensor: Tensor = self._opened.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{self._name} has no tensor {name:.60}") from error
        return tensor


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Read a file that `check_file` has accepted.

    Raises:
        ValueError: it is no safetensors file.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            yield TensorFile(path.name, opened)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path.name} is no safetensors file ({error!s:.60})") from error


def sync_file(path: Path) -> None:
    """Bring a file, or the names in a folder, down to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_num_bytes(path: Path) -> int:
    """Raises ValueError when the file cannot be read."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error


def _pieces_of(tensor: Tensor) -> Iterator[memoryview]:
    if not tensor.numel():
        return
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    for start in range(0, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]


def _check_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
