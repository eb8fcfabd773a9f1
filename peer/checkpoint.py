"""Checkpoints: what a peer needs to go on after its machine was off, on disk.

    checkpoints/checkpoint-00000007/fragment-0000.safetensors    anchor, momentum, residual: float32 [num_values] each
                                    ...
                                    checkpoint.json              whose they are, versions, lengths and hashes; totals

A checkpoint is written into a draft folder beside the others, every file and folder is synced to the disk, and only
then does the folder get its name: it is there whole or not at all, and the earlier one stays until then. Memory: one
fragment at a time. Reading trusts nothing: a checkpoint that is not whole, or of another run, manifest or layout, is
passed over with a sentence, and the one before it is tried.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from averaging.fragment_state import FragmentState
from averaging.outer import anchor_digest
from dht.host import PeerId
from peer.version import SOFTWARE

KEPT_CHECKPOINTS = 2
"""The newest, and the one before it in case the newest turns out to be damaged."""
MAX_METADATA_BYTES = 1 << 20
"""`checkpoint.json` takes about 500 bytes per fragment, of which there are at most 64."""
METADATA_NAME = "checkpoint.json"

_NAME = re.compile(r"checkpoint-([0-9]{8,15})")
_DRAFT_PREFIX = ".draft-"
_TENSORS = ("anchor", "momentum", "residual")
_COUNT = Field(ge=0, le=2**63 - 1)
_HASH = Field(pattern="^[0-9a-f]{64}$")

log = logging.getLogger(__name__)

WriteFile = Callable[[Path, bytes], None]
"""Writes a new file and syncs it to the disk. Raises OSError."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FragmentFacts(_Section):
    """What `checkpoint.json` says of one fragment. `digest` is that of (anchor, momentum), `file_digest` SHA-256."""

    num_values: int = _COUNT
    version: int = _COUNT
    lineage_tokens: int = _COUNT
    digest: str = _HASH
    unsent_tokens: int = _COUNT
    unsent_steps: int = _COUNT
    unsent_base_version: int = _COUNT
    num_bytes: int = _COUNT
    file_digest: str = _HASH


class Totals(_Section):
    """What this peer has done in the run, earlier sessions included."""

    inner_steps: int = Field(default=0, ge=0, le=2**63 - 1)
    tokens: int = Field(default=0, ge=0, le=2**63 - 1)
    rounds_contributed: int = Field(default=0, ge=0, le=2**63 - 1)


class _Metadata(_Section):
    format_version: int = Field(ge=1, le=1)
    run_id: str
    peer_id: str
    manifest_hash: str = _HASH
    layout_digest: str = _HASH
    software: str
    totals: Totals
    fragments: tuple[FragmentFacts, ...]


@dataclass(frozen=True, slots=True)
class CheckpointOwner:
    """Which run, model and peer a checkpoint belongs to; `sizes` are the fragments' numbers of values."""

    run_id: str
    peer_id: PeerId
    manifest_hash: bytes
    layout_digest: bytes
    sizes: tuple[int, ...]


class SavedCheckpoint:
    """A checkpoint that was found whole; `totals` are zero when another peer made it."""

    def __init__(self, path: Path, facts: Sequence[FragmentFacts], totals: Totals) -> None:
        self.path = path
        self.totals = totals
        self._facts = tuple(facts)

    def restore(self, index: int, state: FragmentState) -> None:
        """Put one fragment into `state`.

        Raises:
            ValueError: the file has changed since it was checked; `state` is untouched.
        """
        facts = self._facts[index]
        tensors = _read_fragment(self.path, index, facts)
        state.adopt(
            tensors["anchor"], tensors["momentum"], facts.version, facts.lineage_tokens, bytes.fromhex(facts.digest)
        )
        state.residual.copy_(tensors["residual"])
        state.unsent_tokens, state.unsent_steps = facts.unsent_tokens, facts.unsent_steps
        state.unsent_base_version = facts.unsent_base_version


