"""Whether the data folder has room for this peer's checkpoints, before a step is trained for nothing."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from dht.ground.errors import LocalFault
from dht.ground.quantities import bytes_text
from peer.config.averaging_rules import codec_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import num_orthogonalised
from peer.plan.memory_needs import disk_bytes
from peer.plan.plan_source import sizes_of


def needed_bytes(manifest: RunManifest, *, trains: bool = True) -> int:
    """What checkpoints and the run's files take on the disk of a peer that trains, as `peer doctor` says it, or serves.

    Raises:
        ValueError: the run's model cannot be cut as its manifest says.
        LocalFault: something that its shapes follow from is not here.
    """
    section = manifest.averaging
    codec = codec_of(manifest)
    sizes = sizes_of(manifest)
    needed = disk_bytes(sizes, codec, section.mode, num_orthogonalised(manifest) if trains else 0, trains=trains)
    return needed + files_bytes(manifest)


def files_bytes(manifest: RunManifest) -> int:
    """Of the run's files, which are here before a trainer is built."""
    return sum(file.bytes for file in manifest.files)


def room_warning(needed: int, free: int, here: int, folder: Path) -> str:
    """A sentence when the disk is too small; empty when it is not.

    Args:
        needed, free: bytes.
        here: bytes of it that are in the folder already.
    """
    if needed <= free + here:
        return ""
    return (
        f"Work may be lost on leaving: checkpoints need {bytes_text(needed)}, and {bytes_text(free)} are free at "
        f"{folder}; free some space, or choose a data folder elsewhere"
    )


def warn_of_room(manifest: RunManifest, data_dir: Path, checkpoints: Path, *, trains: bool = True) -> str:
    """`room_warning` of this machine, for a peer that trains or only serves; empty where a figure cannot be had."""
    try:
        free, needed = shutil.disk_usage(data_dir).free, needed_bytes(manifest, trains=trains)
    except (OSError, ValueError, LocalFault):
        return ""
    here = files_bytes(manifest)
    for path in checkpoints.rglob("*"):
        with contextlib.suppress(OSError):
            here += path.stat().st_size if path.is_file() else 0
    return room_warning(needed, free, here, data_dir)
