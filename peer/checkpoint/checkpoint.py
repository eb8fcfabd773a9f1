"""Checkpoints: a peer's state on disk, from which it resumes after its machine was off; both processes at one moment.

    checkpoints/checkpoint-00000007/fragment-0000.safetensors    anchor, momentum, residual, velocity: float32
                                    ...                          [num_values] each; work under way, encoded; the
                                                                 signed commits that lead there
                                    trainer.safetensors          live parameters, optimizer: `peer/trainer/loop`
                                    trainer.json
                                    checkpoint.json              owner, versions, lengths, hashes, totals

A checkpoint is written into a draft folder beside the others, and every file and folder is synced to the disk. Then the
folder is renamed. So a checkpoint is complete or absent, and the earlier one stays until then. Writing needs little
memory, because arrays are written one after the other. Every file is checked when read. A checkpoint that is
incomplete, or of a different run, manifest or layout, is skipped with a sentence, and the previous one is tried. The
peer renames it to `unusable-00000007`, so that no newer checkpoint replaces it.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from averaging.arrays import F32, U8
from averaging.codec.blocks import EncodedBlocks
from averaging.finite_values import all_finite
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_step import anchor_digest
from averaging.outer.own_contributions import OwnWork, Sent
from averaging.signing.round_signatures import Checker
from averaging.wire.messages import Commit
from averaging.wire.work_by_range import Waiting, is_whole
from dht.ground.host import PeerId
from dht.ground.regular_files import sync
from peer.checkpoint import checked_files
from peer.checkpoint.checkpoint_facts import (
    EARLIER_FORMAT,
    FORMAT_VERSION,
    OF_OWN_WORK,
    OF_SENT,
    FragmentFacts,
    Metadata,
    Totals,
    TrainerFile,
    contribution_facts,
    upgraded,
)
from peer.checkpoint.kept_commits import earlier_commits, packed_commits, unpacked_commits
from peer.checkpoint.tensor_files import TensorFile, TensorSpec, open_arrays, write_arrays
from peer.version import software

METADATA_NAME = "checkpoint.json"
TRAINER_TENSORS_NAME = "trainer.safetensors"
TRAINER_FACTS_NAME = "trainer.json"
USED_NAME = "used"
"""File in a checkpoint from which a peer has resumed: from then on its unsent work may be in the swarm."""

CHECKPOINT, UNUSABLE = "checkpoint", "unusable"
_NAME = re.compile(rf"({CHECKPOINT}|{UNUSABLE})-([0-9]{{8,15}})")
_DRAFT_PREFIX = ".draft-"
_VALUES = ("anchor", "momentum", "residual")

KEPT_CHECKPOINTS = 2
"""Number of kept checkpoints: two, in case the newest is damaged."""
LINEAGE_NAME = "lineage-left"
LINEAGE_SECONDS = 7 * 86_400.0
"""Time for people to notice that their run's lineage was replaced."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointOwner:
    """The run, model and peer to which a checkpoint belongs; `sizes` are the fragments' numbers of values."""

    run_id: str
    peer_id: PeerId
    manifest_hash: bytes
    layout_digest: bytes
    sizes: tuple[int, ...]


class Unusable(NamedTuple):
    """A checkpoint that is unusable, and the reason."""

    path: Path
    reason: str


