"""A model ready for use, wherever it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.config.allowed_files import named_file
from peer.config.manifest import RunManifest
from peer.export.formats.adapter_files import CONFIG_NAME as ADAPTER_CONFIG
from peer.export.formats.anchors import Anchors
from peer.export.formats.folder_contents import FolderContents, built_in_contents, contents_of
from peer.export.formats.model_file import cannot_be_written
from peer.export.formats.model_folder import MAX_SHARD_BYTES
from peer.export.formats.model_header import read_header
from peer.export.formats.model_reading import adapter_alone, model_of, read_model
from peer.export.formats.stored_weights import run_json
from peer.export.members_anchors import anchors_of_members
from peer.export.model_source import CheckpointSource, ModelFileSource, ModelSource, RunSource
from peer.export.saved_anchors import anchors_of_checkpoint
from peer.files.checked_folder import objection_to
from peer.trainer.data.loaded_tokenizer import TOKENIZER_NAME


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model ready for use, wherever it came from."""

    model: nn.Module
    manifest: RunManifest
    run_id: str
    versions: tuple[int, ...]
    tokens: int
    tokenizer: Path | None = None
    """The run's tokenizer.json, checked by its digest; None: it has none, or none is beside this model."""


def anchors_of(source: ModelSource) -> Anchors:
    """A run's anchors, with a line of progress on a terminal.

    Raises:
        LocalFault: they cannot be had; the sentence says why.
    """
    match source:
        case RunSource():
            return anchors_of_members(source)
        case CheckpointSource():
            return anchors_of_checkpoint(source)
        case ModelFileSource():
            raise UsageFault(f"{source.path} is a model file already; expected a run or a checkpoint to take it from.")


def open_model(source: ModelSource, base: Path | None = None) -> OpenedModel:
    """The model of any source, on the CPU.

    Args:
        base: folder with the weights that an adapter stands on; None: the hub's, where the run names them so.

    Raises:
        LocalFault: it cannot be had; the sentence says why.
    """
    if isinstance(source, ModelFileSource):
        found = read_model(source.path, base)
        header, manifest = found.header, found.manifest
        tokenizer = _tokenizer_in(source.path, manifest)
        return OpenedModel(found.model, manifest, header.run_id, tuple(header.versions), header.tokens, tokenizer)
    anchors = anchors_of(source)
    manifest, named = anchors.manifest, anchors.manifest.data.tokenizer
    tokenizer = None if named is None or anchors.files is None else anchors.files / named
    return OpenedModel(model_of(anchors, base), manifest, anchors.run_id, anchors.versions, anchors.tokens, tokenizer)


def _tokenizer_in(folder: Path, manifest: RunManifest) -> Path | None:
    """The run's tokenizer in an exported folder.

    Raises:
        LocalFault: it is another one.
    """
    path, named = folder / TOKENIZER_NAME, manifest.data.tokenizer
    if named is None or not path.is_file():
        return None
    objection = objection_to(path, named_file(manifest.files, named, "data.tokenizer"))
    if objection:
        raise LocalFault(f"{path} {objection}; expected the run's tokenizer; export the model again")
    return path


def loadable_folder(source: ModelSource, room: Path) -> tuple[Path, dict[str, Any]]:
    """A folder of the model that transformers loads, with a tokenizer, and whose it is: run_id, versions, tokens.

    Args:
        room: an empty folder for it; what is there already as a folder is used where it lies, after a check.

    Raises:
        Incompatible: no class of transformers is this model, or it has no tokenizer.
        LocalFault: the model cannot be had; the sentence says why.
    """
    if isinstance(source, ModelFileSource):
        if (source.path / ADAPTER_CONFIG).is_file():
            raise adapter_alone(read_header(source.path, run_json(source.path))[1].run_id)
        found = read_model(source.path)
        folder, header, manifest = source.path, found.header, found.manifest
        facts = {"run_id": header.run_id, "versions": list(header.versions), "tokens": header.tokens}
        if not folder.is_dir():
            tensors = {name: parameter.detach() for name, parameter in found.model.named_parameters()}
            folder = _written(built_in_contents(manifest, tensors), room)
    else:
        anchors = anchors_of(source)
        manifest = anchors.manifest
        if manifest.model.kind == "custom":
            raise Incompatible(
                f"run {anchors.run_id} trains a model from its owner's own code; expected one that transformers loads"
            )
        if manifest.model.adapter is not None:
            raise adapter_alone(anchors.run_id)
        facts = {"run_id": anchors.run_id, "versions": list(anchors.versions), "tokens": anchors.tokens}
        folder = _written(contents_of(anchors), room)
    if manifest.model.task not in (None, "causal-lm"):
        raise Incompatible(
            f"run {facts['run_id']} trains a model for {manifest.model.task}; expected one that writes on from a text "
            "(causal-lm), which tasks of lm-eval ask for; load its export with transformers, and measure it there"
        )
    if not (folder / TOKENIZER_NAME).is_file():
        raise Incompatible(
            f"run {facts['run_id']} reads tokens of its own ({manifest.data.source}) and brings no tokenizer; "
            "expected a run that reads bytes; export the model and put its tokenizer into the folder"
        )
    return folder, facts


def _written(contents: FolderContents, folder: Path) -> Path:
    try:
        contents.write(folder, MAX_SHARD_BYTES)
    except (OSError, SafetensorError) as error:
        raise cannot_be_written(folder, None, error) from error
    return folder
