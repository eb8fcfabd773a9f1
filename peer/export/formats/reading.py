"""A model that was taken home, read again: every name, shape and bit is checked.

Loading a file maps it; its length bounds what it holds, and the manifest's model is only built when it is that large.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from dht.errors import DeviceFault, Incompatible, LocalFault, UsageFault
from dht.regular_files import read_regular
from peer.config.layouts import layout_of, parameter_shapes
from peer.config.least_memory import check_memory, free_memory_bytes
from peer.config.manifest import RunManifest
from peer.export.formats.adapter_files import CONFIG_NAME as ADAPTER_CONFIG
from peer.export.formats.anchors import Anchors
from peer.export.formats.architecture import as_language_model, read_architecture, trained_architecture
from peer.export.formats.llama import built_in_tensors, llama_shapes
from peer.export.formats.model_file import CONFIG_NAME
from peer.export.formats.model_folder import RUN_NAME
from peer.export.formats.model_header import HEADER_KEY, MAX_CONFIG_BYTES, ModelHeader, read_header
from peer.trainer.model.evaluation import load_anchors
from peer.trainer.model.gpt import build_model, parameters_digest

_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_MAX_SHARDS = 10_000


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model and what its file or folder says about it."""

    model: nn.Module
    manifest: RunManifest
    config: Mapping[str, Any]
    header: ModelHeader


def read_model(path: Path) -> ModelFile:
    """Read what `peer export` wrote: a file of a built-in model, or a folder.

    The model is a `LanguageModel` if that is what the run trains, or else the module of transformers.

    Raises:
        UsageFault: no such file or folder, or not of this software, or transformers is needed and not installed.
        Incompatible: written by another version, or of a run with a model of its owner's own code.
        DeviceFault: this machine has no memory for it.
        LocalFault: it is damaged.
    """
    path = Path(path)
    try:
        if path.is_dir():
            config, header, manifest = read_header(path, _run_json(path))
            if manifest.model.kind == "hf":
                if (path / ADAPTER_CONFIG).is_file():
                    raise adapter_alone(header.run_id)
                check_memory(manifest, "read", free_memory_bytes())
                module = read_architecture(manifest, path)
                return _checked(path, ModelFile(as_language_model(manifest, module), manifest, config, header), module)
        with _stored(path) as stored:
            config, header, manifest = read_header(path, stored.header)
            check_built_in(header.run_id, manifest)
            shapes = dict(parameter_shapes(manifest.model))
            stored.check_shapes(llama_shapes(manifest.model, shapes) if stored.is_llama else shapes)
            check_memory(manifest, "read", free_memory_bytes())
            model = build_model(manifest.model, manifest.seed)
            parameters = dict(model.named_parameters())
            named = (
                built_in_tensors(manifest.model, stored.tensor)
                if stored.is_llama
                else ((name, stored.tensor(name)) for name in parameters)
            )
            with torch.no_grad():
                for name, tensor in named:
                    parameters[name].copy_(tensor)
    except (OSError, SafetensorError) as error:
        raise UsageFault(f"{path} is no whole safetensors file ({error}); export the model again.") from error
    except RuntimeError as error:
        # torch, which maps the file: a file of holes may be longer than the memory.
        raise DeviceFault(
            f"{path} cannot be mapped into memory ({str(error).splitlines()[0]:.200}); expected a machine with room "
            "for it; end other programs, or export the model again"
        ) from error
    return _checked(path, ModelFile(model, manifest, config, header), model)


def model_of(anchors: Anchors) -> nn.Module:
    """The run's model with the anchors as its parameters, as `read_model` gives it.

    Raises:
        UsageFault: transformers is needed and not installed.
        Incompatible: the run trains a model from its owner's own code, or the anchors do not fit the manifest.
    """
    manifest = anchors.manifest
    if manifest.model.adapter is not None:
        raise adapter_alone(anchors.run_id)
    if manifest.model.kind == "hf":
        return as_language_model(manifest, trained_architecture(manifest, anchors.values).module)
    check_built_in(anchors.run_id, manifest)
    model = build_model(manifest.model, manifest.seed)
    layout = layout_of(manifest, [(name, tuple(p.shape)) for name, p in model.named_parameters()])
    load_anchors(model, layout, anchors.values)
    return model


