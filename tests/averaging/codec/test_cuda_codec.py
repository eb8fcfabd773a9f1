"""Kernels for a device against the CPU's, bit for bit: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from averaging.arrays import F32
from averaging.codec.blocks import SCALE_BYTES
from averaging.codec.codec import make_codec
from averaging.codec.cuda_codec import INTEGER_CODECS, DeviceCodec
from benchmarks.codec_device import device_rates
from tests.kit.codec_data import arrays, same_bits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported, which a DeviceCodec does

pytest.importorskip("triton", reason="Triton is not installed; it has no wheel for this machine")


def hard_values(num_values: int, seed: int = 0) -> F32:
    """Many magnitudes, ties, both zeros, numbers too small to be sent."""
    chance = np.random.default_rng(seed)
    values = chance.standard_normal(num_values, dtype=np.float32)
    values *= np.exp(8 * chance.standard_normal(num_values, dtype=np.float32))
    values[1::17] = -0.0
    values[2::19] = 0.0
    values[3::23] = -1e-40
    values[4::29] = 2.0**125
    ties = values[num_values // 2 :][:300]
    ties[:] = np.arange(len(ties)) / 2
    return values


def on_device(values: F32) -> Tensor:
    """A copy."""
    return torch.from_numpy(values.copy()).to(DEVICE)


def back(there: Tensor) -> F32:
    return there.cpu().numpy()


def check(name: str, block_size: int, scale: str, values: F32) -> None:
    host, device = make_codec(name, block_size, kernels="numpy", scale=scale), DeviceCodec(name, block_size, scale)
    left, left_there = values.copy(), on_device(values)
    encoded, encoded_there = host.encode_with_residual(left), device.encode_with_residual(left_there)
    assert bytes(encoded.scales) == bytes(encoded_there.scales)
    assert bytes(encoded.codes) == bytes(encoded_there.codes)
    assert same_bits(left, back(left_there))
    unchanged = on_device(values)
    assert device.encode(unchanged) == encoded_there
    assert same_bits(back(unchanged), values)
    out = np.random.default_rng(1).standard_normal(len(values), dtype=np.float32)
    out_there = on_device(out)
    for weight in (0.3, 1.0, -1e-3):
        host.decode_accumulate(encoded, weight, out)
        device.decode_accumulate(encoded, weight, out_there)
        assert same_bits(out, back(out_there))
    host.decode(encoded, out)
    device.decode(encoded, out_there)
    assert same_bits(out, back(out_there))


@pytest.mark.parametrize("scale", SCALE_BYTES)
@pytest.mark.parametrize("name", INTEGER_CODECS)
@pytest.mark.parametrize(("block_size", "num_values"), [(8, 100), (24, 1000), (128, 4000), (128, 100), (4096, 8192)])
def test_every_format_has_the_bits_of_the_cpu(name: str, scale: str, block_size: int, num_values: int) -> None:
    check(name, block_size, scale, hard_values(num_values))


@settings(max_examples=25, deadline=None)
@given(arrays(), st.sampled_from(INTEGER_CODECS), st.sampled_from(sorted(SCALE_BYTES)))
def test_any_values_have_the_bits_of_the_cpu(values: F32, name: str, scale: str) -> None:
    check(name, 16, scale, values)


@pytest.mark.parametrize("num_values", [0, 1, 127, 128, 129])
def test_few_values(num_values: int) -> None:
    check("int4", 128, "bf16", hard_values(400)[:num_values].copy())


@pytest.mark.parametrize("refused", [float("nan"), float("-inf"), 2.0**127])
@pytest.mark.parametrize("position", [0, 500, 999])
def test_values_beyond_the_range_change_nothing(refused: float, position: int) -> None:
    values = np.random.default_rng(2).standard_normal(1000, dtype=np.float32)
    values[position] = refused
    there = on_device(values)
    for encode in (DeviceCodec("int4").encode, DeviceCodec("int4").encode_with_residual):
        with pytest.raises(ValueError, match=f"at position {position}; expected finite values of at most"):
            encode(there)
        assert same_bits(back(there), values)


def test_what_does_not_fit_is_refused_with_a_sentence() -> None:
    codec = DeviceCodec("int4")
    encoded = codec.encode(torch.ones(256, device=DEVICE))
    with pytest.raises(ValueError, match="'e3m0' on a device; expected one of int2, int4, int8"):
        DeviceCodec("e3m0")
    with pytest.raises(ValueError, match="an output of 255 values; expected 256"):
        codec.decode(encoded, torch.zeros(255, device=DEVICE))
    with pytest.raises(ValueError, match=r"int4 blocks of 128 .* expected int8 blocks"):
        DeviceCodec("int8").decode(encoded, torch.zeros(256, device=DEVICE))
    with pytest.raises(ValueError, match="expected a contiguous one-dimensional float32"):
        codec.encode(torch.ones(8, 8, device=DEVICE))
    with pytest.raises(ValueError, match="weight nan"):
        codec.decode_accumulate(encoded, float("nan"), torch.zeros(256, device=DEVICE))
    hostile = type(encoded)("int4", 128, 256, b"\xff\xff" + bytes(encoded.scales)[2:], encoded.codes)
    out = torch.zeros(256, device=DEVICE)
    with pytest.raises(ValueError, match="of block 0; expected 0 or a number from"):
        codec.decode(hostile, out)
    assert not out.any()


COMPILE = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from averaging.codec import triton_kernels

pointers = {"values": "*fp32", "out": "*fp32", "codes": "*u8", "weight": "fp32", "first_refused": "*i32"}
constants = dict(TOP_CODE=7, BITS=4, ROUND_UP=65535, DROPPED_BITS=16, ZERO_BYTE=0x88, LARGEST_BITS=0x7E800000)
constants |= dict(SMALLEST_SCALE_BITS=0x0D800000, KEEPS_RESIDUAL=True, ACCUMULATES=True, ROWS=16, COLUMNS=64)
for kernel in (triton_kernels.encode_blocks, triton_kernels.decode_blocks):
    types, given = {}, {}
    for name in kernel.arg_names:
        if name in constants:
            types[name], given[name] = "constexpr", constants[name]
        else:
            types[name] = {"scales": "*i32", **pointers}.get(name, "i32")
    made = triton.compile(
        ASTSource(fn=kernel, signature=types, constexprs=given),
        target=GPUTarget("cuda", 80, 32),
        options={"enable_fp_fusion": False},
    )
    assert made.asm["cubin"]
    print(*sorted(set(re.findall(r"[a-z.]+[.]f32\\b", made.asm["ptx"]))))
"""


