"""Where a model comes from: a file, a checkpoint of this machine, or a live run. Exactly one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dht.errors import UsageFault

Form = Literal["hf", "safetensors"]
"""A folder that transformers loads, or one file of safetensors under this software's own names."""
FILE_SUFFIX = ".safetensors"


def form_of(out: Path, chosen: str | None) -> Form:
    """The form in which a model is written: the chosen one, or the one that the name of `out` asks for.

    Raises:
        UsageFault: there is no such form.
    """
    if chosen is None:
        return "safetensors" if out.suffix == FILE_SUFFIX else "hf"
    for form in ("hf", "safetensors"):
        if chosen == form:
            return form
    raise UsageFault(f"--format {chosen!r}; expected hf (a folder) or safetensors (a file).")


@dataclass(frozen=True, slots=True)
class ModelFileSource:
    """A file or folder that `peer export` wrote."""

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
