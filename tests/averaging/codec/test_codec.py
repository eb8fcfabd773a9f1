"""Codecs: what is exact, what is bounded, and that every kernel gives the same bits."""

from __future__ import annotations

import json
import math
import random
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from averaging.arrays import F32
from averaging.codec import compiled_kernels
from averaging.codec.blocks import SCALE_BYTES, EncodedBlocks
from averaging.codec.codec import Codec, KernelChoice, Rounding, make_codec
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
    values_for,
)


def normal(seed: int, num_values: int) -> F32:
    return np.random.default_rng(seed).standard_normal(num_values, dtype=np.float32)


def ramp(num_values: int) -> F32:
    return np.linspace(-3, 3, num_values, dtype=np.float32)


@relaxed
@given(codecs(*ALL_CODECS), arrays())
def test_decoded_plus_residual_is_the_original_exactly(codec: Codec, values: F32) -> None:
    original = values_for(codec, values)
    residual = original.copy()
    encoded = codec.encode_with_residual(residual)
    result = decoded(codec, encoded)
    assert encoded == codec.encode(original)
    assert np.array_equal(residual, original - result)
    assert np.array_equal(result + residual, original)
    # In exact arithmetic too, not only after rounding the sum.
    assert np.array_equal(result.astype(np.float64) + residual.astype(np.float64), original.astype(np.float64))


@relaxed
@given(codecs("int2", "int4", "int8", scales=("bf16", "pow2")), arrays())
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


@relaxed
@given(codecs("e3m0"), arrays())
def test_exponent_codes_are_the_nearest(codec: Codec, values: F32) -> None:
    encoded = codec.encode(values)
    scales, result = scales_of(encoded), decoded(codec, encoded).astype(np.float64)
    levels = np.array([0.0] + [2.0 ** (code - 7) for code in range(1, 8)])
    magnitudes = np.abs(values).astype(np.float64)
    best = np.abs(magnitudes[:, None] - scales[:, None] * levels).min(axis=1)
    assert np.array_equal(np.abs(magnitudes - np.abs(result)), best)
    assert (result * values >= 0).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", BLOCK_CODECS)
def test_every_tie_and_its_neighbours_round_right(name: str, kernels: KernelChoice) -> None:
    """Each midpoint between two levels, for each 8-bit scale: the midpoint itself and the floats next to it."""
    top_code = TOP_CODE[name]
    if name == "e3m0":
        levels = np.array([0.0] + [2.0 ** (code - 7) for code in range(1, 8)])
    else:
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
            assert needed <= float(scale) * (1 + 2.0**-52) <= needed * (1 + 2.0 * SCALE_EXCESS[codec.scale])


SCALE_EXCESS = {"bf16": 2.0**-8, "fp32": 2.0**-23, "pow2": 0.5}
"""Half of what rounding up may add to a scale, as a share of it."""


@relaxed
@given(codecs("int2", "int4", "int8", scales=("fp32",)), arrays())
def test_codes_under_a_full_scale_are_the_nearest_but_for_one_rounding(codec: Codec, values: F32) -> None:
    encoded = codec.encode(values)
    scales, result = scales_of(encoded), decoded(codec, encoded).astype(np.float64)
    sent = scales > 0
    error = np.abs(values - result)
    rounded = np.abs(values[sent]).astype(np.float64) * 2.0**-22
    assert (error[sent] <= scales[sent] / 2 + rounded).all()


@pytest.mark.parametrize(
    ("scale", "bits_per_value", "most"), [("fp32", 4.25, 1.0), ("bf16", 4.125, 1.01), ("pow2", 4.0625, 1.5)]
)
def test_what_each_kind_of_scale_costs(scale: str, bits_per_value: float, most: float) -> None:
    """Error of int4 on normal data, in that of float32 scales; none takes more than 4.25 bits a value."""

    def error_of(kind: str) -> float:
        residual = normal(1, 100_000)
        make_codec("int4", scale=kind).encode_with_residual(residual)
        return float(np.linalg.norm(residual))

    assert make_codec("int4", scale=scale).bits_per_value == bits_per_value <= 4.25
    assert error_of("fp32") * 0.999 <= error_of(scale) <= error_of("fp32") * most


