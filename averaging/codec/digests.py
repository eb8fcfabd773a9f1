"""Digests of values and payloads. Pure.

BLAKE3, because each round hashes all bytes of anchor and momentum: one core hashes 3.5 GB/s with BLAKE3 and 1.6 GB/s
with SHA-256 (benchmarks/log/2026-11-25-rounds.md). Signatures, names and files use SHA-256.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from averaging.arrays import F32
from averaging.codec.blocks import Buffer


def digest_of(data: Buffer) -> bytes:
    """Return the BLAKE3 digest (32 bytes) of contiguous bytes."""
    return blake3(data).digest()


def array_digest(values: F32) -> bytes:
    """Return the BLAKE3 digest (32 bytes) of the little-endian float32 bytes of `values`: float32 [n], contiguous."""
    return digest_of(values.view(np.uint8).data)
