"""What lying replicas of this benchmark send in place of their work."""

from __future__ import annotations

import numpy as np
import torch

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec

LIE_RATIO = 10.0
"""How much longer a lie is than the work that it replaces."""
_BFLOAT16_NAN = b"\xc0\x7f"


def lie_of(lie: str, honest: EncodedBlocks, codec: Codec, generator: torch.Generator) -> EncodedBlocks:
    """negated: -10 times the work; noise: Gaussian and 10 times as long; nan: scales that are not numbers.

    Raises:
        ValueError: unknown lie.
    """
    if lie == "nan":
        scales = _BFLOAT16_NAN * (len(memoryview(honest.scales)) // len(_BFLOAT16_NAN))
        return EncodedBlocks(honest.codec, honest.block_size, honest.num_values, scales, honest.codes)
    work: F32 = np.empty(honest.num_values, dtype=np.float32)
    codec.decode(honest, work)
    if lie == "negated":
        return codec.encode(work * -LIE_RATIO)
    if lie == "noise":
        noise = torch.randn(honest.num_values, generator=generator)
        noise.mul_(LIE_RATIO * float(torch.from_numpy(work).norm()) / float(noise.norm()))
        return codec.encode(noise.numpy())
    raise ValueError(f"lie {lie!r}; expected negated, noise or nan")
