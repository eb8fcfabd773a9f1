"""Digests of values and payloads. Pure.

BLAKE3, because every byte of anchor and momentum is hashed once a round: on one core it takes 3.5 GB/s where SHA-256
takes 1.6 (benchmarks/log/2026-11-25-rounds.md). Signatures, names and files keep SHA-256.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from averaging.arrays import F32
from averaging.codec.blocks import Buffer


def digest_of(data: Buffer) -> bytes:
    """BLAKE3 (32 bytes) of contiguous bytes."""
    return blake3(data).digest()


def array_digest(values: F32) -> bytes:
    """BLAKE3 (32 bytes) of the little-endian float32 bytes of a chunk: float32 [n], contiguous."""
    return digest_of(values.view(np.uint8).data)
