"""Checks, before training starts, that the disk of the data folder has room for this peer's checkpoints."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from dht.ground.errors import LocalFault
from dht.ground.quantities import bytes_text
from peer.config.averaging_rules import codec_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import num_orthogonalised, seed_sizes
from peer.plan.memory_needs import disk_bytes


def needed_bytes(manifest: RunManifest, *, trains: bool = True) -> int:
    """Return the disk space in bytes for checkpoints and the run's files, of a trainer or (not `trains`) a seed.

    `peer doctor` shows the same number.

    Raises:
        Incompatible: the run's model cannot be cut as its manifest specifies.
        LocalFault: a file that determines the model's shapes is missing.
    """
    section = manifest.averaging
    codec = codec_of(manifest)
    sizes = seed_sizes(manifest)
    needed = disk_bytes(sizes, codec, section.mode, num_orthogonalised(manifest) if trains else 0, trains=trains)
    return needed + files_bytes(manifest)


def files_bytes(manifest: RunManifest) -> int:
    """Return the total size of the run's files, which are downloaded before a trainer is built."""
    return sum(file.bytes for file in manifest.files)


def room_warning(needed: int, free: int, here: int, folder: Path) -> str:
    """Return a warning if the disk is too small, otherwise "".

    Args:
        needed, free: bytes.
        here: needed bytes that are already in the folder.
    """
    if needed <= free + here:
        return ""
    return (
        f"Work may be lost on leaving: checkpoints need {bytes_text(needed)}, but only {bytes_text(free)} are free at "
        f"{folder}; free some space, or choose a data folder on another disk"
    )


def warn_of_room(manifest: RunManifest, data_dir: Path, checkpoints: Path, *, trains: bool = True) -> str:
    """Return `room_warning` for this machine, for a trainer or a seed; "" if a size cannot be determined."""
    try:
        free, needed = shutil.disk_usage(data_dir).free, needed_bytes(manifest, trains=trains)
    except (OSError, ValueError, LocalFault):
        return ""
    here = files_bytes(manifest)
    for path in checkpoints.rglob("*"):
        with contextlib.suppress(OSError):
            here += path.stat().st_size if path.is_file() else 0
    return room_warning(needed, free, here, data_dir)
