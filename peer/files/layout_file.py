"""Names and shapes of a custom run's parameters, as a file of the run: what was trained can be read without the code.

{"parameters": [["0.weight", [8, 4]], ["0.bias", [8]]], "buffers": [["1.running_mean", [8]]]}

Without averaged buffers it has parameters alone.
"""

from __future__ import annotations

import json
from pathlib import Path

from averaging.wire.file_chunks import MAX_FILE_BYTES
from dht.ground.errors import Incompatible
from dht.ground.regular_files import read_regular
from peer.config.manifest import RunManifest
from peer.config.model_shapes import Shapes, layout_digest_of, layout_of

LAYOUT_NAME = "layout.json"


def layout_content(shapes: Shapes, buffer_shapes: Shapes) -> bytes:
    """Return the content of `LAYOUT_NAME`.

    Args:
        shapes, buffer_shapes: (name, shape) of all trained parameters and averaged buffers, in the module's order.
    """
    parts = {"parameters": shapes, "buffers": buffer_shapes}
    listed = {part: [[name, list(shape)] for name, shape in one] for part, one in parts.items()}
    if not buffer_shapes:
        del listed["buffers"]
    return json.dumps(listed).encode() + b"\n"


def named_shapes(manifest: RunManifest, folder: Path | None) -> tuple[Shapes, Shapes] | None:
    """Return the (name, shape) pairs of the parameters and averaged buffers of a custom run, checked by its digest.

    The result is None if the run has no layout file, or the file does not match the digest.

    Args:
        folder: folder with the files of the run, or None if it has none.
    """
    if folder is None or LAYOUT_NAME not in {file.name for file in manifest.files}:
        return None
    try:
        listed = json.loads(read_regular(folder / LAYOUT_NAME, MAX_FILE_BYTES))
        shapes = [_checked(name, shape) for name, shape in listed["parameters"]]
        buffer_shapes = [_checked(name, shape) for name, shape in listed.get("buffers", [])]
        is_of_the_run = layout_of(manifest, shapes, buffer_shapes).digest == layout_digest_of(manifest)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, Incompatible):
        return None
    return (shapes, buffer_shapes) if is_of_the_run else None


def _checked(name: object, shape: object) -> tuple[str, tuple[int, ...]]:
    """Check one pair. Raises ValueError if it is not a name and a shape."""
    if type(name) is not str or type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name!r:.60} has no shape")
    return name, tuple(shape)
