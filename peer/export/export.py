"""`peer export`: writes the model of a run as a folder."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dht.ground.quantities import bytes_text, count_text, plural
from peer.export.formats.model_card import validation_text
from peer.export.formats.model_folder import ADAPTER, write_folder
from peer.export.hub_push import push_folder
from peer.export.model_source import ModelSource
from peer.export.run_anchors import anchors_of


def export_model(
    source: ModelSource,
    out: Path,
    force: bool,
    as_json: bool,
    push: str | None = None,
    merge: bool = False,
    base: Path | None = None,
) -> int:
    """Write a run's model to the folder `out`; return the exit code.

    Args:
        merge: write an adapter merged into its base, instead of the adapter alone.
        base: folder with that base; None: the hub's.
        push: name of a repository on the Hugging Face Hub to which the folder is also uploaded.

    Raises:
        LocalFault: no member is reachable, members do not confirm the anchors, a file is in the way, or the disk is
            full; the message gives the reason.
    """
    anchors = anchors_of(source)
    config = write_folder(anchors, out, time.time(), replace=force, base=base, merge=merge)
    work = f"{anchors.tokens} tokens"
    address = None if push is None else push_folder(out, push, f"{anchors.run_id}, {work}")
    if as_json:
        facts = {key: value for key, value in config.items() if key != "manifest"}
        print(json.dumps({"out": str(out), "pushed": address, **facts}))
        return 0
    num_bytes = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    print(f"Model       {out}  ({bytes_text(num_bytes)}{_kind_text(config)})")
    print(f"From        {anchors.origin}")
    for one in anchors.facts:
        confirmed = f"confirmed by {plural(one.num_confirmed, 'member')}" if one.num_confirmed else "as saved"
        print(f"Fragment {one.index:<3}version {one.version}, digest {one.digest[:16]}, {confirmed}")
    loss = "" if anchors.evaluation is None else f"; validation loss {validation_text(anchors)} (reported by members)"
    print(f"Tokens      {count_text(anchors.tokens)} committed{loss}")
    if address is not None:
        print(f"Pushed      {address}")
    return 0


def _kind_text(config: Mapping[str, Any]) -> str:
    """Return how the folder is loaded, as a continuation of the size."""
    if config.get("architecture") == ADAPTER:
        return ", an adapter: peft loads the folder together with its base"
    if config.get("architecture"):
        return f", {config['architecture']}: transformers loads the folder"
    custom = config["manifest"]["model"]["kind"] == "custom"
    return ", a module from its owner's own code: load it with murmuration.load_export" if custom else ""
