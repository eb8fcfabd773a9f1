"""Block kernels in plain numpy: the reference that all other kernels must equal bit for bit.

All functions work on whole blocks; `codec.py` pads the tail. They process chunks that fit a core's second-level cache.
Each thread keeps its scratch arrays, because allocating a megabyte takes longer than the arithmetic on it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from averaging.arrays import F32, I32, U8, U32
from averaging.codec.blocks import MAX_MAGNITUDE, MAX_MAGNITUDE_BITS, SMALLEST_SCALE_BITS

CHUNK_VALUES = 1 << 17
"""Half a megabyte of float32: together with its scratch arrays, a chunk fits a second-level cache of 1 to 2 MB."""

DROPPED_BITS = 16
"""A scale is a float32 without its lowest bits, which is a bfloat16."""
ROUND_UP = (1 << DROPPED_BITS) - 1
"""Added to the bits of |x| / top_code before the lowest are dropped, so that no scale is too small."""


@dataclass(frozen=True)
class IntegerCode:
    """Codes of `bits` bits, 4 or 8: integers from -top_code to top_code."""

    bits: int

    @property
    def top_code(self) -> int:
        return (1 << (self.bits - 1)) - 1

    @property
    def codes_per_byte(self) -> int:
        return 8 // self.bits

    @property
    def zero_byte(self) -> int:
        """Return the byte in which each code is zero in offset binary."""
        top_bit = 1 << (self.bits - 1)
        return sum(top_bit << (self.bits * part) for part in range(self.codes_per_byte))

    @cached_property
    def largest_scale_bits(self) -> int:
        """Return the scale (as float32 bits) of a block that holds the largest allowed value."""
        bits = np.array([np.float32(MAX_MAGNITUDE) / np.float32(self.top_code)], dtype=np.float32).view(np.uint32)
        return (int(bits[0]) + ROUND_UP) >> DROPPED_BITS << DROPPED_BITS


INTEGER_CODES = {"int4": IntegerCode(4), "int8": IntegerCode(8)}


class _Scratch(threading.local):
    """Growing buffers, one per name and thread, so that threads may share a codec."""

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

    def __init__(self, code: IntegerCode) -> None:
        self._code = code
        self._scratch = _Scratch()

    def encode(self, values: F32, block_size: int, scales: U32, codes: U8, keep_residual: bool) -> int:
        """Encode whole blocks. With `keep_residual`, replace `values` by values minus decoded.

        Args:
            values: float32 [num_blocks * block_size].
            scales: uint32 [num_blocks], written: the bits of float32 scales.
            codes: uint8 [num_blocks * block_size * bits / 8], written.

        Returns:
            The number of encoded blocks. If a value is not finite or is larger than MAX_MAGNITUDE, its block and all
                later ones stay unencoded and unchanged.
        """
        num_blocks: int = scales.shape[0]
        blocks = values.reshape(num_blocks, block_size)
        codes_out = codes.reshape(num_blocks, block_size // self._code.codes_per_byte)
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
            # x / inf is 0: a block without a scale gets zero codes without a branch.
            divisor = np.where(scale == 0, np.float32(np.inf), scale)
            ratios: F32 = self._scratch.get("floats", chunk.shape, np.float32)
            np.divide(chunk, divisor, out=ratios)
            self._encode_integers(ratios, codes_out[start:end])
            if keep_residual:
                ratios *= scale
                chunk -= ratios
        return num_blocks

    def decode(self, scales: F32, codes: U8, block_size: int, out: F32) -> None:
        """Decode into `out`. scales: float32 [num_blocks]; codes: uint8; out: float32 [num_blocks * block_size]."""
        blocks = out.reshape(len(scales), block_size)
        for start, end, scale, chunk_codes in self._chunks(scales, codes, block_size):
            self._decode_chunk(chunk_codes, blocks[start:end])
            blocks[start:end] *= scale

    def decode_accumulate(self, scales: F32, codes: U8, block_size: int, out: F32, weight: float) -> None:
        """Add weight * decoded to `out`. Each operation is rounded to float32."""
        blocks = out.reshape(len(scales), block_size)
        for start, end, scale, chunk_codes in self._chunks(scales, codes, block_size):
            decoded: F32 = self._scratch.get("floats", (end - start, block_size), np.float32)
            self._decode_chunk(chunk_codes, decoded)
            decoded *= scale
            # Overflow gives infinity, as in the compiled kernels, which do not warn about it.
            with np.errstate(over="ignore", invalid="ignore"):
                if weight != 1.0:
                    decoded *= np.float32(weight)
                blocks[start:end] += decoded

    def _chunks(self, scales: F32, codes: U8, block_size: int) -> Iterator[tuple[int, int, F32, U8]]:
        num_blocks = len(scales)
        all_codes = codes.reshape(num_blocks, block_size // self._code.codes_per_byte)
        step = max(1, CHUNK_VALUES // block_size)
        for start in range(0, num_blocks, step):
            end = min(num_blocks, start + step)
            yield start, end, scales[start:end, np.newaxis], all_codes[start:end]

    def _scale_bits(self, chunk: F32) -> I32 | None:
        """Return each block's scale as float32 bits (int32 [num_blocks]), or None if a value is out of range.

        The scale is the largest magnitude over `top_code`, rounded up: then no quotient exceeds `top_code`.
        """
        # Compared as integers, because NaN is then greater than all numbers.
        magnitudes: I32 = self._scratch.get("magnitudes", chunk.shape, np.int32)
        np.bitwise_and(chunk.view(np.int32), 0x7FFFFFFF, out=magnitudes)
        largest_bits: I32 = magnitudes.max(axis=1)
        if int(largest_bits.max()) > MAX_MAGNITUDE_BITS:
            return None
        largest = largest_bits.view(np.float32) / np.float32(self._code.top_code)
        bits: I32 = (largest.view(np.int32) + ROUND_UP) >> DROPPED_BITS << DROPPED_BITS
        bits *= bits >= SMALLEST_SCALE_BITS
        return bits

    def _encode_integers(self, ratios: F32, codes: U8) -> None:
        """Round `ratios` in place to integers and pack them; codes: uint8 [num_blocks, block_bytes]."""
        np.rint(ratios, out=ratios)
        parts = np.split(ratios, self._code.codes_per_byte, axis=1)
        packed = parts[0]
        if len(parts) > 1:
            packed = self._scratch.get("packed", codes.shape, np.float32)
            shifted = self._scratch.get("shifted", codes.shape, np.float32)
            packed[:] = parts[0]
            for index, part in enumerate(parts[1:], start=1):
                # The sums are small integers, so they are exact.
                packed += np.multiply(part, 1 << (self._code.bits * index), out=shifted)
        # The sum of the signed codes fits int8, and adding zero_byte modulo 256 makes each offset binary.
        np.copyto(codes.view(np.int8), packed, casting="unsafe")
        codes += np.uint8(self._code.zero_byte)

    def _decode_chunk(self, codes: U8, out: F32) -> None:
        """Decode codes (uint8 [num_blocks, block_bytes]) into `out` (float32 [num_blocks, block_size]), in units of the
        scale.
        """
        bits, block_bytes = self._code.bits, codes.shape[1]
        # Offset binary with its top bit flipped is two's complement: shift it up, then down with its sign.
        flipped = self._scratch.get("flipped", codes.shape, np.uint8)
        shifted = self._scratch.get("bytes", codes.shape, np.int8)
        np.bitwise_xor(codes, np.uint8(self._code.zero_byte), out=flipped)
        for part in range(self._code.codes_per_byte):
            source = flipped.view(np.int8)
            if bits < 8:
                np.left_shift(source, np.int8(8 - bits * (part + 1)), out=shifted)
                source = np.right_shift(shifted, np.int8(8 - bits), out=shifted)
            out[:, part * block_bytes : (part + 1) * block_bytes] = source
