"""Digests: what the protocol says about them, worked out in other ways."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from averaging.codec.digests import array_digest, digest_of
from averaging.fragment.shard_store import payload_digest


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (b"abc", "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
    ],
)
def test_published_vectors(data: bytes, expected: str) -> None:
    assert digest_of(data).hex() == digest_of(memoryview(data)).hex() == expected


def test_values_are_hashed_as_little_endian_float32() -> None:
    values = [0.0, -0.0, 1.5, -3.25e-20, 7.0e30]
    assert array_digest(np.array(values, dtype=np.float32)) == digest_of(struct.pack("<5f", *values))
    plus, minus = np.array([0.0], dtype=np.float32), np.array([-0.0], dtype=np.float32)
    assert array_digest(plus) != array_digest(minus)


def test_payloads_have_half_of_a_digest() -> None:
    assert payload_digest(b"abc").hex() == "6437b3ac38465133ffb63b75273a8db5"