class SavedCheckpoint:
    """A complete checkpoint.

    Attributes:
        number: increases with every checkpoint.
        is_own: this peer made the checkpoint; from another peer's only the anchors are used, and `totals` are zero.
        has_trainer: whether it contains the files of this peer's trainer.
        is_settled: no work was sent after it, in that session or a later one.
    """

    def __init__(self, path: Path, metadata: Metadata, owner: CheckpointOwner) -> None:
        self.path = path
        self.number = metadata.number
        self.is_own = metadata.peer_id == owner.peer_id
        self.is_settled = metadata.is_last and not (path / USED_NAME).exists()
        self.has_trainer = self.is_own and metadata.trainer is not None
        self.totals = metadata.totals if self.is_own else Totals()
        self._facts = metadata.fragments
        self._sizes = owner.sizes

    @property
    def saved_at(self) -> float:
        """Unix time of writing, in seconds."""
        return (self.path / METADATA_NAME).stat().st_mtime

    def restore(self, index: int, state: FragmentState) -> None:
        """Restore one fragment into `state`.

        Raises:
            ValueError: the file has changed since it was checked; `state` is untouched.
        """
        facts = self._facts[index]
        checked_files.check_file(self.path / _fragment_name(index), facts.file)
        file = open_arrays(self.path / _fragment_name(index))
        own = _own_work_in(file, facts, state) if self.is_own else OwnWork()
        anchor, momentum = file.get("anchor"), file.get("momentum")
        state.adopt(anchor, momentum, facts.version, facts.lineage_tokens, bytes.fromhex(facts.digest))
        if self.is_own:
            state.residual[:] = file.get("residual")
            state.give_back(own)
        else:
            state.residual.fill(0)

    def commits(self, index: int, checker: Checker) -> tuple[Commit, ...]:
        """Return the signed commits that lead to the anchor of one fragment, oldest first; empty if none were known.

        Args:
            checker: checks this run's signatures.

        Raises:
            ValueError: the commits are damaged, of a different run, or unsigned; the message gives the reason.
        """
        file = open_arrays(self.path / _fragment_name(index))
        packed = file.get("commits") if "commits" in file.names else earlier_commits(self.path, index)
        if packed is None:
            return ()
        return unpacked_commits(packed.tobytes(), index, self._facts[index].version, self._sizes, checker)

    def note_use(self) -> None:
        """Mark that a peer resumes from this checkpoint. If the disk is not writable, only log a warning."""
        try:
            (self.path / USED_NAME).touch()
            sync(self.path)
        except OSError as error:
            log.warning("%s could not be marked as used (%s)", self.path, error.strerror)


