"""Block kernels in plain torch: the reference that every other kernel must equal bit for bit.

All functions work on whole blocks; `codec.py` pads the tail. They walk in chunks that fit a core's second-level
cache, with scratch tensors that are kept per thread, because at these speeds a fresh megabyte costs more than the
arithmetic on it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CHUNK_VALUES = 1 << 17
"""Half a megabyte of float32: with the scratch tensors of one chunk it stays inside a 1-2 MB second-level cache."""

MAX_MAGNITUDE = 2.0**126
"""Values beyond it are refused: no sum of two of them, and no code times scale, can overflow float32."""

SMALLEST_SCALE = 2.0**-100
"""A block that would need a smaller scale is sent as zeros, which keeps subnormal numbers (and machines that flush
them) out of the arithmetic. With error feedback nothing of it is lost."""

NOISE_BITS = 16
"""Resolution of stochastic rounding: probabilities are multiples of 2^-16."""

MAX_MAGNITUDE_BITS = 0x7E800000
SMALLEST_SCALE_BITS = 0x0D800000
MANTISSA_BITS = 23

SMALLEST_LEVEL = 2.0**-6
"""Smallest e3m0 level above zero, in units of the scale."""

U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockFormat:
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
    "int4": BlockFormat(4, 7, exponential=False),
    "e3m0": BlockFormat(4, 1, exponential=True),
    "int8": BlockFormat(8, 127, exponential=False),
    "int2": BlockFormat(2, 1, exponential=False),
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
        self.buffers: dict[str, Tensor] = {}

    def get(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        buffer = self.buffers.get(name)
        if buffer is None or buffer.numel() < count:
            buffer = self.buffers[name] = torch.empty(count, dtype=dtype)
        return buffer[:count].view(tuple(shape))


class TorchKernels:
    """Encode and decode whole blocks with torch operations on the CPU."""

    name = "torch"

    def __init__(self, block_format: BlockFormat) -> None:
        self._format = block_format
        self._scratch = _Scratch()
        self._tables = _exponent_tables() if block_format.exponential else None

    def encode(
        self, values: Tensor, block_size: int, scales: U32, codes: U8, keep_residual: bool, first_value: int, noise: int
    ) -> int:
        """Encode whole blocks; with `keep_residual`, `values` become values minus decoded.

        Args:
            values: float32 [num_blocks * block_size].
            scales: uint32 [num_blocks], written: the bits of float32 scales.
            codes: uint8 [num_blocks * block_size * bits / 8], written.
            first_value: position of values[0] in its tensor; only the noise depends on it.
            noise: 32-bit seed of stochastic rounding, or -1 to round to nearest.

        Returns:
            The number of blocks done: fewer than all when a value is not finite or larger than MAX_MAGNITUDE. That
            block and all later ones are untouched.
        """
        num_blocks: int = scales.shape[0]
        blocks = values.view(num_blocks, block_size)
        block_bytes = block_size // self._format.codes_per_byte
        scales_out = torch.from_numpy(scales.view(np.int32))
        codes_out = torch.from_numpy(codes).view(num_blocks, block_bytes)
        step = max(1, CHUNK_VALUES // block_size)
        for start in range(0, num_blocks, step):
            end = min(num_blocks, start + step)
            chunk = blocks[start:end]
            scale_bits = self._scale_bits(chunk)
            if scale_bits is None:
                return start
            scales_out[start:end] = scale_bits
            scale = scale_bits.view(torch.float32).unsqueeze(1)
            # x / inf is 0: a block without a scale gets codes of zero without a branch.
            divisor = torch.where(scale == 0, torch.inf, scale)
            ratios = self._scratch.get("floats", chunk.shape, torch.float32)
            torch.div(chunk, divisor, out=ratios)
            draws = None if noise < 0 else _noise_bits(first_value + start * block_size, chunk.shape, noise)
            if self._format.exponential:
                self._encode_exponents(ratios, draws, codes_out[start:end])
            else:
                self._encode_integers(ratios, draws, codes_out[start:end])
            if keep_residual:
                if self._format.exponential:
                    self._decode_chunk(codes_out[start:end], ratios)
                chunk -= ratios.mul_(scale)
        return num_blocks

    def decode(self, scales: F32, codes: U8, block_size: int, out: Tensor) -> None:
        """out = decoded. scales: float32 [num_blocks]; codes: uint8; out: float32 [num_blocks * block_size]."""
        num_blocks: int = scales.shape[0]
        blocks = out.view(num_blocks, block_size)
        for start, end, scale, chunk_codes in self._chunks(scales, codes, block_size):
            self._decode_chunk(chunk_codes, blocks[start:end])
            blocks[start:end].mul_(scale)

    def decode_accumulate(self, scales: F32, codes: U8, block_size: int, weight: float, out: Tensor) -> None:
        """out = out + weight * decoded, each operation rounded to float32 on its own."""
        num_blocks: int = scales.shape[0]
        blocks = out.view(num_blocks, block_size)
        for start, end, scale, chunk_codes in self._chunks(scales, codes, block_size):
            decoded = self._scratch.get("floats", (end - start, block_size), torch.float32)
            self._decode_chunk(chunk_codes, decoded)
            decoded.mul_(scale)
            # Never add(alpha=weight): that is a fused multiply-add, rounded once.
            if weight != 1.0:
                decoded.mul_(weight)
            blocks[start:end].add_(decoded)

    def _chunks(self, scales: F32, codes: U8, block_size: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        num_blocks: int = scales.shape[0]
        block_bytes = block_size // self._format.codes_per_byte
        all_scales = torch.from_numpy(scales)
        step = max(1, CHUNK_VALUES // block_size)
        for start in range(0, num_blocks, step):
            end = min(num_blocks, start + step)
            # Received buffers may be read-only, which torch cannot express; a copy of the codes is cheap.
            chunk_codes = self._scratch.get("codes", (end - start, block_bytes), torch.uint8)
            np.copyto(chunk_codes.numpy().reshape(-1), codes[start * block_bytes : end * block_bytes])
            yield start, end, all_scales[start:end].unsqueeze(1), chunk_codes

    def _scale_bits(self, chunk: Tensor) -> Tensor | None:
        """float32 bits (int32 [num_blocks]) of each block's scale; None when a value is out of range.

        The scale is the largest magnitude over `top_code`, rounded up: then no quotient exceeds `top_code`.
        """
        magnitudes = self._scratch.get("floats", chunk.shape, torch.float32)
        torch.abs(chunk, out=magnitudes)
        largest = magnitudes.amax(1)
        # As integers, because a NaN compares above every number there.
        if int((largest.view(torch.int32) & 0x7FFFFFFF).amax()) > MAX_MAGNITUDE_BITS:
            return None
        largest /= self._format.top_code
        dropped = self._format.dropped_bits
        bits = (largest.view(torch.int32) + self._format.round_up) >> dropped << dropped
        return bits.mul_(bits >= SMALLEST_SCALE_BITS)

    def _encode_integers(self, ratios: Tensor, draws: Tensor | None, codes: Tensor) -> None:
        """Round `ratios` in place to integers and pack them; codes: uint8 [num_blocks, block_bytes]."""
        if draws is None:
            ratios.round_()
        else:
            ratios.add_(draws.to(torch.float32).add_(0.5).mul_(2.0**-NOISE_BITS)).floor_()
        parts = torch.split(ratios, codes.shape[1], dim=1)
        packed = parts[0]
        if len(parts) > 1:
            packed = self._scratch.get("packed", codes.shape, torch.float32)
            torch.add(parts[0], parts[1], alpha=1 << self._format.bits, out=packed)
            for index, part in enumerate(parts[2:], start=2):
                packed.add_(part, alpha=1 << (self._format.bits * index))
        # The sum of the signed codes fits int8, and adding zero_byte modulo 256 makes each offset binary.
        codes.view(torch.int8).copy_(packed)
        codes.add_(self._format.zero_byte)

    def _encode_exponents(self, ratios: Tensor, draws: Tensor | None, codes: Tensor) -> None:
        """Pack sign and exponent of `ratios` (|ratio| <= 1); levels are 0 and 2^-6 .. 2^0."""
        negative = ratios < 0
        bits = ratios.abs_().view(torch.int32)
        if draws is None:
            # Half a step of the mantissa, less one unit when the lower exponent is even: ties go to the even code.
            exponents = (bits >> MANTISSA_BITS).bitwise_and_(1).add_(bits).add_((1 << (MANTISSA_BITS - 1)) - 1)
            nonzero = ratios > SMALLEST_LEVEL / 2
        else:
            exponents = bits + (draws << (MANTISSA_BITS - NOISE_BITS))
            nonzero = (ratios * (2.0**NOISE_BITS / SMALLEST_LEVEL)).add_(draws) >= 2.0**NOISE_BITS
        # Biased exponent 127 (1.0) is code 7; what lies below 2^-6 is code 1 or 0 by its own rule.
        levels = (exponents >> MANTISSA_BITS).sub_(120).clamp_(min=1).mul_(nonzero)
        levels.add_(negative.logical_and_(levels > 0), alpha=8)
        halves = torch.split(levels, codes.shape[1], dim=1)
        codes.copy_(halves[0].add(halves[1], alpha=16))

    def _decode_chunk(self, codes: Tensor, out: Tensor) -> None:
        """Codes (uint8 [num_blocks, block_bytes]) in units of the scale: out, float32 [num_blocks, block_size]."""
        bits, block_bytes = self._format.bits, codes.shape[1]
        if self._tables is not None:
            indices = codes.to(torch.int32).view(-1)
            for part, table in enumerate(self._tables):
                out[:, part * block_bytes : (part + 1) * block_bytes] = table.index_select(0, indices).view(codes.shape)
            return
        shifted = self._scratch.get("shifted", codes.shape, torch.int8)
        # Offset binary with its top bit flipped is two's complement: shift it up, then down with its sign.
        flipped = self._scratch.get("flipped", codes.shape, torch.uint8)
        torch.bitwise_xor(codes, self._format.zero_byte, out=flipped)
        for part in range(self._format.codes_per_byte):
            source = flipped.view(torch.int8)
            if bits < 8:
                up = 8 - bits * (part + 1)
                if up:
                    source = torch.bitwise_left_shift(source, up, out=shifted)
                source = torch.bitwise_right_shift(source, 8 - bits, out=shifted)
            out[:, part * block_bytes : (part + 1) * block_bytes] = source


def exponent_levels() -> Tensor:
    """What each of the 16 e3m0 codes means (float32 [16]); the unused code 8, minus zero, means zero."""
    levels = torch.tensor([0.0] + [SMALLEST_LEVEL * 2.0**exponent for exponent in range(7)])
    return torch.cat([levels, 0.0 - levels])


def _exponent_tables() -> tuple[Tensor, Tensor]:
    """Levels of the low and of the high code of every byte."""
    levels, every_byte = exponent_levels(), torch.arange(256)
    return levels[every_byte & 15], levels[every_byte >> 4]


def _noise_bits(first_value: int, shape: torch.Size, seed: int) -> Tensor:
    """int32 in 0..65535 that depends on seed and position alone (a multiply-xorshift hash of the position)."""
    count = shape[0] * shape[1]
    hashed = torch.arange(first_value, first_value + count).bitwise_and_(0xFFFFFFFF).bitwise_xor_(seed)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        hashed ^= hashed >> shift
        hashed.mul_(factor).bitwise_and_(0xFFFFFFFF)
    return (hashed >> 16).to(torch.int32).view(shape)
