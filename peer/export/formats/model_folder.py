"""The contents of a folder that transformers loads, by the kind of model, and how they are written: weights and
configuration, tokenizer, model card.

`run.json` contains the facts about the run; `config.json` belongs to the architecture.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.regular_files import sync
from peer.config.allowed_files import TOKENIZER_NAME
from peer.config.manifest import RunManifest
from peer.export.formats.anchors import Anchors, named_tensors, own_module_tensors, parameters_sha256, run_facts
from peer.export.formats.custom_module import custom_sha256
from peer.export.formats.hf_architecture import (
    adapter_tensors,
    architecture_digest,
    architecture_notes,
    save_adapter,
    save_architecture,
    trained_architecture,
)
from peer.export.formats.llama import ARCHITECTURE, llama_config, llama_tensors
from peer.export.formats.model_card import model_card
from peer.export.formats.model_header import RUN_NAME
from peer.export.formats.output_place import check_folder
from peer.export.formats.tokenizer_files import run_file_copies, tokenizer_files
from peer.trainer.hf.base_weights import find_base
from peer.trainer.hf.run_model import stands_on_base

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
ADAPTER = "PeftModel"
"""The class of peft that loads an adapter."""
CONFIG_NAME = "config.json"
GENERATION_NAME = "generation_config.json"
CARD_NAME = "README.md"
MAX_SHARD_BYTES = 5_000_000_000
"""Size limit of one weights file: a size that hubs accept, and that can be downloaded again after an interruption."""


@dataclass(frozen=True, slots=True)
class FolderContents:
    """The files to write.

    Attributes:
        architecture: the class of transformers that loads the folder; empty: none.
        save_weights: writes weights and their configuration into a folder; its second argument is the largest file
            size.
        files: small additional files: name -> contents, or the path to copy from.
        parameters_digest: `parameters_sha256` of the parameters in the run's order; empty: it cannot be checked.
        notes: sentences for the model card.
    """

    architecture: str
    save_weights: Callable[[Path, int], None]
    files: Mapping[str, bytes | Path]
    parameters_digest: str = ""
    notes: tuple[str, ...] = ()

    def write(self, folder: Path, max_shard_bytes: int) -> None:
        """Write all files into `folder`.

        Raises:
            OSError, SafetensorError: the disk is full or broken.
        """
        self.save_weights(folder, max_shard_bytes)
        for name, content in self.files.items():
            if (folder / name).exists():
                continue  # weights and configuration take precedence
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            else:
                shutil.copyfile(content, folder / name)


def contents_of(anchors: Anchors, base: Path | None = None, *, merge: bool = False) -> FolderContents:
    """Return the contents of the folder of a run's model.

    Args:
        base: folder with the weights on which the run is based; None: the hub's, if the manifest refers to the hub.
        merge: merge an adapter into its base, whose weights the folder then also contains.

    Raises:
        UsageFault: a library that the model needs is not installed, or the base is missing or was given needlessly.
        Incompatible: the anchors do not fit the manifest, or the base is a different one.
    """
    section = anchors.manifest.model
    kind = section.kind
    if section.adapter is None and (merge or (base is not None and not stands_on_base(anchors.manifest))):
        raise UsageFault(
            f"{'--merge' if merge else '--base'} is given, but run {anchors.run_id} trains no adapter; expected "
            "neither --merge nor --base; leave it out."
        )
    if section.adapter is not None and not merge:
        if base is not None:
            raise UsageFault("--base is given without --merge; expected both: an adapter alone needs no base.")
        files, _ = tokenizer_files(anchors.manifest, anchors.files)
        adapter = adapter_tensors(anchors.manifest, anchors.values)
        return FolderContents(ADAPTER, lambda folder, _: save_adapter(*adapter, folder), files)
    if kind == "gpt":
        return _built_in_contents(anchors.manifest, named_tensors(anchors), anchors.files)
    if kind == "hf":
        files, end_token = tokenizer_files(anchors.manifest, anchors.files)
        found = find_base(anchors.manifest, base) if merge or stands_on_base(anchors.manifest) else None
        whole = trained_architecture(anchors.manifest, anchors.values, found)
        save = partial(save_architecture, whole, end_token=end_token)
        digest, notes = architecture_digest(anchors.manifest, whole), architecture_notes(anchors.manifest, whole)
        return FolderContents(type(whole).__name__, save, files, digest, notes)
    tensors = own_module_tensors(anchors)
    copies = run_file_copies(anchors.manifest, anchors.files)
    return FolderContents("", partial(_save_weights, tensors), copies, custom_sha256(tensors))


def _built_in_contents(manifest: RunManifest, tensors: Mapping[str, Tensor], run_files: Path | None) -> FolderContents:
    """Return the contents for the built-in model in Llama's format.

    Args:
        tensors: tensors under the model's own names, in order.
        run_files: folder with the run's verified files; None: the run has none.
    """
    tokenizer, end = tokenizer_files(manifest, run_files)
    files = {
        CONFIG_NAME: json_bytes(llama_config(manifest.model, end)),
        GENERATION_NAME: json_bytes({"bos_token_id": None, "eos_token_id": end, "pad_token_id": end}),
        **tokenizer,
    }
    save = partial(_save_weights, llama_tensors(manifest.model, tensors))
    return FolderContents(ARCHITECTURE, save, files, parameters_sha256(tensors))


def json_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return fields as readable JSON."""
    return json.dumps(fields, indent=2).encode() + b"\n"


