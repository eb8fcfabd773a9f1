"""What the measuring process of a demo is asked, and what it answers; loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from averaging.arrays import F32
from dht.regular_files import read_regular

REQUEST_NAME = "measure.json"
ANCHORS_NAME = "anchors.npz"
MAX_REQUEST_BYTES = 4 << 20
"""A manifest has at most one."""


@dataclass(frozen=True, slots=True)
class Request:
    """Measure the model of a run.

    Attributes:
        manifest: its bytes, in hexadecimal.
        data: as given to `--data`; None: the run's own source.
        tokenizer: path of the run's tokenizer.json; None: its tokens are bytes.
        has_anchors: the anchors lie beside it.
    """

    manifest: str
    data: str | None
    tokenizer: str | None
    has_anchors: bool

    def write(self, folder: Path, anchors: Mapping[int, F32]) -> None:
        """Write the request, and the anchors (fragment -> float32 [num_values])."""
        named: dict[str, Any] = {str(index): values for index, values in anchors.items()}
        np.savez(folder / ANCHORS_NAME, **named)
        (folder / REQUEST_NAME).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Request:
        """What `write` wrote."""
        return cls(**json.loads(read_regular(folder / REQUEST_NAME, MAX_REQUEST_BYTES)))


@dataclass(frozen=True, slots=True)
class Words:
    """Held-out loss in nats per token, and a sample: of the initial values, and of the anchors (None without them)."""

    loss_first: float
    said_first: str
    loss_last: float | None = None
    said_last: str | None = None
