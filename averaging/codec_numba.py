"""Block kernels compiled by numba: the same bits as `codec_torch.py`, in one pass over memory.

Editor's rules: no fastmath and no parallel loops (the compiler must neither reorder nor fuse float operations, and
numba's thread pools do not bear concurrent callers). numba widens small integers to 64 bits after each operation, so
every one is narrowed again at once: that is what lets the loops become vector instructions. Imported constants are
baked into the cached code, which numba renews only when this file changes: change it along with them.

The kernels release the GIL. Compiled code is cached beside this file or in the user's cache directory; where neither
can be written, each process compiles anew (about a second a kernel).
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from torch import Tensor

from averaging.codec_torch import (
    F32,
    MAX_MAGNITUDE_BITS,
    NOISE_BITS,
    SMALLEST_LEVEL,
    SMALLEST_SCALE_BITS,
    U8,
    U32,
    BlockFormat,
    exponent_levels,
)
from averaging.compiled import compiled

f32, i32, u32, u8 = np.float32, np.int32, np.uint32, np.uint8

MAX_BITS = i32(MAX_MAGNITUDE_BITS)
MIN_SCALE_BITS = i32(SMALLEST_SCALE_BITS)
INFINITY = f32(np.inf)
NOISE_STEP = f32(2.0**-NOISE_BITS)
NOISE_RANGE = f32(2.0**NOISE_BITS)
HALF_LEVEL = f32(SMALLEST_LEVEL / 2)
PER_LEVEL = f32(2.0**NOISE_BITS / SMALLEST_LEVEL)

_FLOATS = types.Array(types.float32, 1, "C")
_SCALE_BITS = types.Array(types.uint32, 1, "C")
_CODES = types.Array(types.uint8, 1, "C")
_READ_FLOATS = types.Array(types.float32, 1, "C", readonly=True)
_READ_CODES = types.Array(types.uint8, 1, "C", readonly=True)


class NumbaKernels:
    """Encode and decode whole blocks; arguments are those of `TorchKernels`."""

    name = "numba"

    def __init__(self, block_format: BlockFormat) -> None:
        self._format = block_format
        self._levels: F32 = exponent_levels().numpy()
        self._top_code = f32(block_format.top_code)
        encoders = (_encode_integers, _encode_exponents)
        decoders = (_decode_integers, _decode_exponents)
        self._encode = compiled(encoders[block_format.exponential], _ENCODE_SIGNATURE)
        self._decode = compiled(decoders[block_format.exponential], _DECODE_SIGNATURE)

    def encode(
        self, values: Tensor, block_size: int, scales: U32, codes: U8, keep_residual: bool, first_value: int, noise: int
    ) -> int:
        """As `TorchKernels.encode`."""
        done: int = self._encode(
            values.numpy(),
            block_size,
            self._format.bits,
            self._top_code,
            self._format.round_up,
            self._format.dropped_bits,
            self._levels,
            scales,
            codes,
            keep_residual,
            first_value,
            noise,
        )
        return done

    def decode(self, scales: F32, codes: U8, block_size: int, out: Tensor) -> None:
        """As `TorchKernels.decode`."""
        self._decode(scales, codes, block_size, self._format.bits, self._levels, f32(1), False, out.numpy())

    def decode_accumulate(self, scales: F32, codes: U8, block_size: int, weight: float, out: Tensor) -> None:
        """As `TorchKernels.decode_accumulate`."""
        self._decode(scales, codes, block_size, self._format.bits, self._levels, f32(weight), True, out.numpy())


_ENCODE_SIGNATURE = types.int64(
    _FLOATS,
    types.int64,
    types.int64,
    types.float32,
    types.int64,
    types.int64,
    _READ_FLOATS,
    _SCALE_BITS,
    _CODES,
    types.boolean,
    types.int64,
    types.int64,
)
_DECODE_SIGNATURE = types.void(
    _READ_FLOATS, _READ_CODES, types.int64, types.int64, _READ_FLOATS, types.float32, types.boolean, _FLOATS
)


@njit(inline="always")
def _block_scale(bits, top_code, round_up, dropped_bits, float_cell):  # type: ignore[no-untyped-def]
    """float32 bits of the scale of one block, given the bits of its values; -1 when one is out of range."""
    int_cell = float_cell.view(i32)
    largest = i32(0)
    for i in range(bits.shape[0]):
        largest = max(largest, i32(bits[i] & i32(0x7FFFFFFF)))
    if largest > MAX_BITS:
        return i32(-1)
    int_cell[0] = largest
    float_cell[0] = float_cell[0] / top_code
    scale_bits = i32(i32(int_cell[0] + i32(round_up)) >> i32(dropped_bits))
    scale_bits = i32(scale_bits << i32(dropped_bits))
    return scale_bits if scale_bits >= MIN_SCALE_BITS else i32(0)


@njit(inline="always")
def _noise(position, seed):  # type: ignore[no-untyped-def]
    """0..65535 from position and seed, as in `codec_torch`."""
    hashed = u32(u32(position) ^ u32(seed))
    hashed = u32(u32(hashed ^ u32(hashed >> u32(16))) * u32(0x7FEB352D))
    hashed = u32(u32(hashed ^ u32(hashed >> u32(15))) * u32(0x846CA68B))
    return i32(hashed >> u32(16))


def _encode_integers(  # type: ignore[no-untyped-def]
    values, block_size, bits, top_code, round_up, dropped_bits, levels, scales, codes, keep_residual, first_value, noise
):
    num_blocks = scales.shape[0]
    width = block_size * bits // 8
    float_cell = np.empty(1, f32)
    rounded = np.empty(block_size, f32)
    all_bits = values.view(i32)
    for block in range(num_blocks):
        start = block * block_size
        chunk = values[start : start + block_size]
        packed = codes[block * width : (block + 1) * width]
        scale_bits = _block_scale(all_bits[start : start + block_size], top_code, round_up, dropped_bits, float_cell)
        if scale_bits < 0:
            return block
        scales[block] = scale_bits
        float_cell.view(i32)[0] = scale_bits
        scale = float_cell[0]
        divisor = scale if scale_bits > 0 else INFINITY
        if noise < 0:
            for i in range(block_size):
                rounded[i] = np.rint(chunk[i] / divisor)
        else:
            for i in range(block_size):
                draw = f32(_noise(first_value + start + i, noise))
                rounded[i] = np.floor(chunk[i] / divisor + (draw + f32(0.5)) * NOISE_STEP)
        if bits == 4:
            high = rounded[width:]
            for i in range(width):
                packed[i] = u8(i32(i32(rounded[i]) + i32(high[i]) * i32(16)) + i32(0x88))
        elif bits == 8:
            for i in range(width):
                packed[i] = u8(i32(rounded[i]) + i32(0x80))
        else:
            second, third, fourth = rounded[width:], rounded[2 * width :], rounded[3 * width :]
            for i in range(width):
                low = i32(rounded[i]) + i32(second[i]) * i32(4)
                packed[i] = u8(low + i32(third[i]) * i32(16) + i32(fourth[i]) * i32(64) + i32(0xAA))
        if keep_residual:
            for i in range(block_size):
                chunk[i] -= rounded[i] * scale
    return num_blocks


def _decode_integers(scales, codes, block_size, bits, levels, weight, accumulate, out):  # type: ignore[no-untyped-def]
    width = block_size * bits // 8
    parts = 8 // bits
    mask, zero = i32((1 << bits) - 1), i32(1 << (bits - 1))
    for block in range(scales.shape[0]):
        scale = scales[block]
        packed = codes[block * width : (block + 1) * width]
        for part in range(parts):
            start = block * block_size + part * width
            chunk = out[start : start + width]
            shift = i32(part * bits)
            if accumulate:
                for i in range(width):
                    code = i32(i32(i32(packed[i]) >> shift) & mask)
                    chunk[i] += f32(i32(code - zero)) * scale * weight
            else:
                for i in range(width):
                    code = i32(i32(i32(packed[i]) >> shift) & mask)
                    chunk[i] = f32(i32(code - zero)) * scale


def _encode_exponents(  # type: ignore[no-untyped-def]
    values, block_size, bits, top_code, round_up, dropped_bits, levels, scales, codes, keep_residual, first_value, noise
):
    num_blocks = scales.shape[0]
    width = block_size // 2
    float_cell = np.empty(1, f32)
    ratios = np.empty(block_size, f32)
    nibbles = np.empty(block_size, i32)
    ratio_bits = ratios.view(i32)
    all_bits = values.view(i32)
    for block in range(num_blocks):
        start = block * block_size
        chunk = values[start : start + block_size]
        packed = codes[block * width : (block + 1) * width]
        scale_bits = _block_scale(all_bits[start : start + block_size], top_code, round_up, dropped_bits, float_cell)
        if scale_bits < 0:
            return block
        scales[block] = scale_bits
        float_cell.view(i32)[0] = scale_bits
        scale = float_cell[0]
        divisor = scale if scale_bits > 0 else INFINITY
        for i in range(block_size):
            ratios[i] = abs(chunk[i] / divisor)
        if noise < 0:
            for i in range(block_size):
                even = i32(i32(ratio_bits[i] >> i32(23)) & i32(1))
                nearest = i32(i32(ratio_bits[i] + even) + i32(0x3FFFFF))
                level = max(i32(i32(nearest >> i32(23)) - i32(120)), i32(1))
                nibbles[i] = level if ratios[i] > HALF_LEVEL else i32(0)
        else:
            for i in range(block_size):
                draw = _noise(first_value + start + i, noise)
                raised = i32(ratio_bits[i] + i32(draw << i32(23 - NOISE_BITS)))
                level = max(i32(i32(raised >> i32(23)) - i32(120)), i32(1))
                nibbles[i] = level if ratios[i] * PER_LEVEL + f32(draw) >= NOISE_RANGE else i32(0)
        for i in range(block_size):
            nibbles[i] = i32(nibbles[i] + i32(8)) if chunk[i] < f32(0) and nibbles[i] > 0 else nibbles[i]
        high = nibbles[width:]
        for i in range(width):
            packed[i] = u8(nibbles[i] + high[i] * i32(16))
        if keep_residual:
            for i in range(block_size):
                chunk[i] -= levels[nibbles[i]] * scale
    return num_blocks


def _decode_exponents(scales, codes, block_size, bits, levels, weight, accumulate, out):  # type: ignore[no-untyped-def]
    width = block_size // 2
    for block in range(scales.shape[0]):
        scale = scales[block]
        packed = codes[block * width : (block + 1) * width]
        for part in range(2):
            start = block * block_size + part * width
            chunk = out[start : start + width]
            shift = i32(part * 4)
            if accumulate:
                for i in range(width):
                    chunk[i] += levels[(packed[i] >> shift) & 15] * scale * weight
            else:
                for i in range(width):
                    chunk[i] = levels[(packed[i] >> shift) & 15] * scale
