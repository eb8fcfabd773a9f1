"""Codecs: what is exact, what is bounded, and that every kernel gives the same bits."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from averaging.arrays import F32
from averaging.codec import compiled_kernels
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec, KernelChoice, make_codec
from tests.kit.averages.codec_data import (
    ALL_CODECS,
    BLOCK_CODECS,
    KERNELS,
    TOP_CODE,
    arrays,
    block_sizes,
    codecs,
    decoded,
    relaxed,
    same_bits,
    scales_of,
)


def ramp(num_values: int) -> F32:
    return np.linspace(-3, 3, num_values, dtype=np.float32)


@relaxed
@given(codecs(*ALL_CODECS), arrays())
def test_decoded_plus_residual_is_the_original_exactly(codec: Codec, original: F32) -> None:
    residual = original.copy()
    encoded = codec.encode_with_residual(residual)
    result = decoded(codec, encoded)
    assert encoded == codec.encode(original)
    assert np.array_equal(residual, original - result)
    assert np.array_equal(result + residual, original)
    # In exact arithmetic too, not only after rounding the sum.
    assert np.array_equal(result.astype(np.float64) + residual.astype(np.float64), original.astype(np.float64))


@relaxed
@given(codecs(*BLOCK_CODECS), arrays())
def test_integer_codes_are_the_nearest(codec: Codec, values: F32) -> None:
    encoded = codec.encode(values)
    scales, result = scales_of(encoded), decoded(codec, encoded).astype(np.float64)
    sent = scales > 0
    error = np.abs(values - result)
    assert (error[sent] <= scales[sent] / 2).all()
    codes = result[sent] / scales[sent]
    assert np.array_equal(codes, codes.round())
    tie = error[sent] == scales[sent] / 2
    assert (codes[tie] % 2 == 0).all(), "ties go to the even code"
    assert (np.abs(codes) <= TOP_CODE[codec.name]).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", BLOCK_CODECS)
def test_every_tie_and_its_neighbours_round_right(name: str, kernels: KernelChoice) -> None:
    """Each midpoint between two levels, for each 8-bit scale: the midpoint itself and the floats next to it."""
    top_code = TOP_CODE[name]
    levels = np.arange(top_code + 1.0)
    scales = np.arange(128.0, 256.0)
    ties = (scales[:, None] * (levels[1:] + levels[:-1]) / 2).astype(np.float32)
    cases = np.stack([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf))], axis=1)
    # One block per scale; its first value makes that scale, and every case comes with both signs.
    first = np.repeat(scales[:, None] * top_code, 2, axis=1)
    blocks = np.concatenate([first, cases.reshape(128, -1), -cases.reshape(128, -1)], axis=1).astype(np.float32)
    blocks = np.pad(blocks, ((0, 0), (0, -blocks.shape[1] % 8)))
    codec = make_codec(name, blocks.shape[1], kernels)
    encoded = codec.encode(blocks.reshape(-1))
    assert np.array_equal(scales_of(encoded)[:: blocks.shape[1]], scales)
    distances = np.abs(np.abs(blocks.astype(np.float64))[:, :, None] - scales[:, None, None] * levels)
    # The first of two equally near levels, unless its number is odd.
    nearest = distances.argmin(axis=2)
    tied = (distances == distances.min(axis=2, keepdims=True)).sum(axis=2) == 2
    nearest += tied & (nearest % 2 == 1)
    expected = np.sign(blocks) * levels[nearest] * scales[:, None]
    assert np.array_equal(decoded(codec, encoded).reshape(blocks.shape), expected)
    assert int(tied.sum()) == 2 * ties.size


@relaxed
@given(codecs(*BLOCK_CODECS), arrays())
def test_the_scale_is_close_and_never_clips(codec: Codec, values: F32) -> None:
    encoded = codec.encode(values)
    scales = scales_of(encoded)[:: codec.block_size]
    assert len(scales) == math.ceil(values.size / codec.block_size)
    for start, scale in zip(range(0, values.size, codec.block_size), scales, strict=True):
        needed = float(np.abs(values[start : start + codec.block_size]).max()) / TOP_CODE[codec.name]
        if float(scale) == 0:
            assert needed < 2.0**-100
        else:
            assert needed <= float(scale) * (1 + 2.0**-52) <= needed * (1 + 2.0**-7)


@relaxed
@given(codecs("int4", "fp32"), arrays(largest=2.0**125))
def test_encoding_decoded_values_changes_nothing(codec: Codec, values: F32) -> None:
    encoded = codec.encode(values)
    assert codec.encode(decoded(codec, encoded)) == encoded


@relaxed
@given(codecs(*ALL_CODECS), arrays(), st.floats(-1e3, 1e3, width=32))
@example(make_codec("int4", 8, "numpy"), np.full(9, 2.0**126, dtype=np.float32), 1000.0)
@example(make_codec("fp32"), np.full(9, 2.0**126, dtype=np.float32), -1000.0)
def test_accumulating_is_a_multiply_and_an_add(codec: Codec, values: F32, weight: float) -> None:
    encoded = codec.encode(values)
    start = ramp(values.size)
    out = start.copy()
    codec.decode_accumulate(encoded, weight, out)
    with np.errstate(over="ignore"):
        product = decoded(codec, encoded) * np.float32(weight)
        expected = start + product
    assert same_bits(out, expected)


@pytest.mark.skipif(len(KERNELS) < 2, reason="the kernels are not compiled")
@relaxed
@given(st.sampled_from(BLOCK_CODECS), block_sizes, arrays(max_values=300_000), st.floats(-1e3, 1e3, width=32))
def test_all_kernels_give_the_same_bits(name: str, block_size: int, values: F32, weight: float) -> None:
    results = []
    for kernels in KERNELS:
        codec = make_codec(name, block_size, kernels)
        assert codec.kernels == kernels
        residual, out = values.copy(), ramp(values.size)
        encoded = codec.encode_with_residual(residual)
        codec.decode_accumulate(encoded, weight, out)
        results.append((encoded, residual, decoded(codec, encoded), out))
    for encoded, *floats in results[1:]:
        assert encoded == results[0][0]
        for got, expected in zip(floats, results[0][1:], strict=True):
            assert same_bits(got, expected)


@pytest.mark.skipif(len(KERNELS) < 2, reason="the kernels are not compiled")
@relaxed
@given(st.sampled_from(BLOCK_CODECS), st.integers(1, 700), st.randoms(use_true_random=False))
def test_all_kernels_read_any_codes_the_same(name: str, num_values: int, chance: random.Random) -> None:
    encoded = make_codec(name, 64).encode(np.ones(num_values, dtype=np.float32))
    encoded = EncodedBlocks(name, 64, num_values, encoded.scales, chance.randbytes(len(encoded.codes)))
    results = [decoded(make_codec(name, 64, kernels), encoded) for kernels in KERNELS]
    assert all(same_bits(result, results[0]) for result in results)


@settings(max_examples=20, deadline=None)
@given(codecs(*ALL_CODECS), arrays(max_values=400_000))
def test_the_number_of_threads_changes_nothing(codec: Codec, values: F32) -> None:
    """Each thread takes a slice of whole blocks of the same arrays, as in `benchmarks/bench_codec.py`."""
    whole_residual, whole_out = values.copy(), np.ones_like(values)
    whole = codec.encode_with_residual(whole_residual)
    codec.decode_accumulate(whole, 0.3, whole_out)
    for num_threads in (2, 3):
        residual, out = values.copy(), np.ones_like(values)
        step = max(1, math.ceil(values.size / (num_threads * codec.block_size))) * codec.block_size
        slices = [slice(start, min(start + step, values.size)) for start in range(0, values.size, step)]

        def round_trip(part: slice, residual: F32 = residual, out: F32 = out) -> EncodedBlocks:
            encoded = codec.encode_with_residual(residual[part])
            codec.decode_accumulate(whole.slice_blocks(part.start, part.stop - part.start), 0.3, out[part])
            return encoded

        with ThreadPoolExecutor(num_threads) as executor:
            parts = list(executor.map(round_trip, slices))
        assert b"".join(bytes(part.scales) for part in parts) == bytes(whole.scales)
        assert b"".join(bytes(part.codes) for part in parts) == bytes(whole.codes)
        assert same_bits(residual, whole_residual)
        assert same_bits(out, whole_out)


def test_without_compiled_kernels_auto_is_numpy_and_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_kernels, "kernels", lambda: None)
    assert make_codec("int4").kernels == "numpy"
    with pytest.raises(ValueError, match="install the package with a C compiler"):
        make_codec("int4", kernels="compiled")
