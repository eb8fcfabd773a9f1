"""Reads an exported folder, and checks every name, shape and bit.

Weights files are memory-mapped; a file's length limits its content, and the manifest's model is built only if it fits
that length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from dht.ground.errors import DeviceFault, Incompatible, LocalFault, UsageFault
from peer.config.manifest import RunManifest
from peer.config.model_shapes import parameter_shapes
from peer.export.formats.anchors import Anchors
from peer.export.formats.custom_module import fill_module
from peer.export.formats.hf_architecture import (
    ADAPTER_CONFIG,
    architecture_digest,
    read_adapter,
    read_architecture,
    trained_architecture,
)
from peer.export.formats.llama import built_in_tensors, llama_shapes
from peer.export.formats.model_header import ModelHeader, read_header, run_json
from peer.export.formats.stored_weights import check_shapes, open_stored
from peer.memory.least_memory import check_memory, free_memory_bytes
from peer.trainer.hf.base_weights import find_base
from peer.trainer.hf.run_model import for_task, stands_on_base
from peer.trainer.model.gpt import build_model, parameters_digest


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """An exported model, with the manifest, config and header from its folder."""

    model: nn.Module
    manifest: RunManifest
    config: Mapping[str, Any]
    header: ModelHeader


def read_model(path: Path, base: Path | None = None) -> ExportedModel:
    """Read the model from a folder that `peer export` wrote.

    The model is a `LanguageModel` for a run with the built-in model, and a module of transformers otherwise. An adapter
    is merged into its pretrained weights.

    Args:
        path: the folder.
        base: folder with the pretrained weights of an adapter; None: download them from the hub, if the manifest
            refers to the hub.

    Raises:
        UsageFault: the folder does not exist, different software wrote it, or transformers is needed but not installed.
        Incompatible: a different version wrote the folder, or the run trains a custom module.
        DeviceFault: this machine has too little memory for the model.
        LocalFault: the folder is damaged.
    """
    path = Path(path)
    try:
        config, header, manifest = read_header(path, run_json(path))
        if manifest.model.kind == "hf":
            check_memory(manifest, "read", free_memory_bytes())
            if (path / ADAPTER_CONFIG).is_file():
                module = read_adapter(manifest, path, find_base(manifest, base))
                return ExportedModel(for_task(manifest, module), manifest, config, header)
            check_no_base(header.run_id, base)
            module = read_architecture(manifest, path)
            exported = ExportedModel(for_task(manifest, module), manifest, config, header)
            return _checked(path, exported, architecture_digest(manifest, module))
        check_no_base(path, base)
        with open_stored(path) as files:
            check_built_in(header.run_id, manifest)
            shapes = dict(parameter_shapes(manifest.model))
            check_shapes(path, files, llama_shapes(manifest.model, shapes))
            check_memory(manifest, "read", free_memory_bytes())
            model = build_model(manifest.model, manifest.seed)
            parameters = dict(model.named_parameters())
            with torch.no_grad():
                for name, tensor in built_in_tensors(manifest.model, lambda name: files[name].get_tensor(name)):
                    parameters[name].copy_(tensor)
    except (OSError, SafetensorError) as error:
        raise UsageFault(f"{path} is not a complete safetensors file ({error}); export the model again.") from error
    except RuntimeError as error:
        # Raised by torch, which maps the file: a sparse file may be longer than the memory.
        raise DeviceFault(
            f"{path} cannot be mapped into memory ({str(error).splitlines()[0]:.200}); expected a machine with enough "
            "memory; end other programs, or export the model again"
        ) from error
    return _checked(path, ExportedModel(model, manifest, config, header), parameters_digest(model).hex())


def model_of(anchors: Anchors, base: Path | None = None) -> nn.Module:
    """Return the run's model with the anchors as its parameters, in the form that `read_model` returns.

    Raises:
        UsageFault: transformers is needed and not installed.
        Incompatible: the run trains a model from its owner's own code, or the anchors do not fit the manifest.
    """
    manifest = anchors.manifest
    if stands_on_base(manifest):
        found = find_base(manifest, base)
        return for_task(manifest, trained_architecture(manifest, anchors.values, found))
    check_no_base(anchors.run_id, base)
    if manifest.model.kind == "hf":
        return for_task(manifest, trained_architecture(manifest, anchors.values))
    check_built_in(anchors.run_id, manifest)
    model = build_model(manifest.model, manifest.seed)
    fill_module(model, manifest, anchors.values)
    return model


def check_no_base(what: object, base: Path | None) -> None:
    """Check that no base was given for a model that needs none.

    Raises:
        UsageFault: a base was given.
    """
    if base is not None:
        raise UsageFault(f"--base is given, but {what} needs none; expected --base only with an adapter; leave it out.")


def check_built_in(run_id: str, manifest: RunManifest) -> None:
    """Check that this software can build the run's model without its owner's code.

    Raises:
        Incompatible: the model is of the owner's code.
    """
    if manifest.model.kind == "custom":
        raise Incompatible(
            f"run {run_id} trains a model from its owner's own code (kind {manifest.model.kind!r}); expected the "
            "built-in GPT or an architecture of transformers; export it, and load it with that code and "
            "murmuration.load_export"
        )


def _checked(path: Path, exported: ExportedModel, digest: str) -> ExportedModel:
    if digest != exported.header.parameters_sha256:
        raise LocalFault(f"{path} is damaged: its parameters do not match the digest in its config; export it again")
    return exported
