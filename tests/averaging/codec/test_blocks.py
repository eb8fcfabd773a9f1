"""Encoded bytes: their layout, slices and sizes, and what is refused."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec, KernelChoice, make_codec
from tests.kit.averages.codec_data import (
    ALL_CODECS,
    BLOCK_CODECS,
    KERNELS,
    TOP_CODE,
    arrays,
    codecs,
    decoded,
    relaxed,
    same_bits,
)


def ones(num_values: int) -> F32:
    return np.ones(num_values, dtype=np.float32)


def zeros(num_values: int) -> F32:
    return np.zeros(num_values, dtype=np.float32)


@relaxed
@given(codecs(*ALL_CODECS), arrays())
def test_pack_and_unpack(codec: Codec, values: F32) -> None:
    encoded = codec.encode(values)
    payload = b"".join(encoded.pack())
    assert len(payload) == encoded.num_bytes == codec.encoded_num_bytes(values.size)
    # At an odd address, as in the middle of a frame.
    unpacked = codec.unpack(values.size, memoryview(b"x" + payload)[1:])
    assert unpacked == encoded
    assert same_bits(decoded(codec, unpacked), decoded(codec, encoded))
    for wrong in (payload + b"\0", payload[:-1]):
        if len(wrong) != len(payload):
            with pytest.raises(ValueError, match="expected"):
                codec.unpack(values.size, wrong)


@relaxed
@given(codecs(*BLOCK_CODECS), st.integers(0, 700), st.randoms(use_true_random=False), st.booleans())
def test_any_bytes_decode_to_finite_values_or_are_refused(
    codec: Codec, num_values: int, chance: random.Random, plausible: bool
) -> None:
    payload = bytearray(chance.randbytes(codec.encoded_num_bytes(num_values)))
    needed = 2.0**126 / TOP_CODE[codec.name]
    unit = 2.0 ** (math.floor(math.log2(needed)) - 7)
    largest_scale = math.ceil(needed / unit) * unit
    if plausible:
        smallest, largest = (int(np.float32(scale).view(np.uint32)) >> 16 for scale in (2.0**-100, largest_scale))
        for block in range(-(-num_values // codec.block_size)):
            scale_bits = chance.choice((0, smallest, largest, chance.randint(smallest, largest)))
            payload[2 * block : 2 * (block + 1)] = scale_bits.to_bytes(2, "little")
    encoded = codec.unpack(num_values, payload)
    out = np.full(num_values, 5.0, dtype=np.float32)
    bits = np.frombuffer(encoded.scales, dtype="<u2").astype(np.uint32) << 16
    scales = bits.view(np.float32)
    if not ((bits == 0) | ((scales >= 2.0**-100) & (scales <= largest_scale))).all():
        assert not plausible
        with pytest.raises(ValueError, match="scale"):
            codec.decode(encoded, out)
        assert (out == 5.0).all()
    else:
        codec.decode(encoded, out)
        assert (np.abs(out) <= 2.0**127 * (1 + 2.0**-20)).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ALL_CODECS)
@pytest.mark.parametrize("bad", [math.nan, -math.inf, 3e38])
@pytest.mark.parametrize("position", [0, 290_000, 300_040])
def test_values_out_of_range_are_refused_and_nothing_is_lost(
    name: str, bad: float, position: int, kernels: KernelChoice
) -> None:
    values = np.random.default_rng(1).standard_normal(300_041, dtype=np.float32)
    values[position] = bad
    before = values.copy()
    with pytest.raises(ValueError, match=rf"at position {position};"):
        make_codec(name, kernels=kernels).encode_with_residual(values)
    assert same_bits(values, before)


@pytest.mark.parametrize("name", BLOCK_CODECS)
@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0, 0xFF80, 0x8000, 0xBF80, 0x0001, 0x0D7F, 0x7F7F, "largest + 1"])
def test_scales_no_encoder_writes_are_refused(name: str, bits: int | str) -> None:
    codec = make_codec(name)
    if isinstance(bits, str):
        largest = codec.encode(np.full(8, 2.0**126, dtype=np.float32))
        codec.decode(largest, zeros(8))
        bits = int.from_bytes(bytes(largest.scales), "little") + 1
    payload = bytearray(b"".join(codec.encode(ones(300)).pack()))
    payload[2:4] = bits.to_bytes(2, "little")
    out = np.full(300, 5.0, dtype=np.float32)
    encoded = EncodedBlocks.unpack(name, 128, 300, payload)
    with pytest.raises(ValueError, match="block 1"):
        codec.decode(encoded, out)
    with pytest.raises(ValueError, match="block 1"):
        codec.decode_accumulate(encoded, 0.5, out)
    assert (out == 5.0).all()


def test_sizes() -> None:
    assert 8 * make_codec("int4").encoded_num_bytes(128) == 128 * 4.125
    assert 8 * make_codec("int4", 64).encoded_num_bytes(64) == 64 * 4.25
    assert 8 * make_codec("int8").encoded_num_bytes(128) == 128 * 8.125
    assert make_codec("fp32").encoded_num_bytes(128) == 128 * 4
    assert make_codec("int4").encoded_num_bytes(25_000_000) == 12_500_000 + 2 * 195_313
    assert make_codec("int4").encode(ones(129)).num_bytes == 64 + 1 + 2 * 2


@pytest.mark.parametrize(
    ("name", "block_size", "message"),
    [
        ("int3", 128, "int4, int8, fp32"),
        ("int4", 12, "multiple of 8"),
        ("int4", 0, "multiple of 8"),
        ("int4", 2**20, "65536"),
    ],
)
def test_bad_formats_are_refused(name: str, block_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_codec(name, block_size)
    with pytest.raises(ValueError, match=message):
        EncodedBlocks.unpack(name, block_size, 5, b"")


def test_bad_arguments_are_refused() -> None:
    codec = make_codec("int4")
    encoded = codec.encode(ones(300))
    for bad in (np.ones(300), ones(300).reshape(3, 100), ones(600)[::2], ones(300).astype(">f4")):
        with pytest.raises(ValueError, match="float32"):
            codec.encode(bad)
        with pytest.raises(ValueError, match="float32"):
            codec.decode(encoded, bad)
    for name in ("int4", "fp32"):
        for bad in (np.frombuffer(ones(300).tobytes(), np.float32), np.zeros(1201, np.uint8)[1:].view(np.float32)):
            other = make_codec(name)
            with pytest.raises(ValueError, match=r"read-only|aligned"):
                other.decode(other.encode(ones(300)), bad)
            with pytest.raises(ValueError, match=r"read-only|aligned"):
                other.encode_with_residual(bad)
    with pytest.raises(ValueError, match="expected 300"):
        codec.decode(encoded, zeros(301))
    with pytest.raises(ValueError, match="expected int8"):
        make_codec("int8").decode(encoded, zeros(300))
    with pytest.raises(ValueError, match="blocks of 64"):
        make_codec("int4", 64).decode(encoded, zeros(300))
    for weight in (math.nan, math.inf, 1e300):
        with pytest.raises(ValueError, match="weight"):
            codec.decode_accumulate(encoded, weight, zeros(300))
    for first_value, num_values in ((0, 100), (64, 128), (0, 301), (-128, 128), (128, -128)):
        with pytest.raises(ValueError, match="expected"):
            encoded.slice_blocks(first_value, num_values)
    with pytest.raises(ValueError, match="zero or more"):
        EncodedBlocks.unpack("int4", 128, -1, b"")


def test_the_documented_layout() -> None:
    values = np.arange(-7, 9, dtype=np.float32).clip(max=7)
    encoded = make_codec("int4", 16).encode(values)
    assert bytes(encoded.scales) == b"\x80\x3f"
    low, high = [code + 8 for code in range(-7, 1)], [code + 8 for code in (1, 2, 3, 4, 5, 6, 7, 7)]
    assert bytes(encoded.codes) == bytes(b << 4 | a for a, b in zip(low, high, strict=True))
