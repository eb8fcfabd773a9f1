"""The model as one file: safetensors with the parameters, and everything about it as JSON.

The JSON lies beside the file (`config.json`) for people and inside the file for `peer sample`, so that the two cannot
be mixed up. Of an architecture of transformers only the trained parameters are in it: its folder is what can be read
again. Models of their owner's code have their names if the run's files say them, or else flat fragments.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from dht.ground.errors import LocalFault
from dht.ground.quantities import bytes_text
from dht.ground.regular_files import sync
from peer.export.formats.anchors import Anchors, named_tensors, own_module_tensors, parameters_sha256, run_facts
from peer.export.formats.custom_module import custom_sha256
from peer.export.formats.hf_architecture import trained_tensors
from peer.export.formats.model_header import HEADER_KEY
from peer.export.formats.output_place import check_writable, config_path_of


def write_model(anchors: Anchors, path: Path, now: float, *, replace: bool) -> dict[str, Any]:
    """Write the model and its `config.json`, both whole or not at all; returns the config.

    Raises:
        UsageFault: see `check_writable`.
        Incompatible: the anchors do not fit the manifest.
        LocalFault: the disk is full or broken; an earlier file is untouched.
    """
    check_writable(path, replace=replace)
    if anchors.manifest.model.kind == "gpt":
        tensors = named_tensors(anchors)
        digest = parameters_sha256(tensors)
    elif anchors.manifest.model.kind == "hf":
        tensors, digest = trained_tensors(anchors.manifest, anchors.values), ""
    else:
        tensors = own_module_tensors(anchors)
        digest = custom_sha256(tensors)
    config = run_facts(anchors, digest, now)
    text = json.dumps(config, indent=1)
    drafts: dict[Path, Path] = {}
    try:
        for target in (path, config_path_of(path)):
            descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{target.name}.")
            os.close(descriptor)
            drafts[target] = Path(draft)
        save_file(tensors, drafts[path], metadata={"format": "pt", HEADER_KEY: json.dumps(config)})
        drafts[config_path_of(path)].write_text(text + "\n", encoding="utf-8")
        for target, draft_path in drafts.items():
            sync(draft_path)
            draft_path.chmod(0o644)
            os.replace(draft_path, target)
    except (OSError, SafetensorError) as error:
        raise cannot_be_written(path, anchors.num_bytes, error) from error
    finally:
        for draft_path in drafts.values():
            draft_path.unlink(missing_ok=True)
    return config


def cannot_be_written(path: Path, num_bytes: int | None, error: Exception) -> LocalFault:
    """The sentence about a disk that is full or broken. `num_bytes`: that the model takes; None: not known."""
    reason = getattr(error, "strerror", None) or str(error)
    room = "room for the model" if num_bytes is None else f"{bytes_text(num_bytes)} of free space"
    return LocalFault(
        f"{path} cannot be written: {reason}; expected a writable folder with {room}; nothing half-written is left "
        "there"
    )
