"""Uniform numbers that are bit-identical on every machine, from the raw output of a PCG64 (O'Neill, HMC-CS-2014-0905).

The library numpy guarantees that stream in every version.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_AT_ONCE = 1 << 20
"""Number of values drawn at once; limits the float64 temporaries to 16 MiB."""


def draw_uniform(flat: Tensor, generator: np.random.PCG64, middle: float, reach: float) -> None:
    """Fill `flat`, of any floating dtype [n], with numbers in `middle` +- `reach`."""
    for start in range(0, flat.numel(), _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        # The top 24 bits, centred: odd multiples of 2**-24 in (-1, 1), exact in float64.
        raw = generator.random_raw(part.numel()) >> np.uint64(40)
        unit = (raw.astype(np.float64) - (2**23 - 0.5)) * 2.0**-23
        part.copy_(torch.from_numpy((unit * reach + middle).astype(np.float32)))