class CheckpointDraft:
    """A checkpoint being written: `add` every fragment, then `finish`; after an error, `discard`."""

    def __init__(self, folder: CheckpointFolder, number: int, path: Path) -> None:
        self.number = number
        self.path = path
        self._folder = folder
        self._facts: dict[int, FragmentFacts] = {}

    def add(self, index: int, state: FragmentState, commit_frames: Sequence[bytes] = ()) -> None:
        """Write one fragment; `state` must not change meanwhile.

        Args:
            commit_frames: the signed commits that lead to its anchor, oldest first.

        Raises:
            OSError: the disk is full or read-only.
        """
        own = state.own_work
        arrays: dict[str, F32 | U8] = dict(zip(_VALUES, (state.anchor, state.momentum, state.residual), strict=True))
        if own.velocity is not None:
            arrays["velocity"] = own.velocity
        if own.pending is not None:
            arrays["contribution.scales"] = np.frombuffer(own.pending.encoded.scales, np.uint8)
            arrays["contribution.codes"] = np.frombuffer(own.pending.encoded.codes, np.uint8)
        if commit_frames:
            arrays["commits"] = packed_commits(commit_frames)
        written = write_arrays(self.path / _fragment_name(index), arrays, self._folder.open_file)
        self._facts[index] = FragmentFacts(
            num_values=state.num_values,
            version=state.version,
            lineage_tokens=state.lineage_tokens,
            digest=state.digest.hex(),
            **{name: getattr(own, name) for name in OF_OWN_WORK},
            contribution=None if own.pending is None else contribution_facts(own.pending),
            has_velocity=own.velocity is not None,
            file=written,
        )

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions of the added fragments, in order."""
        return tuple(facts.version for _, facts in sorted(self._facts.items()))

    def finish(self, totals: Totals, *, has_trainer: bool, is_last: bool) -> Path:
        """Write the metadata, rename the folder, delete surplus checkpoints. Return its path.

        Args:
            totals: totals of the network process; steps and tokens come from the trainer's files if there are any.
            is_last: whether no work is sent in this session afterwards.

        Raises:
            OSError: the disk is full or read-only.
            ValueError: the trainer's files belong to a different moment.
        """
        owner = self._folder.owner
        trainer = None
        if has_trainer:
            part = _read_trainer(self.path, self.number)
            totals = totals.model_copy(update=part.model_dump(include={"inner_steps", "tokens"}))
            trainer = checked_files.measure_file(self.path / TRAINER_FACTS_NAME)
        content = Metadata(
            format_version=FORMAT_VERSION,
            number=self.number,
            run_id=owner.run_id,
            peer_id=owner.peer_id,
            manifest_hash=owner.manifest_hash.hex(),
            layout_digest=owner.layout_digest.hex(),
            software=software(),
            is_last=is_last,
            totals=totals,
            fragments=tuple(facts for _, facts in sorted(self._facts.items())),
            trainer=trainer,
        ).model_dump(mode="json")
        checked_files.write_json(self.path / METADATA_NAME, content, self._folder.open_file)
        for path in sorted(self.path.iterdir()):
            sync(path)
        sync(self.path)
        earlier = list_checkpoints(self._folder.path)
        final = checkpoint_path(self._folder.path, self.number)
        self.path.rename(final)
        sync(self._folder.path)
        for path in earlier[KEPT_CHECKPOINTS - 1 :]:
            if not _keeps_lineage(path, final):
                shutil.rmtree(path, onerror=_note_undeleted)
        return final

    def discard(self) -> None:
        """Delete the files written so far."""
        shutil.rmtree(self.path, onerror=_note_undeleted)


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """The checkpoints of one peer in one run.

    Args:
        path: the folder, created for the first checkpoint.
        owner: the owner that checkpoints in this folder must have.
        every_seconds: time between two checkpoints.
        open_file: creates files.
    """

    path: Path
    owner: CheckpointOwner
    every_seconds: float
    open_file: checked_files.OpenFile = checked_files.open_new

    def begin(self, least_number: int = 1) -> CheckpointDraft:
        """Start a new checkpoint, and delete drafts left by a killed process.

        Raises:
            OSError: the folder is not writable.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.path.glob(_DRAFT_PREFIX + "*"):
            shutil.rmtree(left, onerror=_note_undeleted)
        earlier = _listed(self.path, CHECKPOINT, UNUSABLE)
        number = max(least_number, _number_of(earlier[0]) + 1 if earlier else 1)
        path = draft_path(self.path, number)
        path.mkdir(mode=0o700)
        return CheckpointDraft(self, number, path)

    def keep_lineage(self) -> Path | None:
        """Keep the newest checkpoint for `LINEAGE_SECONDS` regardless of newer ones; return its path.

        Called before the anchors are replaced by some to which no signed commit of this peer's lineage leads. Only one
        checkpoint is kept this way, and the earlier one stays, so that a second lie cannot displace it.

        Raises:
            OSError: the folder is not writable.
        """
        found = list_checkpoints(self.path)
        if not found or any(_keeps_lineage(path, found[0]) for path in found):
            return None
        (found[0] / LINEAGE_NAME).touch()
        sync(found[0])
        return found[0]

    def newest_path(self) -> Path | None:
        """Return the path of the newest checkpoint, usable or not."""
        return next(iter(list_checkpoints(self.path)), None)

    def newest(self) -> tuple[SavedCheckpoint | None, list[Unusable]]:
        """Return the newest usable checkpoint, completely checked, and all newer unusable ones."""
        unusable: list[Unusable] = []
        for path in list_checkpoints(self.path):
            try:
                return self._checked(path), unusable
            except ValueError as error:
                unusable.append(Unusable(path, str(error)))
        return None, unusable

    def put_aside(self, path: Path) -> Path:
        """Rename an unusable checkpoint, and return the new path. The newest `KEPT_CHECKPOINTS` of them stay.

        Raises:
            OSError: the folder is not writable.
        """
        aside = self.path / f"{UNUSABLE}-{_number_of(path):08d}"
        path.rename(aside)
        sync(self.path)
        for old in _listed(self.path, UNUSABLE)[KEPT_CHECKPOINTS:]:
            shutil.rmtree(old, onerror=_note_undeleted)
        return aside

    def _checked(self, path: Path) -> SavedCheckpoint:
        metadata, owner = _read_metadata(path), self.owner
        for what, got, expected in (
            ("run", metadata.run_id, owner.run_id),
            ("manifest", metadata.manifest_hash, owner.manifest_hash.hex()),
            ("fragment layout", metadata.layout_digest, owner.layout_digest.hex()),
            ("number of values per fragment", tuple(facts.num_values for facts in metadata.fragments), owner.sizes),
        ):
            if got != expected:
                raise ValueError(f"it has a different {what} ({got!s:.60}); expected {expected!s:.60}")
        files = {_fragment_name(index): facts.file for index, facts in enumerate(metadata.fragments)}
        if metadata.trainer is not None:
            checked_files.check_file(path / TRAINER_FACTS_NAME, metadata.trainer)
            files[TRAINER_TENSORS_NAME] = _read_trainer(path, metadata.number).file
        # Files shortened by a power cut are detected before gigabytes are read.
        for name, file in files.items():
            checked_files.check_length(path / name, file)
        for name, file in files.items():
            checked_files.check_file(path / name, file)
        for index, facts in enumerate(metadata.fragments):
            _check_fragment(path / _fragment_name(index), index, facts)
        return SavedCheckpoint(path, metadata, owner)