def _save_weights(tensors: Mapping[str, Tensor], folder: Path, max_shard_bytes: int) -> None:
    """Write tensors as one file, or as shards with an index."""
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
        return
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name, metadata=metadata)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
    }
    (folder / INDEX_NAME).write_bytes(json_bytes(index))


def write_folder(
    anchors: Anchors,
    folder: Path,
    now: float,
    *,
    replace: bool,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    base: Path | None = None,
    merge: bool = False,
) -> dict[str, Any]:
    """Write the model as a folder, atomically; return the content of `run.json`.

    Args:
        replace: replace an earlier export.
        max_shard_bytes: size of one weights file; larger weights are split, except a single tensor.
        base, merge: see `contents_of`.

    Raises:
        UsageFault: see `check_folder`.
        Incompatible: the anchors do not fit the manifest.
        LocalFault: the disk is full or broken; an earlier folder is untouched.
    """
    check_folder(folder, replace=replace)
    contents = contents_of(anchors, base, merge=merge)
    try:
        draft = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.absolute().name}."))
        try:
            facts = _fill(draft, anchors, contents, now, max_shard_bytes)
            _put_in_place(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LocalFault(
            f"{folder} cannot be written: {reason}; expected a writable folder with room for the model; no "
            "partial files are left there"
        ) from error
    return facts


def _fill(folder: Path, anchors: Anchors, contents: FolderContents, now: float, max_shard_bytes: int) -> dict[str, Any]:
    contents.write(folder, max_shard_bytes)
    written = sorted(entry.name for entry in folder.iterdir())
    names = [*written, CARD_NAME, RUN_NAME]
    facts = run_facts(anchors, contents.parameters_digest, now, architecture=contents.architecture, files=names)
    card = model_card(anchors, contents.architecture, contents.notes, has_tokenizer=TOKENIZER_NAME in written)
    for name, data in ((CARD_NAME, card.encode()), (RUN_NAME, json_bytes(facts))):
        (folder / name).write_bytes(data)
    for name in names:
        (folder / name).chmod(0o644)
        sync(folder / name)
    folder.chmod(0o755)
    return facts


def _put_in_place(draft: Path, folder: Path) -> None:
    """Rename `draft` to `folder`; delete an earlier folder only when the new one is in place."""
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