@relaxed
@given(codecs(*ALL_CODECS), arrays())
def test_no_value_moves_further_than_to_zero(codec: Codec, values: F32) -> None:
    values = values_for(codec, values)
    residual = values.copy()
    codec.encode_with_residual(residual)
    assert (np.abs(residual) <= np.abs(values)).all()


@relaxed
@given(codecs("int2", "int4", "e3m0", "fp16", "fp32", scales=("bf16",)), arrays(largest=2.0**125))
def test_encoding_decoded_values_changes_nothing(codec: Codec, values: F32) -> None:
    encoded = codec.encode(values_for(codec, values))
    assert codec.encode(decoded(codec, encoded)) == encoded


@relaxed
@given(codecs(*ALL_CODECS), arrays(), st.floats(-1e3, 1e3, width=32))
@example(make_codec("int4", 8, "numpy"), np.full(9, 2.0**126, dtype=np.float32), 1000.0)
@example(make_codec("fp32"), np.full(9, 2.0**126, dtype=np.float32), -1000.0)
def test_accumulating_is_a_multiply_and_an_add(codec: Codec, values: F32, weight: float) -> None:
    encoded = codec.encode(values_for(codec, values))
    start = ramp(values.size)
    out = start.copy()
    codec.decode_accumulate(encoded, weight, out)
    with np.errstate(over="ignore"):
        product = decoded(codec, encoded) * np.float32(weight)
        expected = start + product
    assert same_bits(out, expected)


@pytest.mark.skipif(len(KERNELS) < 2, reason="the kernels are not compiled")
@relaxed
@given(
    st.sampled_from(BLOCK_CODECS),
    block_sizes,
    st.sampled_from(sorted(SCALE_BYTES)),
    arrays(max_values=300_000),
    st.floats(-1e3, 1e3, width=32),
    st.sampled_from(("nearest", "stochastic")),
    st.none() | st.integers(0, 2**63),
)
def test_all_kernels_give_the_same_bits(
    name: str, block_size: int, scale: str, values: F32, weight: float, rounding: Rounding, seed: int | None
) -> None:
    results = []
    for kernels in KERNELS:
        codec = make_codec(name, block_size, kernels, scale, rounding)
        assert codec.kernels == kernels
        residual, out = values.copy(), ramp(values.size)
        encoded = codec.encode_with_residual(residual, seed)
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


def by_chance(codec: Codec) -> Codec:
    """The same codec, with stochastic rounding."""
    return make_codec(codec.name, codec.block_size, scale=codec.scale, rounding="stochastic")


@relaxed
@given(codecs(*BLOCK_CODECS, scales=("bf16", "pow2")), arrays(), st.integers(0, 2**63))
def test_stochastic_rounding_takes_a_neighbouring_level(codec: Codec, values: F32, seed: int) -> None:
    residual = values.copy()
    encoded = by_chance(codec).encode_with_residual(residual, seed)
    scales, result = scales_of(encoded), decoded(codec, encoded)
    assert np.array_equal(residual, values - result)
    positive = (
        [2.0 ** (code - 7) for code in range(1, 8)] if codec.name == "e3m0" else range(1, TOP_CODE[codec.name] + 1)
    )
    levels = np.sort([-level for level in positive] + [0.0, *positive])
    sent = scales > 0
    ratios, codes = values[sent] / scales[sent], result[sent] / scales[sent]
    above = np.searchsorted(levels, ratios).clip(0, len(levels) - 1)
    below = (np.searchsorted(levels, ratios, side="right") - 1).clip(0, len(levels) - 1)
    assert ((codes == levels[above]) | (codes == levels[below])).all()
    assert (result[~sent] == 0).all()


@pytest.mark.parametrize("name", BLOCK_CODECS)
def test_stochastic_rounding_is_right_on_average(name: str) -> None:
    codec = make_codec(name, rounding="stochastic")
    values = normal(3, 128)
    total, num_draws = np.zeros(128, dtype=np.float32), 4000
    for seed in range(num_draws):
        codec.decode_accumulate(codec.encode(values, seed), 1 / num_draws, total)
    # Rounding within a step has a standard deviation of at most half a step; 5 of the mean's is no accident.
    step = float(np.abs(values).max()) / (2 if name == "e3m0" else TOP_CODE[name])
    assert float(np.abs(total - values).max()) < 5 * 0.5 * step / math.sqrt(num_draws)


