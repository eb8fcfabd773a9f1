"""Where a model comes from: a file, a checkpoint of this machine, or a live run. Exactly one of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dht.ground.errors import UsageFault, reading
from dht.ground.regular_files import open_regular, read_regular
from dht.identity.keys import split_run_id
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, claimed_run_id

Form = Literal["hf", "safetensors"]
"""A folder that transformers loads, or one file of safetensors under this software's own names."""
FILE_SUFFIX = ".safetensors"
_LENGTH_BYTES = 8
"""A file of safetensors begins with the length of its header, which is JSON."""


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


def check_model(path: Path) -> None:
    """Refuse what is no model before anything is loaded that could read one.

    Raises:
        UsageFault: it is neither a file of safetensors nor a folder that says of which run it is.
    """
    wanted = "a file or folder that `peer export` wrote"
    with reading(path, f"{wanted}."):
        if path.is_dir():
            if not any((path / name).exists() for name in ("run.json", "config.json")):
                raise UsageFault(f"{path} has no run.json; expected {wanted}.")
            return
        with open_regular(path) as file:
            begin = file.read(_LENGTH_BYTES + 1)
            size = os.fstat(file.fileno()).st_size
    header_bytes = int.from_bytes(begin[:_LENGTH_BYTES], "little")
    if begin[_LENGTH_BYTES:] != b"{" or _LENGTH_BYTES + header_bytes > size:
        raise UsageFault(f"{path} is no whole safetensors file; expected {wanted}; export the model again.")


@dataclass(frozen=True, slots=True)
class ModelFileSource:
    """A file or folder that `peer export` wrote."""

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


ModelSource = ModelFileSource | CheckpointSource | RunSource
