"""Sizes of an architecture of transformers, which a limited child measures before this process builds any of it.

The answer is stored per machine under the digest of its inputs, so a run starts the child once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import math
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from dht.ground.regular_files import read_regular, write_whole
from peer.limited_child.limited_child import ChildLimits, LimitedChild
from peer.user_folders import user_data_dir_here
from peer.version import full_version

CHILD = "peer.trainer.hf.sizes_child"
LIMITS: Final = ChildLimits(memory_bytes=2 * 10**9, seconds=60, answer_bytes=16 << 20)
FOLDER_NAME = "architectures"
"""Folder in the user's data, with one file for each architecture that this machine has measured lately."""
MAX_KEPT = 64
"""Files in that folder: an architecture takes 10 to 100 kB, and each version of the software measures it again."""
MAX_TENSORS, MAX_NAME_LENGTH, MAX_DIMENSIONS, MAX_SIZE, MAX_VALUE_BYTES = 1 << 20, 512, 8, 2**53, 16
_COUNTS = ("other_bytes", "peak_bytes")


@dataclass(frozen=True, slots=True)
class TensorSize:
    """A parameter or buffer: its name, shape, and bytes per value."""

    name: str
    shape: tuple[int, ...]
    value_bytes: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.value_bytes


@dataclass(frozen=True, slots=True)
class ArchitectureSizes:
    """Everything that an architecture keeps in memory.

    Attributes:
        parameters: parameters in the module's order, tied ones once.
        buffers: buffers, saved or not.
        other_bytes: bytes of tensors that the module keeps and has not registered.
        peak_bytes: most bytes of all tensors at one time, while the model is built with values or processes a few
            tokens.
    """

    parameters: tuple[TensorSize, ...] = ()
    buffers: tuple[TensorSize, ...] = ()
    other_bytes: int = 0
    peak_bytes: int = 0

    @property
    def parameter_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.parameters)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of everything except parameters."""
        return sum(tensor.num_bytes for tensor in self.buffers) + self.other_bytes


@functools.lru_cache(maxsize=64)
def sizes_of(config: str, task: str | None) -> ArchitectureSizes:
    """Return the sizes of an architecture.

    Args:
        config: config text of a manifest.
        task: task whose head the model has; None to read the config only, without building a model.

    Raises:
        Incompatible: the library does not know the architecture, or needs more memory or time for it than `LIMITS`.
        LocalFault: no process can be started, or the library cannot be loaded.
    """
    path = _kept_at(config, task)
    if path is not None:
        # A file that is damaged or missing is measured again.
        with contextlib.suppress(OSError, ValueError, RecursionError):
            return checked_sizes(json.loads(read_regular(path, LIMITS.answer_bytes)))
    advice = "correct the config, or tell the run's owner"
    with LimitedChild(CHILD, {}, LIMITS, "the model's config", advice) as child:
        # The caller builds the same architecture next: both processes load the library at the same time.
        load_library()
        child.start()
        try:
            sizes = checked_sizes(child.ask({"config": config, "task": task})[0])
        except (UsageFault, Incompatible):
            raise
        except (LocalFault, ValueError) as error:
            raise Incompatible(str(error)) from error
    if path is not None:
        # If the disk is full, the next process measures again.
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, json.dumps(_fields_of(sizes), separators=(",", ":")).encode())
            _drop_oldest(path.parent)
    return sizes


def _drop_oldest(folder: Path) -> None:
    by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in by_age[:-MAX_KEPT]:
        path.unlink(missing_ok=True)


def load_library() -> None:
    """Import most of transformers. If the import fails, the child and `check_library` report it."""
    with contextlib.suppress(ImportError):
        importlib.import_module("transformers.modeling_utils")


def checked_sizes(fields: Any) -> ArchitectureSizes:
    """Return the sizes in a child's answer or in a file.

    Raises:
        ValueError: `fields` does not hold valid sizes.
    """
    if not isinstance(fields, dict) or fields.keys() != {"parameters", "buffers", *_COUNTS}:
        raise ValueError(f"sizes with other fields; expected parameters, buffers, {' and '.join(_COUNTS)}")
    for name in _COUNTS:
        if not _is_whole(fields[name], 2**63):
            raise ValueError(f"{name} is {fields[name]!r:.40}; expected a number of bytes")
    counts = {name: fields[name] for name in _COUNTS}
    return ArchitectureSizes(_tensors(fields["parameters"]), _tensors(fields["buffers"]), **counts)


def _tensors(rows: Any) -> tuple[TensorSize, ...]:
    if not isinstance(rows, list) or len(rows) > MAX_TENSORS:
        raise ValueError(f"tensors are not a list of at most {MAX_TENSORS}")
    return tuple(map(_tensor, rows))


def _tensor(row: Any) -> TensorSize:
    if not isinstance(row, list) or len(row) != 3:
        raise ValueError(f"a tensor is {row!r:.60}; expected its name, shape and bytes per value")
    name, shape, value_bytes = row
    is_name = isinstance(name, str) and len(name) <= MAX_NAME_LENGTH and name.isprintable()
    is_shape = (
        isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS and all(_is_whole(size, MAX_SIZE) for size in shape)
    )
    if not is_name or not is_shape or not _is_whole(value_bytes, MAX_VALUE_BYTES):
        raise ValueError(f"a tensor is {row!r:.60}; expected its name, shape and bytes per value")
    return TensorSize(name, tuple(shape), value_bytes)


def _is_whole(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _fields_of(sizes: ArchitectureSizes) -> dict[str, Any]:
    rows = [
        [[tensor.name, tensor.shape, tensor.value_bytes] for tensor in tensors]
        for tensors in (sizes.parameters, sizes.buffers)
    ]
    return {"parameters": rows[0], "buffers": rows[1]} | {name: getattr(sizes, name) for name in _COUNTS}


def _kept_at(config: str, task: str | None) -> Path | None:
    """Return the path of the stored sizes, or None if this user has no folder or the library is missing."""
    try:
        follows_from = [config, task, version("transformers"), version("torch"), full_version()]
        digest = hashlib.sha256(json.dumps(follows_from).encode()).hexdigest()
        return user_data_dir_here() / FOLDER_NAME / f"{digest}.json"
    except (PackageNotFoundError, UsageFault):
        return None
