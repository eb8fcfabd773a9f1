"""`peer export`: the model a run has made, taken home."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dht.errors import UsageFault
from dht.quantities import bytes_text, count_text, plural
from peer.export.formats.model_file import check_writable, write_model
from peer.export.formats.model_folder import check_folder, write_folder
from peer.export.model_source import Form, ModelSource
from peer.export.push import check_push, push_folder
from peer.export.taking import anchors_of


def export_model(
    source: ModelSource, out: Path, force: bool, as_json: bool, form: Form = "safetensors", push: str | None = None
) -> int:
    """Write a run's model to `out`; returns the exit code.

    Args:
        form: hf: `out` is a folder; safetensors: a file, with its `config.json` beside it.
        push: name of a repository on the Hugging Face Hub that the folder goes to as well.

    Raises:
        LocalFault: nobody reachable, anchors that members do not confirm, a file in the way, a full disk; the
            sentence says which.
    """
    if push is not None:
        if form != "hf":
            raise UsageFault(f"--push is given with --out {out}; expected a folder: no --format and no .safetensors.")
        check_push(push)
    check, write = (check_folder, write_folder) if form == "hf" else (check_writable, write_model)
    check(out, replace=force)
    anchors = anchors_of(source)
    config = write(anchors, out, time.time(), replace=force)
    address = None if push is None else push_folder(out, push, f"{anchors.run_id}, {anchors.tokens} tokens")
    if as_json:
        print(
            json.dumps(
                {
                    "out": str(out),
                    "pushed": address,
                    **{key: value for key, value in config.items() if key != "manifest"},
                }
            )
        )
        return 0
    print(f"Model       {out}  ({bytes_text(anchors.num_bytes)}{_kind_text(config)})")
    print(f"From        {anchors.origin}")
    for facts in anchors.facts:
        confirmed = f"confirmed by {plural(facts.num_confirmed, 'member')}" if facts.num_confirmed else "as saved"
        print(f"Fragment {facts.index:<3}version {facts.version}, digest {facts.digest[:16]}, {confirmed}")
    loss = "not known" if anchors.held_out_loss is None else f"{anchors.held_out_loss:.4f} nats per token"
    print(f"Tokens      {count_text(anchors.tokens)} committed; held-out loss {loss} (reported by members)")
    if address is not None:
        print(f"Pushed      {address}")
    return 0


def _kind_text(config: Mapping[str, Any]) -> str:
    """What loads it, behind its size."""
    if config.get("architecture"):
        return f", {config['architecture']}: transformers loads the folder"
    custom = config["manifest"]["model"]["kind"] == "custom"
    return ", flat fragments of a module from its owner's own code: load them with that code" if custom else ""