class CheckpointDraft:
    """A checkpoint being written: `add` every fragment in order, then `finish`; after an error, `discard`."""

    def __init__(self, folder: CheckpointFolder, path: Path) -> None:
        self._folder = folder
        self._path = path
        self._facts: list[FragmentFacts] = []

    def add(self, encoded: tuple[bytes, FragmentFacts]) -> None:
        """Write what `encode_fragment` returned.

        Raises:
            OSError: the disk is full or read-only.
        """
        data, facts = encoded
        self._folder.write(self._path / _fragment_name(len(self._facts)), data)
        self._facts.append(facts)

    def finish(self, totals: Totals) -> Path:
        """Write the metadata, give the folder its name, delete checkpoints that are too many. Returns its path.

        Raises:
            OSError: the disk is full or read-only.
        """
        owner = self._folder.owner
        metadata = _Metadata(
            format_version=1,
            run_id=owner.run_id,
            peer_id=owner.peer_id,
            manifest_hash=owner.manifest_hash.hex(),
            layout_digest=owner.layout_digest.hex(),
            software=SOFTWARE,
            totals=totals,
            fragments=tuple(self._facts),
        ).model_dump(mode="json")
        content = json.dumps({"metadata": metadata, "check": _check_of(metadata)}, indent=1).encode()
        self._folder.write(self._path / METADATA_NAME, content)
        sync_folder(self._path)
        earlier = list_checkpoints(self._folder.path)
        number = _number_of(earlier[0]) + 1 if earlier else 1
        final = self._folder.path / f"checkpoint-{number:08d}"
        self._path.rename(final)
        sync_folder(self._folder.path)
        for path in earlier[KEPT_CHECKPOINTS - 1 :]:
            shutil.rmtree(path, onerror=_note_undeleted)
        return final

    def discard(self) -> None:
        """Delete what was written so far."""
        shutil.rmtree(self._path, onerror=_note_undeleted)


class CheckpointFolder:
    """The checkpoints of one peer in one run.

    Args:
        path: made when the first checkpoint is written.
        owner: what a checkpoint here must belong to.
        every_seconds: between two checkpoints.
        write: writes one file durably.
    """

    def __init__(
        self, path: Path, owner: CheckpointOwner, every_seconds: float, write: WriteFile | None = None
    ) -> None:
        self.path = path
        self.owner = owner
        self.every_seconds = every_seconds
        self.write: WriteFile = write or write_durably

    def begin(self) -> CheckpointDraft:
        """Start a new checkpoint; drafts that a killed process left behind are deleted.

        Raises:
            OSError: the folder cannot be written.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.path.glob(_DRAFT_PREFIX + "*"):
            shutil.rmtree(left, onerror=_note_undeleted)
        return CheckpointDraft(self, Path(tempfile.mkdtemp(prefix=_DRAFT_PREFIX, dir=self.path)))

    def newest(self) -> tuple[SavedCheckpoint | None, list[str]]:
        """The newest usable checkpoint, every byte of it checked, and a sentence for each newer one that is not."""
        complaints: list[str] = []
        for path in list_checkpoints(self.path):
            try:
                return self._checked(path), complaints
            except ValueError as error:
                complaints.append(f"the checkpoint {path} was ignored: {error}")
        return None, complaints

    def _checked(self, path: Path) -> SavedCheckpoint:
        metadata, owner = _read_metadata(path), self.owner
        for what, got, expected in (
            ("run", metadata.run_id, owner.run_id),
            ("manifest", metadata.manifest_hash, owner.manifest_hash.hex()),
            ("fragment layout", metadata.layout_digest, owner.layout_digest.hex()),
            ("number of values per fragment", tuple(facts.num_values for facts in metadata.fragments), owner.sizes),
        ):
            if got != expected:
                raise ValueError(f"it is of another {what} ({got!s:.60}); expected {expected!s:.60}")
        for index, facts in enumerate(metadata.fragments):
            tensors = _read_fragment(path, index, facts)
            if anchor_digest(tensors["anchor"], tensors["momentum"]).hex() != facts.digest:
                raise ValueError(f"the anchor of fragment {index} does not have its digest")
        totals = metadata.totals if metadata.peer_id == owner.peer_id else Totals()
        return SavedCheckpoint(path, metadata.fragments, totals)


def saved_totals(folder: Path, run_id: str, peer_id: PeerId) -> Totals:
    """What this peer had done in the run when its newest readable checkpoint was written; zero without one.

    Credit does not hang on the tensors: a new revision of the manifest, or a damaged file, leaves it alone.
    """
    for path in list_checkpoints(folder):
        try:
            metadata = _read_metadata(path)
        except ValueError as error:
            log.debug("no totals from %s: %s", path, error)
            continue
        if (metadata.run_id, metadata.peer_id) == (run_id, peer_id):
            return metadata.totals
    return Totals()


def list_checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, the newest first; empty when the folder is not there."""
    try:
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(found, key=_number_of, reverse=True)