def adapter_alone(run_id: str) -> Incompatible:
    """The sentence about an adapter without its base."""
    return Incompatible(
        f"run {run_id} trains an adapter, which says nothing without its base; expected a merged model; use `peer "
        "export --merge --base DIR --out FOLDER`, then --model FOLDER"
    )


def check_built_in(run_id: str, manifest: RunManifest) -> None:
    """Whether this software can build the run's model without its owner's code.

    Raises:
        Incompatible: it cannot.
    """
    if manifest.model.kind == "custom":
        raise Incompatible(
            f"run {run_id} trains a model from its owner's own code (kind {manifest.model.kind!r}); expected the "
            "built-in GPT; export the fragments and load them with that code"
        )
    if manifest.model.kind == "hf":
        raise Incompatible(
            f"this file is of run {run_id}, whose model is an architecture of transformers; expected the folder that "
            "`peer export` wrote; give --model FOLDER"
        )


def _checked(path: Path, found: ModelFile, module: nn.Module) -> ModelFile:
    if parameters_digest(module).hex() != found.header.parameters_sha256:
        raise LocalFault(f"{path} is damaged: its parameters do not have the digest of its config; export it again")
    return found


@dataclass(frozen=True, slots=True)
class _Stored:
    """Open files of weights.

    Attributes:
        header: the JSON that says which run they are of.
        files: name of each tensor -> the file that holds it.
    """

    path: Path
    header: str
    files: Mapping[str, Any]
    is_llama: bool

    def tensor(self, name: str) -> torch.Tensor:
        """One of those that `check_shapes` has found."""
        tensor: torch.Tensor = self.files[name].get_tensor(name)
        return tensor

    def check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Whether exactly these are there, in float32.

        Raises:
            LocalFault: they are not.
        """
        if set(self.files) != set(shapes):
            raise LocalFault(f"{self.path} has other parameters than its manifest describes; export the model again")
        for name, shape in shapes.items():
            found = self.files[name].get_slice(name)
            if found.get_shape() != list(shape) or found.get_dtype() != "F32":
                raise LocalFault(
                    f"{self.path}: {name} is {found.get_dtype()} {found.get_shape()}; expected F32 {list(shape)}; "
                    "export the model again"
                )


@contextmanager
def _stored(path: Path) -> Iterator[_Stored]:
    if not path.is_dir():
        if not path.is_file():
            raise UsageFault(f"{path} is no file; expected a file or folder that `peer export` wrote.")
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(HEADER_KEY, "")
            yield _Stored(path, header, dict.fromkeys(file.keys(), file), is_llama=False)
        return
    header = _run_json(path)
    names = sorted(entry.name for entry in path.iterdir() if _WEIGHTS.fullmatch(entry.name) and entry.is_file())
    if not names or len(names) > _MAX_SHARDS:
        raise UsageFault(f"{path} has {len(names)} files of weights; expected model.safetensors or its shards.")
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for name in names:
            file = stack.enter_context(safe_open(path / name, framework="pt"))
            files |= dict.fromkeys(file.keys(), file)
        yield _Stored(path, header, files, is_llama=True)


def _run_json(folder: Path) -> str:
    if not (folder / RUN_NAME).exists() and (folder / CONFIG_NAME).exists():
        raise UsageFault(
            f"{folder} has no {RUN_NAME}; expected a folder that `peer export` wrote; give the model file in it "
            "if it is of the other form."
        )
    try:
        return read_regular(folder / RUN_NAME, MAX_CONFIG_BYTES).decode()
    except (OSError, ValueError) as error:
        raise UsageFault(
            f"{folder / RUN_NAME} cannot be read ({getattr(error, 'strerror', None) or 'no text'}); expected a folder "
            "that `peer export` wrote."
        ) from error
