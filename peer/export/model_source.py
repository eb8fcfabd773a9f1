"""Where a model comes from: a file, a checkpoint of this machine, or a live run. Exactly one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelFileSource:
    """A file that `peer export` wrote."""

    path: Path


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """The newest checkpoint in the data folder of a peer of this run."""

    run_id: str
    folder: Path


@dataclass(frozen=True, slots=True)
class RunSource:
    """The members of a live run."""

    run_id: str
    peers: tuple[str, ...]
    timeout_seconds: float
    observer_folder: Path
    """Where an observer's key and pass are, if the run is private."""


ModelSource = ModelFileSource | CheckpointSource | RunSource
