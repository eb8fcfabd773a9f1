"""The source of a model: exactly one of an exported folder, a checkpoint of this machine, or a live run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dht.ground.errors import UsageFault, reading
from dht.ground.regular_files import read_regular
from dht.identity.keys import split_run_id
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, claimed_run_id
from peer.observe.run_and_address import Target


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """The newest checkpoint in the data folder of a peer of this run."""

    run_id: str
    folder: Path


def run_in(folder: Path) -> str:
    """Return the run of a peer's data folder, from its run record, which is verified later when the model is read.

    Raises:
        UsageFault: the record cannot be read.
    """
    path = folder / "run.record"
    with reading(path, "the record of a run."):
        found = claimed_run_id(read_regular(path, MAX_RUN_RECORD_BYTES))
    if found is None:
        raise UsageFault(f"{path} contains no run; expected the run record of a peer; pass RUN as well.")
    split_run_id(found)
    return found


ModelSource = Path | CheckpointSource | Target
"""A `Path` is an exported folder, a `Target` a live run."""