def test_compiled_for_a_device_every_operation_is_rounded_on_its_own() -> None:
    """No GPU is needed to compile: neither a fused multiply-add, nor a division that is only nearly right."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    encode, decode = (set(line.split()) for line in done.stdout.splitlines())
    arithmetic = {"add.rn.f32", "sub.rn.f32", "mul.rn.f32", "div.rn.f32"}
    assert {one for one in encode if one[:3] in ("add", "sub", "mul", "div", "fma", "mad")} == arithmetic
    assert {one for one in decode if one[:3] in ("add", "sub", "mul", "div", "fma", "mad")} == {
        "add.rn.f32",
        "mul.rn.f32",
    }


class ClockEvent:
    """`torch.cuda.Event` for a machine without one."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: ClockEvent) -> float:
        return 1e3 * (other.at - self.at)


def test_the_benchmark_counts_what_crosses_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(torch.cuda, "Event", ClockEvent)
    copied, *rates = device_rates(["int4", "fp16"], 4096, 1, DEVICE)
    assert copied.operation == "memcpy"
    assert {rate.codec for rate in rates} == {"int4"}
    bytes_per_value = {
        rate.operation: 4 * rate.traffic_gigabytes_per_second / rate.median_gigabytes_per_second for rate in rates
    }
    half = 0.5 + 4 / 128
    expected = {"encode": 4 + half, "encode_with_residual": 8 + half, "decode": 4 + half, "decode_accumulate": 8 + half}
    assert bytes_per_value == pytest.approx(expected)