def encode_fragment(state: FragmentState) -> tuple[bytes, FragmentFacts]:
    """One fragment as a safetensors file, and what the metadata says of it. `state` must not change meanwhile.

    Work under way belongs to no version yet, so it is saved as if it still waited (in mode streaming the live
    parameters have kept their share of it, and it is left out).
    """
    residual, sent = state.residual, state.pending
    unsent = (state.unsent_tokens, state.unsent_steps, state.unsent_base_version)
    if sent is not None and state.rule.mode != "streaming":
        residual = residual.clone()
        state.codec.decode_accumulate(sent.encoded, 1.0, residual)
        base_version = min(sent.base_version, state.unsent_base_version) if state.unsent_tokens else sent.base_version
        unsent = (state.unsent_tokens + sent.tokens, state.unsent_steps + sent.steps, base_version)
    tensors = zip(_TENSORS, (state.anchor, state.momentum, residual), strict=True)
    data = safetensors.numpy.save({name: tensor.numpy() for name, tensor in tensors})
    return data, FragmentFacts(
        num_values=state.num_values,
        version=state.version,
        lineage_tokens=state.lineage_tokens,
        digest=state.digest.hex(),
        unsent_tokens=unsent[0],
        unsent_steps=unsent[1],
        unsent_base_version=unsent[2],
        num_bytes=len(data),
        file_digest=hashlib.sha256(data).hexdigest(),
    )


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file, readable by its owner alone, down to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make a folder's names survive a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_metadata(path: Path) -> _Metadata:
    data = _read_file(path / METADATA_NAME, None)
    try:
        content = json.loads(data)
        metadata = _Metadata.model_validate_json(json.dumps(content["metadata"]))
        check = content["check"]
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise ValueError(f"{METADATA_NAME} is damaged or of another version ({type(error).__name__})") from error
    if check != _check_of(metadata.model_dump(mode="json")):
        raise ValueError(f"{METADATA_NAME} was changed: its content does not have its check sum")
    return metadata


def _check_of(metadata: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _read_fragment(path: Path, index: int, facts: FragmentFacts) -> dict[str, torch.Tensor]:
    name = _fragment_name(index)
    data = _read_file(path / name, facts.num_bytes)
    if hashlib.sha256(data).hexdigest() != facts.file_digest:
        raise ValueError(f"{name} is damaged: it does not have its SHA-256")
    try:
        arrays = safetensors.numpy.load(data)
    except SafetensorError as error:
        raise ValueError(f"{name} is no safetensors file ({error!s:.60})") from error
    for tensor in _TENSORS:
        array = arrays.get(tensor)
        if array is None or array.dtype != np.float32 or array.shape != (facts.num_values,):
            raise ValueError(f"{name} has no {tensor} of {facts.num_values} float32 values")
        if not np.isfinite(array).all():
            raise ValueError(f"{tensor} in {name} has values that are not finite")
    return {tensor: torch.from_numpy(arrays[tensor]) for tensor in _TENSORS}


def _read_file(path: Path, num_bytes: int | None) -> bytes:
    try:
        found = path.stat().st_size
        if num_bytes is not None and found != num_bytes:
            raise ValueError(f"{path.name} has {found} bytes; expected {num_bytes}")
        if num_bytes is None and found > MAX_METADATA_BYTES:
            raise ValueError(f"{path.name} has {found} bytes; expected at most {MAX_METADATA_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error


def _fragment_name(index: int) -> str:
    return f"fragment-{index:04d}.safetensors"


def _number_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _note_undeleted(function: object, path: str, fault: object) -> None:
    # Only the room on the disk is lost; the next checkpoint tries again.
    log.warning("%s could not be deleted", path)
