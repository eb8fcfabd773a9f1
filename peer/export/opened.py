"""A model ready for use, wherever it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dht.errors import Incompatible
from peer.config.manifest import RunManifest
from peer.export.formats.model_file import cannot_be_written
from peer.export.formats.model_folder import built_in_contents, write_contents
from peer.export.formats.reading import model_of, read_model
from peer.export.model_source import ModelFileSource, ModelSource
from peer.export.taking import anchors_of
from peer.trainer.model.gpt import GPT


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model ready for use, wherever it came from."""

    model: GPT
    manifest: RunManifest
    run_id: str
    versions: tuple[int, ...]
    tokens: int

    @property
    def reads_bytes(self) -> bool:
        """Whether its tokens are the bytes of text."""
        return self.manifest.data.has_byte_tokens


def open_model(source: ModelSource) -> OpenedModel:
    """The model of any source, on the CPU.

    Raises:
        LocalFault: it cannot be had; the sentence says why.
    """
    if isinstance(source, ModelFileSource):
        found = read_model(source.path)
        header = found.header
        return OpenedModel(found.model, found.manifest, header.run_id, tuple(header.versions), header.tokens)
    anchors = anchors_of(source)
    return OpenedModel(model_of(anchors), anchors.manifest, anchors.run_id, anchors.versions, anchors.tokens)


def loadable_folder(source: ModelSource, room: Path) -> tuple[Path, dict[str, Any]]:
    """A folder of the model that transformers loads, and whose model it is: run_id, versions, tokens.

    Args:
        room: an empty folder for it; what is there already as a folder is used where it lies, after a check.

    Raises:
        Incompatible: no class of transformers is this model.
        LocalFault: the model cannot be had; the sentence says why.
    """
    opened = open_model(source)
    if not opened.reads_bytes:
        raise Incompatible(
            f"run {opened.run_id} reads tokens of its own ({opened.manifest.data.source}) and brings no tokenizer; "
            "expected a run that reads bytes; export the model and put its tokenizer into the folder"
        )
    facts = {"run_id": opened.run_id, "versions": list(opened.versions), "tokens": opened.tokens}
    if isinstance(source, ModelFileSource) and source.path.is_dir():
        return source.path, facts
    tensors = {name: parameter.detach() for name, parameter in opened.model.named_parameters()}
    try:
        write_contents(room, built_in_contents(opened.manifest, tensors))
    except (OSError, SafetensorError) as error:
        raise cannot_be_written(room, sum(tensor.nbytes for tensor in tensors.values()), error) from error
    return room, facts
