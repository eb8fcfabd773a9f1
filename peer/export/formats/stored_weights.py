"""Opens the weights in an exported folder, one file or shards, without reading them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open

from dht.ground.errors import LocalFault, UsageFault

_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_MAX_SHARDS = 10_000


def check_shapes(path: Path, files: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the weights in `path` are exactly these tensors, in float32; `files` as from `open_stored`.

    Raises:
        LocalFault: tensors, shapes or types differ.
    """
    if set(files) != set(shapes):
        raise LocalFault(f"{path} does not have the parameters that its manifest describes; export the model again")
    for name, shape in shapes.items():
        found = files[name].get_slice(name)
        if found.get_shape() != list(shape) or found.get_dtype() != "F32":
            raise LocalFault(
                f"{path}: {name} is {found.get_dtype()} {found.get_shape()}; expected F32 {list(shape)}; "
                "export the model again"
            )


@contextmanager
def open_stored(path: Path) -> Iterator[Mapping[str, Any]]:
    """Open the weights in a folder that `peer export` wrote; they are memory-mapped, not read.

    Yields the file of safetensors that contains each tensor, by its name.

    Raises:
        UsageFault: there are no weights.
        OSError, SafetensorError: the files are incomplete.
    """
    names = sorted(entry.name for entry in path.iterdir() if _WEIGHTS.fullmatch(entry.name) and entry.is_file())
    if not names or len(names) > _MAX_SHARDS:
        raise UsageFault(f"{path} has {len(names)} weights files; expected model.safetensors or its shards.")
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for name in names:
            file = stack.enter_context(safe_open(path / name, framework="pt"))
            files |= dict.fromkeys(file.keys(), file)
        yield files