def saved_totals(folder: Path, run_id: str, peer_id: PeerId) -> Totals:
    """Return this peer's totals in its newest readable checkpoint of the run; zero without one.

    Totals do not depend on the values, so they survive a new manifest revision or a damaged file.
    """
    for path in _listed(folder, CHECKPOINT, UNUSABLE):
        try:
            metadata = _read_metadata(path)
        except ValueError as error:
            log.debug("no totals from %s: %s", path, error)
            continue
        if (metadata.run_id, metadata.peer_id) == (run_id, peer_id):
            return metadata.totals
    return Totals()


def _keeps_lineage(path: Path, newest: Path) -> bool:
    """Return whether `keep_lineage` marked a checkpoint within `LINEAGE_SECONDS` before the newest one was written."""
    try:
        marked_at = (path / LINEAGE_NAME).stat().st_mtime
    except OSError:
        return False
    return newest.stat().st_mtime - marked_at < LINEAGE_SECONDS


def list_checkpoints(folder: Path) -> list[Path]:
    """Return finished checkpoints, the newest first; empty if the folder does not exist."""
    return _listed(folder, CHECKPOINT)


def _listed(folder: Path, *kinds: str) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if (name := _NAME.fullmatch(path.name)) and name[1] in kinds]
    except OSError:
        return []
    return sorted(found, key=_number_of, reverse=True)


def checkpoint_path(folder: Path, number: int) -> Path:
    """Return the path of the checkpoint with this number, once it is complete."""
    return folder / f"{CHECKPOINT}-{number:08d}"


def draft_path(folder: Path, number: int) -> Path:
    """Return the path at which the checkpoint with this number is being written."""
    return folder / f"{_DRAFT_PREFIX}{number:08d}"


def _read_metadata(path: Path) -> Metadata:
    content = checked_files.read_json(path / METADATA_NAME)
    found = content.get("format_version")
    if found == EARLIER_FORMAT:
        content = upgraded(content)
    elif found != FORMAT_VERSION:
        expected = f"{EARLIER_FORMAT} or {FORMAT_VERSION}"
        raise ValueError(f"it has format version {found!r:.20}; expected {expected}: other software wrote it")
    with _as_damage(METADATA_NAME):
        return Metadata.model_validate_json(json.dumps(content))


def _read_trainer(path: Path, number: int) -> TrainerFile:
    content = checked_files.read_json(path / TRAINER_FACTS_NAME)
    with _as_damage(TRAINER_FACTS_NAME):
        part = TrainerFile.model_validate_json(json.dumps(content))
    if part.number != number:
        raise ValueError(f"{TRAINER_FACTS_NAME} belongs to moment {part.number}; expected {number}")
    return part


@contextmanager
def _as_damage(name: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise ValueError(
            f"{name} is damaged or from a different version ({error.error_count()} wrong fields)"
        ) from error


def _check_fragment(path: Path, index: int, facts: FragmentFacts) -> None:
    file = open_arrays(path)
    names = [*_VALUES, *(["velocity"] if facts.has_velocity else [])]
    for name in names:
        file.check(TensorSpec(name, "F32", (facts.num_values,)))
        if not all_finite(file.get(name)):
            raise ValueError(f"{name} in {path.name} has values that are not finite")
    if anchor_digest(file.get("anchor"), file.get("momentum")).hex() != facts.digest:
        raise ValueError(f"the anchor of fragment {index} does not match its digest")
    waiting = Waiting(facts.unsent_tokens, facts.unsent_steps, facts.unsent_base_version, facts.unsent_parts)
    under_way = facts.contribution
    if not is_whole(waiting, facts.num_values) or (under_way and not is_whole(under_way, facts.num_values)):
        raise ValueError(f"the ranges of own work on fragment {index} do not fit its {facts.num_values} values")


def _own_work_in(file: TensorFile[npt.NDArray[Any]], facts: FragmentFacts, state: FragmentState) -> OwnWork:
    under_way: Sent | None = None
    if facts.contribution is not None:
        scales, codes = (file.get(f"contribution.{part}").tobytes() for part in ("scales", "codes"))
        codec = state.codec
        encoded = EncodedBlocks(codec.name, codec.block_size, facts.num_values, scales, codes)
        under_way = Sent(encoded=encoded, **{name: getattr(facts.contribution, name) for name in OF_SENT})
    return OwnWork(
        **{name: getattr(facts, name) for name in OF_OWN_WORK},
        pending=under_way,
        velocity=file.get("velocity") if facts.has_velocity else None,
    )


def _fragment_name(index: int) -> str:
    return f"fragment-{index:04d}.safetensors"


def _number_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _note_undeleted(function: object, path: str, fault: object) -> None:
    # Only disk space is lost; the next checkpoint tries again.
    log.warning("%s could not be deleted", path)
