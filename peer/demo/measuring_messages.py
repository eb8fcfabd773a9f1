"""What the measuring process of a demo is given, and what it answers; loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from averaging.arrays import F32
from peer.config.manifest import RunManifest

MANIFEST_NAME = "measured.json"
ANCHORS_NAME = "anchors.npz"


def write_anchors(folder: Path, manifest: RunManifest, anchors: Mapping[int, F32]) -> None:
    """Write a run's manifest and anchors (fragment -> float32 [num_values]; none: they are not known)."""
    named: dict[str, Any] = {str(index): values for index, values in anchors.items()}
    np.savez(folder / ANCHORS_NAME, **named)
    (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())


@dataclass(frozen=True, slots=True)
class Words:
    """Validation loss in nats per token and a sample: of the initial values and of the anchors (None without them)."""

    loss_first: float
    said_first: str
    loss_last: float | None = None
    said_last: str | None = None