def test_the_seed_and_position_decide_stochastic_rounding() -> None:
    codec = make_codec("int4", rounding="stochastic")
    values = normal(3, 300_000)
    encoded = codec.encode(values, 7)
    assert codec.encode(values, 7) == encoded
    assert codec.encode(values, 8) != encoded
    # Equal blocks at different positions are rounded independently.
    repeated = codec.encode(np.tile(values[:128], 2), 7)
    assert repeated.slice_blocks(0, 128) != repeated.slice_blocks(128, 128)


@relaxed
@given(codecs(*BLOCK_CODECS), arrays())
def test_a_codec_of_stochastic_rounding_is_reproducible(codec: Codec, values: F32) -> None:
    """Without a seed the values decide: equal ones are rounded alike, others by another chance."""
    chance = by_chance(codec)
    first, second = values.copy(), values.copy()
    assert chance.encode_with_residual(first) == chance.encode_with_residual(second)
    assert same_bits(first, second)
    larger = np.concatenate([values, np.linspace(-1, 1, 4096, dtype=np.float32)])
    other = larger.copy()
    other[-1] = 0.75
    codes = [np.frombuffer(chance.encode(one).codes, dtype=np.uint8)[-2048:-256] for one in (larger, other)]
    assert not np.array_equal(*codes)


@pytest.mark.parametrize("name", ["fp16", "fp32"])
def test_plain_casts_round_to_nearest_only(name: str) -> None:
    with pytest.raises(ValueError, match="rounding 'stochastic' with"):
        make_codec(name, rounding="stochastic")
    with pytest.raises(ValueError, match="expected nearest or stochastic"):
        make_codec("int4", rounding="up")  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(codecs(*ALL_CODECS), arrays(max_values=400_000))
def test_the_number_of_threads_changes_nothing(codec: Codec, values: F32) -> None:
    """Each thread takes a slice of whole blocks of the same arrays, as in `benchmarks/bench_codec.py`."""
    values = values_for(codec, values)
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


@pytest.mark.parametrize("kernels", KERNELS)
def test_threads_may_share_a_codec(kernels: KernelChoice) -> None:
    codec = make_codec("int4", kernels=kernels)
    inputs = [normal(seed, 400_001) for seed in range(8)]

    def round_trip(values: F32) -> F32:
        return decoded(codec, codec.encode(values))

    expected = [round_trip(values) for values in inputs]
    with ThreadPoolExecutor(4) as executor:
        for got, result in zip(executor.map(round_trip, inputs), expected, strict=True):
            assert same_bits(got, result)


def test_without_compiled_kernels_auto_is_numpy_and_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_kernels, "kernels", lambda: None)
    assert make_codec("int4").kernels == "numpy"
    with pytest.raises(ValueError, match="install the package with a C compiler"):
        make_codec("int4", kernels="compiled")


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("scale", sorted(SCALE_BYTES))
def test_error_feedback_loses_nothing_over_many_sends(scale: str, rounding: Rounding) -> None:
    """Conservation: what was sent plus what is left is what was put in, far closer than one codec error."""
    codec = make_codec("int4", scale=scale, rounding=rounding)
    carried, sent, total = np.zeros(5000, dtype=np.float32), np.zeros(5000), np.zeros(5000)
    for round_ in range(50):
        gradient = normal(100 + round_, 5000) * np.float32(1e-3)
        total += gradient
        carried += gradient
        sent += decoded(codec, codec.encode_with_residual(carried))
    assert float(np.abs(sent + carried - total).max()) < 50 * 2.0**-24 * 0.02


def test_the_benchmark_reports_every_codec(capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "bench_codec.py"
    main = runpy.run_path(str(script))["main"]
    num_threads = torch.get_num_threads()
    try:
        main(["--json", "--values", "1000", "--repeats", "1", "--threads", "1,2"])
    finally:
        torch.set_num_threads(num_threads)
    report = json.loads(capsys.readouterr().out)
    assert {line["codec"] for line in report["quality"]} == set(ALL_CODECS)
    assert {(line["codec"], line["operation"], line["threads"]) for line in report["rates"]} >= {
        (name, operation, threads)
        for name in ALL_CODECS
        for operation in ("encode", "encode_with_residual", "decode", "decode_accumulate")
        for threads in (1, 2)
    }
    assert all(line["median_gigabytes_per_second"] > 0 for line in report["rates"])
