"""A model ready for use, from any source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from dht.ground.errors import LocalFault
from peer.config.allowed_files import TOKENIZER_NAME
from peer.config.manifest import RunManifest
from peer.export.formats.model_reading import model_of, read_model
from peer.export.model_source import ModelSource
from peer.export.run_anchors import anchors_of
from peer.files.checked_folder import objection_to


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model ready for use, from any source."""

    model: nn.Module
    manifest: RunManifest
    run_id: str
    versions: tuple[int, ...]
    tokens: int
    tokenizer: Path | None = None
    """The run's verified tokenizer.json; None: the run has none, or none is beside this model."""


def open_model(source: ModelSource, base: Path | None = None) -> OpenedModel:
    """Open the model of any source, on the CPU.

    Args:
        base: folder with the weights under an adapter; None: the hub's, if the run refers to the hub.

    Raises:
        LocalFault: the model cannot be obtained; the message gives the reason.
    """
    if isinstance(source, Path):
        found = read_model(source, base)
        header, manifest = found.header, found.manifest
        tokenizer = _tokenizer_in(source, manifest)
        return OpenedModel(found.model, manifest, header.run_id, tuple(header.versions), header.tokens, tokenizer)
    anchors = anchors_of(source)
    manifest = anchors.manifest
    tokenizer = None if manifest.tokenizer is None or anchors.files is None else anchors.files / TOKENIZER_NAME
    return OpenedModel(model_of(anchors, base), manifest, anchors.run_id, anchors.versions, anchors.tokens, tokenizer)


def _tokenizer_in(folder: Path, manifest: RunManifest) -> Path | None:
    """Return the run's tokenizer in an exported folder; None if there is none.

    Raises:
        LocalFault: the folder contains a different tokenizer.
    """
    path = folder / TOKENIZER_NAME
    if manifest.tokenizer is None or not path.is_file():
        return None
    if objection := objection_to(path, manifest.tokenizer):
        raise LocalFault(f"{path} {objection}; expected the run's tokenizer; export the model again")
    return path
