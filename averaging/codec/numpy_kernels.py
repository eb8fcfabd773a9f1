"""Block kernels in plain numpy: the reference that every other kernel must equal bit for bit.

All functions work on whole blocks; `codec.py` pads the tail. They walk in chunks that fit a core's second-level cache.
Scratch arrays are kept per thread, because at these speeds a fresh megabyte costs more than the arithmetic on it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from averaging.arrays import F32, I32, U8, U32
from averaging.codec.blocks import MAX_MAGNITUDE, MAX_MAGNITUDE_BITS, SMALLEST_SCALE_BITS

CHUNK_VALUES = 1 << 17
"""Half a megabyte of float32: with the scratch arrays of one chunk it stays inside a 1-2 MB second-level cache."""

NOISE_BITS = 16
"""Resolution of stochastic rounding: probabilities are multiples of 2^-16."""

MANTISSA_BITS = 23

SMALLEST_LEVEL = 2.0**-6
"""Smallest e3m0 level above zero, in units of the scale."""


@dataclass(frozen=True, slots=True)
class CodeLevels:
    """A code of `bits` bits whose largest value is `top_code` scales: integers, or powers of two down from 1.

    A scale is a float32 without its lowest `dropped_bits` bits.
    """

    bits: int
    top_code: int
    exponential: bool
    dropped_bits: int = 16

    @property
    def codes_per_byte(self) -> int:
        return 8 // self.bits

    @property
    def zero_byte(self) -> int:
        """The byte in which every code is the integer zero of offset binary."""
        top_bit = 1 << (self.bits - 1)
        return sum(top_bit << (self.bits * part) for part in range(self.codes_per_byte))

    @property
    def round_up(self) -> int:
        """Added to the bits of |x| / top_code before the lowest are dropped, so that no scale is too small.

        Where none are dropped, the quotient itself may have been rounded down (not that by 1).
        """
        return (1 << self.dropped_bits) - 1 if self.dropped_bits else int(self.top_code > 1)

    @property
    def largest_scale_bits(self) -> int:
        """The scale (as float32 bits) of a block that holds the largest value allowed."""
        bits = np.array([np.float32(MAX_MAGNITUDE) / np.float32(self.top_code)], dtype=np.float32).view(np.uint32)
        return (int(bits[0]) + self.round_up) >> self.dropped_bits << self.dropped_bits


BLOCK_FORMATS = {
    "int4": CodeLevels(4, 7, exponential=False),
    "e3m0": CodeLevels(4, 1, exponential=True),
    "int8": CodeLevels(8, 127, exponential=False),
    "int2": CodeLevels(2, 1, exponential=False),
}

DROPPED_SCALE_BITS = {"bf16": 16, "fp32": 0, "pow2": MANTISSA_BITS}


def noise_seed(seed: int) -> int:
    """Spreads any integer seed over 32 bits (splitmix64's finaliser), so that neighbouring seeds are unrelated."""
    mixed = (seed + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ (mixed >> 31)) & 0xFFFFFFFF


class _Scratch(threading.local):
    """One growing buffer per name and thread, so that threads may share a codec."""

    def __init__(self) -> None:
        self.buffers: dict[str, npt.NDArray[Any]] = {}

    def get(self, name: str, shape: Sequence[int], dtype: type[np.generic]) -> npt.NDArray[Any]:
        count = math.prod(shape)
        buffer = self.buffers.get(name)
        if buffer is None or buffer.size < count:
            buffer = self.buffers[name] = np.empty(count, dtype=dtype)
        return buffer[:count].reshape(shape)


class NumpyKernels:
    """Encode and decode whole blocks with numpy operations."""

    name = "numpy"

    def __init__(self, block_format: CodeLevels) -> None:
        self._format = block_format
        self._scratch = _Scratch()
        self._tables = _exponent_tables() if block_format.exponential else None

    def encode(
        self, values: F32, block_size: int, scales: U32, codes: U8, keep_residual: bool, first_value: int, noise: int
    ) -> int:
        """Encode whole blocks; with `keep_residual`, `values` become values minus decoded.

        Args:
            values: float32 [num_blocks * block_size].
            scales: uint32 [num_blocks], written: the bits of float32 scales.
            codes: uint8 [num_blocks * block_size * bits / 8], written.
            first_value: position of values[0] in its array; only the noise depends on it.
            noise: 32-bit seed of stochastic rounding, or -1 to round to nearest.

        Returns:
            The number of blocks done: fewer than all when a value is not finite or larger than MAX_MAGNITUDE. That
            block and all later ones are untouched.
        """
        num_blocks: int = scales.shape[0]
        blocks = values.reshape(num_blocks, block_size)
        codes_out = codes.reshape(num_blocks, block_size // self._format.codes_per_byte)
        scales_out = scales.view(np.int32)
        step = max(1, CHUNK_VALUES // block_size)
        for start in range(0, num_blocks, step):
            end = min(num_blocks, start + step)
            chunk = blocks[start:end]
            scale_bits = self._scale_bits(chunk)
            if scale_bits is None:
                return start
            scales_out[start:end] = scale_bits
            scale = scale_bits.view(np.float32)[:, np.newaxis]
            # x / inf is 0: a block without a scale gets codes of zero without a branch.
            divisor = np.where(scale == 0, np.float32(np.inf), scale)
            ratios: F32 = self._scratch.get("floats", chunk.shape, np.float32)
            np.divide(chunk, divisor, out=ratios)
            draws = None if noise < 0 else _noise_bits(first_value + start * block_size, chunk.shape, noise)
            if self._format.exponential:
                self._encode_exponents(ratios, draws, codes_out[start:end])
            else:
                self._encode_integers(ratios, draws, codes_out[start:end])
            if keep_residual:
                if self._format.exponential:
                    self._decode_chunk(codes_out[start:end], ratios)
                ratios *= scale
                chunk -= ratios
        return num_blocks

    def decode(self, scales: F32, codes: U8, block_size: int, out: F32) -> None:
        """out = decoded. scales: float32 [num_blocks]; codes: uint8; out: float32 [num_blocks * block_size]."""
        blocks = out.reshape(len(scales), block_size)
        for start, end, scale, chunk_codes in self._chunks(scales, codes, block_size):
            self._decode_chunk(chunk_codes, blocks[start:end])
            blocks[start:end] *= scale

    def decode_accumulate(self, scales: F32, codes: U8, block_size: int, out: F32, weight: float) -> None:
        """out = out + weight * decoded, each operation rounded to float32 on its own."""
        blocks = out.reshape(len(scales), block_size)
        for start, end, scale, chunk_codes in self._chunks(scales, codes, block_size):
            decoded: F32 = self._scratch.get("floats", (end - start, block_size), np.float32)
            self._decode_chunk(chunk_codes, decoded)
            decoded *= scale
            # Beyond float32 there is infinity, as in the compiled kernels, which do not warn of it.
            with np.errstate(over="ignore", invalid="ignore"):
                if weight != 1.0:
                    decoded *= np.float32(weight)
                blocks[start:end] += decoded

    def _chunks(self, scales: F32, codes: U8, block_size: int) -> Iterator[tuple[int, int, F32, U8]]:
        num_blocks = len(scales)
        all_codes = codes.reshape(num_blocks, block_size // self._format.codes_per_byte)
        step = max(1, CHUNK_VALUES // block_size)
        for start in range(0, num_blocks, step):
            end = min(num_blocks, start + step)
            yield start, end, scales[start:end, np.newaxis], all_codes[start:end]

    def _scale_bits(self, chunk: F32) -> I32 | None:
        """float32 bits (int32 [num_blocks]) of each block's scale; None when a value is out of range.

        The scale is the largest magnitude over `top_code`, rounded up: then no quotient exceeds `top_code`.
        """
        # As integers, because a NaN compares above every number there.
        magnitudes: I32 = self._scratch.get("magnitudes", chunk.shape, np.int32)
        np.bitwise_and(chunk.view(np.int32), 0x7FFFFFFF, out=magnitudes)
        largest_bits: I32 = magnitudes.max(axis=1)
        if int(largest_bits.max()) > MAX_MAGNITUDE_BITS:
            return None
        largest = largest_bits.view(np.float32) / np.float32(self._format.top_code)
        dropped = self._format.dropped_bits
        bits: I32 = (largest.view(np.int32) + self._format.round_up) >> dropped << dropped
        bits *= bits >= SMALLEST_SCALE_BITS
        return bits

    def _encode_integers(self, ratios: F32, draws: I32 | None, codes: U8) -> None:
        """Round `ratios` in place to integers and pack them; codes: uint8 [num_blocks, block_bytes]."""
        if draws is None:
            np.rint(ratios, out=ratios)
        else:
            chance = draws.astype(np.float32)
            chance += 0.5
            chance *= 2.0**-NOISE_BITS
            ratios += chance
            np.floor(ratios, out=ratios)
        parts = np.split(ratios, self._format.codes_per_byte, axis=1)
        packed = parts[0]
        if len(parts) > 1:
            packed = self._scratch.get("packed", codes.shape, np.float32)
            shifted = self._scratch.get("shifted", codes.shape, np.float32)
            packed[:] = parts[0]
            for index, part in enumerate(parts[1:], start=1):
                # Small integers: nothing is rounded.
                packed += np.multiply(part, 1 << (self._format.bits * index), out=shifted)
        # The sum of the signed codes fits int8, and adding zero_byte modulo 256 makes each offset binary.
        np.copyto(codes.view(np.int8), packed, casting="unsafe")
        codes += np.uint8(self._format.zero_byte)

    def _encode_exponents(self, ratios: F32, draws: I32 | None, codes: U8) -> None:
        """Pack sign and exponent of `ratios` (|ratio| <= 1); levels are 0 and 2^-6 .. 2^0."""
        negative = ratios < 0
        np.abs(ratios, out=ratios)
        bits = ratios.view(np.int32)
        if draws is None:
            # Half a step of the mantissa, less one unit when the lower exponent is even: ties go to the even code.
            exponents = ((bits >> MANTISSA_BITS) & 1) + bits + ((1 << (MANTISSA_BITS - 1)) - 1)
            nonzero = ratios > SMALLEST_LEVEL / 2
        else:
            exponents = bits + (draws << (MANTISSA_BITS - NOISE_BITS))
            nonzero = ratios * (2.0**NOISE_BITS / SMALLEST_LEVEL) + draws.astype(np.float32) >= 2.0**NOISE_BITS
        # Biased exponent 127 (1.0) is code 7; what lies below 2^-6 is code 1 or 0 by its own rule.
        levels = np.maximum((exponents >> MANTISSA_BITS) - 120, 1) * nonzero
        levels[negative & (levels > 0)] += 8
        low, high = np.split(levels, 2, axis=1)
        codes[:] = low + (high << 4)

    def _decode_chunk(self, codes: U8, out: F32) -> None:
        """Codes (uint8 [num_blocks, block_bytes]) in units of the scale: out, float32 [num_blocks, block_size]."""
        bits, block_bytes = self._format.bits, codes.shape[1]
        if self._tables is not None:
            for part, table in enumerate(self._tables):
                out[:, part * block_bytes : (part + 1) * block_bytes] = table[codes]
            return
        # Offset binary with its top bit flipped is two's complement: shift it up, then down with its sign.
        flipped = self._scratch.get("flipped", codes.shape, np.uint8)
        shifted = self._scratch.get("bytes", codes.shape, np.int8)
        np.bitwise_xor(codes, np.uint8(self._format.zero_byte), out=flipped)
        for part in range(self._format.codes_per_byte):
            source = flipped.view(np.int8)
            if bits < 8:
                np.left_shift(source, np.int8(8 - bits * (part + 1)), out=shifted)
                source = np.right_shift(shifted, np.int8(8 - bits), out=shifted)
            out[:, part * block_bytes : (part + 1) * block_bytes] = source


def exponent_levels() -> F32:
    """What each of the 16 e3m0 codes means (float32 [16]); the unused code 8, minus zero, means zero."""
    levels = [0.0] + [SMALLEST_LEVEL * 2.0**exponent for exponent in range(7)]
    return np.array([*levels, *(0.0 - level for level in levels)], dtype=np.float32)


def _exponent_tables() -> tuple[F32, F32]:
    """Levels of the low and of the high code of every byte."""
    levels, every_byte = exponent_levels(), np.arange(256)
    return levels[every_byte & 15], levels[every_byte >> 4]


def _noise_bits(first_value: int, shape: tuple[int, ...], seed: int) -> I32:
    """int32 in 0..65535 that depends on seed and position alone (a multiply-xorshift hash of the position)."""
    hashed: U32 = np.arange(first_value, first_value + math.prod(shape), dtype=np.int64).astype(np.uint32)
    hashed ^= np.uint32(seed)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        hashed ^= hashed >> np.uint32(shift)
        hashed *= np.uint32(factor)
    return (hashed >> np.uint32(16)).astype(np.int32).reshape(shape)
