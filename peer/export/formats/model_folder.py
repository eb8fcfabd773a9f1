"""The model as a folder that transformers loads: weights and configuration of the architecture, tokenizer, model card.

`run.json` says what `config.json` says beside a model file: the latter name belongs to the architecture here. Nothing
of this needs transformers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from dht.errors import UsageFault
from dht.regular_files import read_regular
from peer.config.manifest import RunManifest
from peer.export.formats.anchors import Anchors, named_tensors, parameters_sha256, run_facts
from peer.export.formats.byte_tokenizer import END_TOKEN, byte_tokenizer_files
from peer.export.formats.llama import ARCHITECTURE, llama_config, llama_tensors
from peer.export.formats.model_card import model_card
from peer.export.formats.model_file import cannot_be_written, check_parent, sync
from peer.export.formats.model_header import MAX_CONFIG_BYTES
from peer.trainer.model.sampling import NUM_BYTES

RUN_NAME = "run.json"
CARD_NAME = "README.md"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000
"""Of one file of weights: what hubs take in one piece, and what a line that breaks off can fetch again."""


@dataclass(frozen=True, slots=True)
class FolderContents:
    """What a folder holds besides `run.json` and the model card.

    Attributes:
        architecture: the class of transformers that loads it; empty: none does.
        parameters_digest: `parameters_sha256` of the parameters in the run's order.
        files: name -> contents of the small ones.
    """

    architecture: str
    tensors: Mapping[str, Tensor]
    parameters_digest: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


def check_folder(folder: Path, *, replace: bool) -> None:
    """Before anything is downloaded: may the model go there?

    Raises:
        UsageFault: there is something already that may not be replaced, or no place for a new folder.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageFault(f"--out {folder} is no folder; expected a new one; choose another --out.")
    check_parent(folder.absolute())
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not replace:
        raise UsageFault(
            f"{folder} is there already, with files in it; expected a new folder; choose another --out or give --force."
        )
    # Whoever says --force gives up an earlier model, and nothing else that lies there.
    others = sorted({entry.name for entry in folder.iterdir()} - _files_of_earlier(folder))
    if others:
        raise UsageFault(
            f"{folder} holds {others[0]!r}, which no export wrote there; expected an earlier export or a new folder; "
            "move that file away or choose another --out."
        )


def write_folder(
    anchors: Anchors, folder: Path, now: float, *, replace: bool, max_shard_bytes: int = MAX_SHARD_BYTES
) -> dict[str, Any]:
    """Write the model as a folder, whole or not at all; returns what `run.json` says.

    Args:
        replace: an earlier export there gives way.
        max_shard_bytes: of one file of weights; larger ones are split, but for a single tensor.

    Raises:
        UsageFault: see `check_folder`.
        Incompatible: the anchors do not fit the manifest.
        LocalFault: the disk is full or broken; an earlier folder is untouched.
    """
    check_folder(folder, replace=replace)
    contents = contents_of(anchors)
    try:
        draft = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.absolute().name}."))
        try:
            facts = _fill(draft, anchors, contents, now, max_shard_bytes)
            _put_in_place(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise cannot_be_written(folder, anchors.num_bytes, error) from error
    return facts


def contents_of(anchors: Anchors) -> FolderContents:
    """What the folder of a run's model holds.

    Raises:
        Incompatible: the anchors do not fit the manifest.
    """
    if anchors.manifest.model.kind != "gpt":
        fragments = {f"fragment.{index}": torch.from_numpy(values) for index, values in sorted(anchors.values.items())}
        return FolderContents("", fragments)
    return built_in_contents(anchors.manifest, named_tensors(anchors))


def built_in_contents(manifest: RunManifest, tensors: Mapping[str, Tensor]) -> FolderContents:
    """The built-in model as a Llama; `tensors` under its own names, in order."""
    model = manifest.model
    takes_bytes = manifest.data.has_byte_tokens and model.vocab_size >= NUM_BYTES
    end_token = END_TOKEN if takes_bytes else None
    generation = {"bos_token_id": None, "eos_token_id": end_token, "pad_token_id": end_token}
    files = {
        "config.json": json_bytes(llama_config(model, end_token)),
        "generation_config.json": json_bytes(generation),
        **(byte_tokenizer_files(model.context) if takes_bytes else {}),
    }
    return FolderContents(ARCHITECTURE, llama_tensors(model, tensors), parameters_sha256(tensors), files)


def write_contents(folder: Path, contents: FolderContents, max_shard_bytes: int = MAX_SHARD_BYTES) -> list[str]:
    """Write weights and small files into a folder; returns their names.

    Raises:
        OSError, SafetensorError: the disk is full or broken.
    """
    for name, data in contents.files.items():
        (folder / name).write_bytes(data)
    return [*_save_weights(folder, contents.tensors, max_shard_bytes), *contents.files]


def _save_weights(folder: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int) -> list[str]:
    """Write tensors as one file, or as shards with an index; returns the names of the files."""
    shards: list[dict[str, Tensor]] = [{}]
    room = max_shard_bytes
    for name, tensor in tensors.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = max_shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    metadata = {"format": "pt"}
    if len(shards) == 1:
        save_file(shards[0], folder / WEIGHTS_NAME, metadata=metadata)
        return [WEIGHTS_NAME]
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name, metadata=metadata)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
    }
    (folder / INDEX_NAME).write_bytes(json_bytes(index))
    return [*names, INDEX_NAME]


def json_bytes(fields: Mapping[str, Any]) -> bytes:
    """Fields as people read them in a file."""
    return json.dumps(fields, indent=2).encode() + b"\n"


def _fill(folder: Path, anchors: Anchors, contents: FolderContents, now: float, max_shard_bytes: int) -> dict[str, Any]:
    names = [*write_contents(folder, contents, max_shard_bytes), CARD_NAME, RUN_NAME]
    facts = run_facts(anchors, contents.parameters_digest, now, architecture=contents.architecture, files=names)
    card = model_card(anchors, contents.architecture, has_tokenizer="tokenizer.json" in contents.files)
    for name, data in ((CARD_NAME, card.encode()), (RUN_NAME, json_bytes(facts))):
        (folder / name).write_bytes(data)
    for name in names:
        (folder / name).chmod(0o644)
        sync(folder / name)
    folder.chmod(0o755)
    return facts


def _put_in_place(draft: Path, folder: Path) -> None:
    """Give `draft` the name `folder`; what has that name goes only when the new one is there."""
    if not folder.is_dir() or not any(folder.iterdir()):
        os.replace(draft, folder)
        return
    earlier = Path(f"{draft}.earlier")
    os.replace(folder, earlier)
    try:
        os.replace(draft, folder)
    except OSError:
        os.replace(earlier, folder)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def _files_of_earlier(folder: Path) -> set[str]:
    """Names of the files that an export wrote into `folder`, as it says itself; empty: it is of something else."""
    try:
        names = json.loads(read_regular(folder / RUN_NAME, MAX_CONFIG_BYTES))["files"]
        return {name for name in names if isinstance(name, str)}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return set()
