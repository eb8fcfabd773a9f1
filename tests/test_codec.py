"""Codecs: what is exact, what is bounded, what is refused, and that every kernel gives the same bits."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from averaging.codec import Codec, make_codec
from averaging.encoded import EncodedBlocks, encoded_num_bytes

BLOCK_CODECS = ("int4", "e3m0", "int8", "int2")
ALL_CODECS = (*BLOCK_CODECS, "fp16", "fp32")
TOP_CODE = {"int4": 7, "e3m0": 1, "int8": 127, "int2": 1}

names = st.sampled_from(ALL_CODECS)
block_names = st.sampled_from(BLOCK_CODECS)
block_sizes = st.sampled_from((8, 16, 64, 128, 384))


@st.composite
def tensors(draw: st.DrawFn, max_values: int = 1500, largest: float = 2.0**126) -> Tensor:
    """Flat float32 tensors whose blocks look like training, like trouble, and like sums of halves (ties)."""
    num_values = draw(st.integers(0, max_values))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(("normal", "wide", "sparse", "ties", "tiny", "zero", "huge")))
    values = torch.randn(num_values, generator=generator)
    if kind == "wide":
        values *= torch.exp2(torch.randint(-140, 120, (num_values,), generator=generator).to(torch.float32))
    elif kind == "sparse":
        values *= torch.rand(num_values, generator=generator) < 0.02
    elif kind == "ties":
        values = torch.randint(-14, 15, (num_values,), generator=generator) * 0.5
        values *= 2.0 ** draw(st.integers(-120, 100))
    elif kind == "tiny":
        values *= 2.0 ** draw(st.integers(-149, -95))
    elif kind == "zero":
        values *= 0.0
    elif kind == "huge":
        values = values.clamp(-1, 1) * 2.0**126
    return values.to(torch.float32).clamp(-largest, largest)


def values_for(name: str, values: Tensor) -> Tensor:
    return values.clamp(-65504, 65504) if name == "fp16" else values


def decoded(codec: Codec, encoded: EncodedBlocks) -> Tensor:
    out = torch.full((encoded.num_values,), math.nan)
    codec.decode(encoded, out)
    return out


def scales_of(encoded: EncodedBlocks) -> Tensor:
    """float64 scale of each value."""
    bits = np.frombuffer(encoded.scales, dtype=np.uint16).astype(np.uint32) << 16
    return torch.from_numpy(bits.view(np.float32).astype(np.float64)).repeat_interleave(encoded.block_size)[
        : encoded.num_values
    ]


def same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.view(torch.int32), second.view(torch.int32))


@given(names, block_sizes, tensors())
def test_decoded_plus_residual_is_the_original_exactly(name: str, block_size: int, values: Tensor) -> None:
    codec, original = make_codec(name, block_size), values_for(name, values)
    residual = original.clone()
    encoded = codec.encode_with_residual(residual)
    result = decoded(codec, encoded)
    assert encoded == codec.encode(original)
    assert torch.equal(residual, original - result)
    assert torch.equal(result + residual, original)
    # In exact arithmetic too, not only after rounding the sum.
    assert torch.equal(result.double() + residual.double(), original.double())


@given(st.sampled_from(("int2", "int4", "int8")), block_sizes, tensors())
def test_integer_codes_are_the_nearest(name: str, block_size: int, values: Tensor) -> None:
    codec = make_codec(name, block_size)
    encoded = codec.encode(values)
    scales, result = scales_of(encoded), decoded(codec, encoded).double()
    sent = scales > 0
    error = (values.double() - result).abs()
    assert bool((error[sent] <= scales[sent] / 2).all())
    codes = (result / scales)[sent]
    assert torch.equal(codes, codes.round())
    tie = error[sent] == scales[sent] / 2
    assert bool((codes[tie] % 2 == 0).all()), "ties go to the even code"
    assert bool((codes.abs() <= TOP_CODE[name]).all())


@given(block_sizes, tensors())
def test_exponent_codes_are_the_nearest(block_size: int, values: Tensor) -> None:
    codec = make_codec("e3m0", block_size)
    encoded = codec.encode(values)
    scales, result = scales_of(encoded), decoded(codec, encoded).double()
    levels = torch.tensor([0.0] + [2.0 ** (code - 7) for code in range(1, 8)], dtype=torch.float64)
    magnitudes = values.double().abs()
    best = (magnitudes[:, None] - scales[:, None] * levels).abs().amin(1)
    assert torch.equal((magnitudes - result.abs()).abs(), best)
    assert bool((result * values.double() >= 0).all())


@given(block_names, block_sizes, tensors())
def test_the_scale_is_close_and_never_clips(name: str, block_size: int, values: Tensor) -> None:
    encoded = make_codec(name, block_size).encode(values)
    scales = scales_of(encoded)[::block_size]
    for block, scale in zip(torch.split(values.double(), block_size), scales, strict=False):
        needed = float(block.abs().max()) / TOP_CODE[name] if len(block) else 0.0
        if float(scale) == 0:
            assert needed < 2.0**-100
        else:
            assert needed <= float(scale) <= needed * (1 + 2.0**-7)


@given(names, block_sizes, tensors())
def test_no_value_moves_further_than_to_zero(name: str, block_size: int, values: Tensor) -> None:
    codec, values = make_codec(name, block_size), values_for(name, values)
    residual = values.clone()
    codec.encode_with_residual(residual)
    assert bool((residual.abs() <= values.abs()).all())


@given(st.sampled_from(("int2", "int4", "e3m0", "fp16", "fp32")), block_sizes, tensors(largest=2.0**125))
def test_encoding_decoded_values_changes_nothing(name: str, block_size: int, values: Tensor) -> None:
    codec = make_codec(name, block_size)
    encoded = codec.encode(values_for(name, values))
    assert codec.encode(decoded(codec, encoded)) == encoded


@given(names, block_sizes, tensors(), st.floats(-1e3, 1e3, width=32))
def test_accumulating_is_a_multiply_and_an_add(name: str, block_size: int, values: Tensor, weight: float) -> None:
    codec = make_codec(name, block_size)
    encoded = codec.encode(values_for(name, values))
    start = torch.linspace(-3, 3, values.numel())
    out = start.clone()
    codec.decode_accumulate(encoded, weight, out)
    with np.errstate(over="ignore"):
        product = decoded(codec, encoded).numpy() * np.float32(weight)
        expected = start.numpy() + product
    assert same_bits(out, torch.from_numpy(expected))


@given(names, block_sizes, tensors(), st.data())
def test_slices_decode_to_slices(name: str, block_size: int, values: Tensor, data: st.DataObject) -> None:
    codec, values = make_codec(name, block_size), values_for(name, values)
    encoded = codec.encode(values)
    num_blocks = -(-values.numel() // block_size)
    first = data.draw(st.integers(0, num_blocks))
    last = data.draw(st.integers(first, num_blocks))
    start, end = min(first * block_size, values.numel()), min(last * block_size, values.numel())
    part = encoded.slice_blocks(start, end - start)
    assert same_bits(decoded(codec, part), decoded(codec, encoded)[start:end])
    assert part == codec.encode(values[start:end].clone())


@given(names, block_sizes, tensors())
def test_pack_and_unpack(name: str, block_size: int, values: Tensor) -> None:
    codec = make_codec(name, block_size)
    encoded = codec.encode(values_for(name, values))
    payload = b"".join(encoded.pack())
    assert len(payload) == encoded.num_bytes == codec.encoded_num_bytes(values.numel())
    # At an odd address, as in the middle of a frame.
    unpacked = EncodedBlocks.unpack(name, block_size, values.numel(), memoryview(b"x" + payload)[1:])
    assert unpacked == encoded
    assert same_bits(decoded(codec, unpacked), decoded(codec, encoded))
    for wrong in (payload + b"\0", payload[:-1]):
        if len(wrong) != len(payload):
            with pytest.raises(ValueError, match="expected"):
                EncodedBlocks.unpack(name, block_size, values.numel(), wrong)


@given(block_names, block_sizes, st.integers(0, 700), st.randoms(use_true_random=False))
def test_any_bytes_decode_to_finite_values_or_are_refused(
    name: str, block_size: int, num_values: int, chance: random.Random
) -> None:
    payload = chance.randbytes(encoded_num_bytes(name, block_size, num_values))
    encoded = EncodedBlocks.unpack(name, block_size, num_values, payload)
    out = torch.full((num_values,), 5.0)
    bits = np.frombuffer(encoded.scales, dtype=np.uint16)
    scales = (bits.astype(np.uint32) << 16).view(np.float32)
    honest = (bits == 0) | ((scales >= 2.0**-100) & (scales <= 2.0**126 / TOP_CODE[name] * (1 + 2.0**-7)))
    if not honest.all():
        with pytest.raises(ValueError, match="scale"):
            make_codec(name, block_size).decode(encoded, out)
        assert bool((out == 5.0).all())
    else:
        make_codec(name, block_size).decode(encoded, out)
        assert bool((out.abs() <= 2.0**127).all())


@pytest.mark.parametrize("name", ALL_CODECS)
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("position", [0, 200, 300_000, 300_040])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_values_out_of_range_are_refused_and_nothing_is_lost(
    name: str, bad: float, position: int, rounding: str
) -> None:
    if rounding == "stochastic" and name in ("fp16", "fp32"):
        pytest.skip("plain casts only round to nearest")
    values = torch.randn(300_041, generator=torch.Generator().manual_seed(1))
    values[position] = bad
    before = values.clone()
    with pytest.raises(ValueError, match=rf"at position {position};"):
        make_codec(name).encode_with_residual(values, rounding=rounding)  # type: ignore[arg-type]
    assert same_bits(values, before)


@pytest.mark.parametrize("name", BLOCK_CODECS)
@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0, 0xFF80, 0x8000, 0xBF80, 0x0001, 0x7F7F])
def test_scales_no_encoder_writes_are_refused(name: str, bits: int) -> None:
    codec = make_codec(name)
    payload = bytearray(b"".join(codec.encode(torch.ones(300)).pack()))
    payload[2:4] = bits.to_bytes(2, "little")
    out = torch.full((300,), 5.0)
    encoded = EncodedBlocks.unpack(name, 128, 300, payload)
    with pytest.raises(ValueError, match="block 1"):
        codec.decode(encoded, out)
    with pytest.raises(ValueError, match="block 1"):
        codec.decode_accumulate(encoded, 0.5, out)
    assert bool((out == 5.0).all())


@pytest.mark.parametrize("name", ["fp16", "fp32"])
def test_floats_that_are_not_finite_are_refused(name: str) -> None:
    codec = make_codec(name)
    array = np.ones(10, dtype=np.float16 if name == "fp16" else np.float32)
    array[3] = np.inf
    with pytest.raises(ValueError, match="position 3"):
        codec.decode(EncodedBlocks(name, 128, 10, b"", array.tobytes()), torch.zeros(10))


def test_sizes() -> None:
    assert make_codec("int4").bits_per_value == 4.125
    assert make_codec("int4", 64).bits_per_value == 4.25
    assert make_codec("int2").bits_per_value == 2.125
    assert make_codec("fp16").bits_per_value == 16
    assert make_codec("int4").encoded_num_bytes(25_000_000) == 12_500_000 + 2 * 195_313
    assert make_codec("int4").encode(torch.ones(129)).num_bytes == 64 + 1 + 2 * 2


@pytest.mark.parametrize(
    ("name", "block_size", "message"),
    [
        ("int3", 128, "int4, e3m0"),
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
    encoded = codec.encode(torch.ones(300))
    for bad in (torch.ones(300).double(), torch.ones(3, 100), torch.ones(600)[::2]):
        with pytest.raises(ValueError, match="float32"):
            codec.encode(bad)
        with pytest.raises(ValueError, match="float32"):
            codec.decode(encoded, bad)
    with pytest.raises(ValueError, match="expected 300"):
        codec.decode(encoded, torch.zeros(301))
    with pytest.raises(ValueError, match="expected e3m0"):
        make_codec("e3m0").decode(encoded, torch.zeros(300))
    with pytest.raises(ValueError, match="blocks of 64"):
        make_codec("int4", 64).decode(encoded, torch.zeros(300))
    for weight in (math.nan, math.inf, 1e300):
        with pytest.raises(ValueError, match="weight"):
            codec.decode_accumulate(encoded, weight, torch.zeros(300))
    for first_value, num_values in ((0, 100), (64, 128), (0, 301), (-128, 128), (128, -128)):
        with pytest.raises(ValueError, match="expected"):
            encoded.slice_blocks(first_value, num_values)
    with pytest.raises(ValueError, match="zero or more"):
        EncodedBlocks.unpack("int4", 128, -1, b"")


def test_the_documented_layout() -> None:
    values = torch.arange(-7, 9).clamp(max=7).to(torch.float32)
    encoded = make_codec("int4", 16).encode(values)
    assert bytes(encoded.scales) == b"\x80\x3f"
    low, high = [code + 8 for code in range(-7, 1)], [code + 8 for code in (1, 2, 3, 4, 5, 6, 7, 7)]
    assert bytes(encoded.codes) == bytes(b << 4 | a for a, b in zip(low, high, strict=True))
    exponents = make_codec("e3m0", 8).encode(torch.tensor([1.0, -1.0, 0.5, -0.25, 0.015625, 0.0, -0.0, 0.007]))
    assert bytes(exponents.codes) == bytes([1 << 4 | 7, 0 << 4 | 15, 0 << 4 | 6, 0 << 4 | 13])


@settings(max_examples=20)
@given(names, tensors(max_values=400_000))
def test_the_number_of_threads_changes_nothing(name: str, values: Tensor) -> None:
    codec, values = make_codec(name), values_for(name, values)
    before = torch.get_num_threads()
    results = []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            residual, out = values.clone(), torch.ones(values.numel())
            encoded = codec.encode_with_residual(residual)
            codec.decode_accumulate(encoded, 0.3, out)
            results.append((encoded, residual, out))
    finally:
        torch.set_num_threads(before)
    for encoded, residual, out in results[1:]:
        assert encoded == results[0][0]
        assert same_bits(residual, results[0][1])
        assert same_bits(out, results[0][2])
