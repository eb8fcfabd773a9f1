"""Writes the model as a folder that transformers loads: weights and configuration, tokenizer, model card.

`run.json` contains the facts about the run; `config.json` belongs to the architecture.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dht.ground.errors import LocalFault
from dht.ground.regular_files import sync
from peer.config.allowed_files import TOKENIZER_NAME
from peer.export.formats.anchors import Anchors, run_facts
from peer.export.formats.folder_contents import FolderContents, contents_of, json_bytes
from peer.export.formats.model_card import model_card
from peer.export.formats.model_header import RUN_NAME
from peer.export.formats.output_place import check_folder

CARD_NAME = "README.md"
MAX_SHARD_BYTES = 5_000_000_000
"""Size limit of one weights file: a size that hubs accept, and that can be downloaded again after an interruption."""


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
            f"{folder} cannot be written: {reason}; expected a writable folder with room for the model; nothing "
            "half-written is left there"
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
