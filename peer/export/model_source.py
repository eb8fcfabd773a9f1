"""Where a model comes from: a file, a checkpoint of this machine, or a live run. Exactly one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dht.ground.errors import UsageFault, reading
from dht.ground.regular_files import read_regular
from dht.identity.keys import split_run_id
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, claimed_run_id


def check_folder_source(path: Path) -> None:
    """Refuse a path that is no exported folder, before anything is loaded that could read it.

    Raises:
        UsageFault: it is no folder with a run.json.
    """
    wanted = "a folder that `peer export` wrote"
    if not path.is_dir():
        raise UsageFault(f"{path} is no folder; expected {wanted}.")
    if not (path / "run.json").exists():
        raise UsageFault(f"{path} has no run.json; expected {wanted}.")


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder that `peer export` wrote."""

    path: Path


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """The newest checkpoint in the data folder of a peer of this run."""

    run_id: str
    folder: Path


def run_in(folder: Path) -> str:
    """The run of a peer's data folder, as its run record says; it is checked when the model is taken.

    Raises:
        UsageFault: the record cannot be read.
    """
    path = folder / "run.record"
    with reading(path, "the record of a run."):
        found = claimed_run_id(read_regular(path, MAX_RUN_RECORD_BYTES))
    if found is None:
        raise UsageFault(f"{path} names no run; expected the record that a peer keeps there; name RUN, too.")
    split_run_id(found)
    return found


@dataclass(frozen=True, slots=True)
class RunSource:
    """The members of a live run."""

    run_id: str
    peers: tuple[str, ...]
    timeout_seconds: float
    observer_folder: Path
    """Where an observer's key and pass are, if the run is private."""


ModelSource = FolderSource | CheckpointSource | RunSource
