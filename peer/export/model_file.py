"""The model as a file to take home: safetensors with the parameters, and everything about it as JSON.

The JSON lies beside the file (`config.json`) for people and inside the file for `peer sample`, so that the two cannot
be mixed up. Models of kind custom are flat fragments (`fragment.0`, ...), in the order of the owner's layout.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from averaging.arrays import F32
from averaging.outer.outer_step import anchor_digest
from dht.errors import DeviceFault, Incompatible, LocalFault, UsageFault
from peer.config.layouts import layout_of, parameter_shapes
from peer.config.least_memory import check_memory, free_memory_bytes
from peer.config.manifest import RunManifest
from peer.export.model_header import DIGEST_NAME, SCHEMA, ModelHeader, config_digest, read_header
from peer.trainer.model.evaluation import load_anchors
from peer.trainer.model.gpt import GPT, build_model, parameters_digest
from peer.version import SOFTWARE

CONFIG_NAME = "config.json"


@dataclass(frozen=True, slots=True)
class ExportedFragment:
    """One fragment of an exported model.

    Attributes:
        digest: of anchor and momentum, 64 hexadecimal digits; what members announce.
        num_confirmed: members that hold this digest at this version; 0 for a checkpoint, which nobody was asked about.
    """

    index: int
    version: int
    digest: str
    lineage_tokens: int
    num_values: int
    num_confirmed: int


@dataclass(frozen=True, slots=True)
class Anchors:
    """A run's anchors at some versions. `values`: fragment -> float32 [num_values]."""

    run_id: str
    manifest: RunManifest
    facts: tuple[ExportedFragment, ...]
    values: Mapping[int, F32]
    origin: str
    held_out_loss: float | None = None
    held_out_version: int | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        """One per fragment."""
        return tuple(facts.version for facts in self.facts)

    @property
    def tokens(self) -> int:
        """Tokens committed into the fragment that has most of them behind it."""
        return max((facts.lineage_tokens for facts in self.facts), default=0)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model and what its file says about it."""

    model: GPT
    manifest: RunManifest
    config: Mapping[str, Any]
    header: ModelHeader


def facts_of(
    index: int, version: int, lineage_tokens: int, anchor: F32, momentum: F32, num_confirmed: int
) -> ExportedFragment:
    """Facts about one fragment; its digest is computed from the values, whatever anybody said. Arrays: [n]."""
    digest = anchor_digest(anchor, momentum).hex()
    return ExportedFragment(index, version, digest, lineage_tokens, anchor.size, num_confirmed)


def model_of(anchors: Anchors) -> GPT:
    """The built-in model with the anchors as its parameters.

    Raises:
        Incompatible: the run trains a model from its owner's own code, or the anchors do not fit the manifest.
    """
    model = empty_model(anchors.run_id, anchors.manifest)
    layout = layout_of(anchors.manifest, [(name, tuple(p.shape)) for name, p in model.named_parameters()])
    load_anchors(model, layout, anchors.values)
    return model


def empty_model(run_id: str, manifest: RunManifest) -> GPT:
    """The built-in model of a run with its initial parameters.

    Raises:
        Incompatible: the run trains a model from its owner's own code.
    """
    _check_kind(run_id, manifest)
    return build_model(manifest.model, manifest.seed)


def _check_kind(run_id: str, manifest: RunManifest) -> None:
    if manifest.model.kind != "gpt":
        raise Incompatible(
            f"run {run_id} trains a model from its owner's own code (kind {manifest.model.kind!r}); expected the "
            "built-in GPT; export the fragments and load them with that code"
        )


def config_of(anchors: Anchors, parameters_sha256: str, now: float) -> dict[str, Any]:
    """What `config.json` says; `now` in unix seconds."""
    config = {
        "schema": SCHEMA,
        "run_id": anchors.run_id,
        "software": SOFTWARE,
        "exported_at": now,
        "origin": anchors.origin,
        "manifest_hash": anchors.manifest.hash.hex(),
        "manifest": json.loads(anchors.manifest.to_bytes()),
        "versions": list(anchors.versions),
        "tokens": anchors.tokens,
        "fragments": [asdict(facts) for facts in anchors.facts],
        "held_out_loss": anchors.held_out_loss,
        "held_out_version": anchors.held_out_version,
        "parameters_sha256": parameters_sha256,
    }
    return {**config, DIGEST_NAME: config_digest(config)}


def config_path_of(path: Path) -> Path:
    """Where the JSON beside a model file lies."""
    return path.parent / CONFIG_NAME


def check_writable(path: Path, *, replace: bool) -> None:
    """Before anything is downloaded: may the model go there?

    Raises:
        UsageFault: there is a file already, or the folder is not there.
    """
    if path.is_dir() or not path.name:
        raise UsageFault(f"--out {path} is a folder; expected a file such as {path / 'model.safetensors'}.")
    for target in (path, config_path_of(path)):
        if target.exists() and not replace:
            raise UsageFault(f"{target} is there already; expected a new file; choose another --out or give --force.")
    if not path.parent.is_dir():
        raise UsageFault(f"{path.parent} is no folder; expected one that exists; make it or choose another --out.")
    if not os.access(path.parent, os.W_OK):
        raise UsageFault(f"{path.parent} cannot be written; expected a writable folder; choose another --out.")


def write_model(anchors: Anchors, path: Path, now: float, *, replace: bool) -> dict[str, Any]:
    """Write the model and its `config.json`, both whole or not at all; returns the config.

    Raises:
        UsageFault: see `check_writable`.
        Incompatible: the anchors do not fit the manifest.
        LocalFault: the disk is full or broken; an earlier file is untouched.
    """
    check_writable(path, replace=replace)
    if anchors.manifest.model.kind == "gpt":
        model = model_of(anchors)
        tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
        digest = parameters_digest(model).hex()
    else:
        tensors = {f"fragment.{index}": torch.from_numpy(values) for index, values in sorted(anchors.values.items())}
        digest = ""
    config = config_of(anchors, digest, now)
    text = json.dumps(config, indent=1)
    drafts: dict[Path, Path] = {}
    try:
        for target in (path, config_path_of(path)):
            descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{target.name}.")
            os.close(descriptor)
            drafts[target] = Path(draft)
        save_file(tensors, drafts[path], metadata={"format": "pt", "config": json.dumps(config)})
        drafts[config_path_of(path)].write_text(text + "\n", encoding="utf-8")
        for target, draft_path in drafts.items():
            _sync(draft_path)
            draft_path.chmod(0o644)
            os.replace(draft_path, target)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LocalFault(
            f"{path} cannot be written: {reason}; expected a writable folder with "
            f"{sum(tensor.numel() * 4 for tensor in tensors.values()) >> 20} MiB of free space; nothing half-written "
            "is left there"
        ) from error
    finally:
        for draft_path in drafts.values():
            draft_path.unlink(missing_ok=True)
    return config


def read_model(path: Path) -> ModelFile:
    """Read what `write_model` wrote for a built-in model; every name, shape and bit is checked.

    Raises:
        UsageFault: no such file, or not a model file of this software.
        Incompatible: written by another version, or of a run with a model of its owner's own code.
        DeviceFault: this machine has no memory for it.
        LocalFault: the file is damaged.
    """
    if not path.is_file():
        raise UsageFault(f"{path} is no file; expected a model.safetensors that `peer export` wrote.")
    try:
        with safe_open(path, framework="pt") as file:
            config, header, manifest = read_header(path, (file.metadata() or {}).get("config", ""))
            _check_kind(header.run_id, manifest)
            # The file's length bounds what it holds; the manifest's model is only built when it is that large.
            _check_shapes(path, file, dict(parameter_shapes(manifest.model)))
            check_memory(manifest, "read", free_memory_bytes())
            model = build_model(manifest.model, manifest.seed)
            for name, parameter in model.named_parameters():
                with torch.no_grad():
                    parameter.copy_(file.get_tensor(name))
    except (OSError, SafetensorError) as error:
        raise UsageFault(f"{path} is no whole safetensors file ({error}); export the model again.") from error
    except RuntimeError as error:
        # torch, which maps the file: a file of holes may be longer than the memory.
        raise DeviceFault(
            f"{path} cannot be mapped into memory ({str(error).splitlines()[0]:.200}); expected a machine with room "
            "for it; end other programs, or export the model again"
        ) from error
    if parameters_digest(model).hex() != header.parameters_sha256:
        raise LocalFault(f"{path} is damaged: its parameters do not have the digest of its config; export it again")
    return ModelFile(model, manifest, config, header)


def _check_shapes(path: Path, file: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if set(file.keys()) != set(shapes):
        raise LocalFault(f"{path} has other parameters than its manifest describes; export the model again")
    for name, shape in shapes.items():
        found = file.get_slice(name)
        if found.get_shape() != list(shape) or found.get_dtype() != "F32":
            raise LocalFault(
                f"{path}: {name} is {found.get_dtype()} {found.get_shape()}; expected F32 {list(shape)}; export the "
                "model again"
            )


def _sync(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
