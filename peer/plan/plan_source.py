"""Reads the run that `peer plan` plans: a run file, a manifest as JSON, or a signed run record."""

from __future__ import annotations

import json
from pathlib import Path

from dht.ground.errors import MurmurationError, UsageFault, reading
from dht.ground.regular_files import read_regular
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, claimed_run_id, decode_run_record
from peer.config.manifest import RunManifest
from peer.config.model_shapes import num_orthogonalised, seed_sizes
from peer.config.peer_config import RUN_RECORD_NAME, BaseBits, OptimizerBits
from peer.config.validation_sentences import read_toml
from peer.plan.planning import RunPlan, plan_run

UNNAMED = "unnamed"
"""Placeholder for the name that `peer init NAME` would set."""
MAX_RUN_FILE_BYTES = 1 << 20
"""Far above any run file with comments. Only this part of a model file given by mistake is read."""


def load_planned_run(path: Path) -> RunManifest:
    """Read the manifest of a run to plan. A run file may omit its name.

    Args:
        path: path of the file, or of the folder with the signed record that `peer init` wrote.

    Raises:
        UsageFault: the file cannot be read, or is not a run file, manifest or record; the message names a wrong field.
    """
    if path.is_dir():
        path /= RUN_RECORD_NAME
    with reading(path, "a run file or a manifest; check the path."):
        content = read_regular(path, MAX_RUN_FILE_BYTES)
    try:
        if len(content) <= MAX_RUN_RECORD_BYTES and (run_id := claimed_run_id(content)) is not None:
            return RunManifest.from_bytes(decode_run_record(content, run_id=run_id).manifest)
        if content.lstrip()[:1] == b"{":
            return RunManifest.from_fields(json.loads(content))
    except (ValueError, RecursionError, MurmurationError) as error:
        raise UsageFault(f"{path}: {error}") from error
    return RunManifest.load_toml(path, name=None if "name" in read_toml(path) else UNNAMED)


def plan_of(manifest: RunManifest, base_bits: BaseBits = "full", optimizer_bits: OptimizerBits = "32") -> RunPlan:
    """Run `plan_run` with the run's own model.

    Raises:
        Incompatible: the model cannot be cut as its manifest specifies.
        LocalFault: a library or file from which the shapes are derived is missing.
    """
    return plan_run(manifest, seed_sizes(manifest), num_orthogonalised(manifest), base_bits, optimizer_bits)
