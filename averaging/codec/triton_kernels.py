"""Integer block kernels for a CUDA device, in Triton; equal to `numpy_kernels` bit for bit.

A program works on whole blocks, all of a block's values at once: the largest magnitude, the scale, the codes and what
they lose are made from registers and the cache, so that values are fetched from memory once and residuals written once.
Divisions are rounded as IEEE 754 says (`div_rn`); callers forbid fused multiply-adds (`enable_fp_fusion=False`).

Import it only where Triton is installed; with `TRITON_INTERPRET=1` in the environment before that, it runs on the CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _places(num_blocks, block_bytes, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Blocks of this program [ROWS]; which of [ROWS, COLUMNS] exist; where their bytes and first values are."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows[:, None] < num_blocks) & (columns[None, :] < block_bytes)
    bytes_at = rows[:, None].to(tl.int64) * block_bytes + columns[None, :]
    values_at = rows[:, None].to(tl.int64) * (block_bytes * PARTS) + columns[None, :]
    return rows, inside, bytes_at, values_at


@triton.jit  # type: ignore[untyped-decorator]
def encode_blocks(  # type: ignore[no-untyped-def]
    values,
    scales,
    codes,
    first_refused,
    num_blocks,
    block_bytes,
    TOP_CODE: tl.constexpr,
    BITS: tl.constexpr,
    ROUND_UP: tl.constexpr,
    DROPPED_BITS: tl.constexpr,
    ZERO_BYTE: tl.constexpr,
    LARGEST_BITS: tl.constexpr,
    SMALLEST_SCALE_BITS: tl.constexpr,
    KEEPS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Encode blocks of `block_bytes` * 8 / BITS values, ROWS of them a program.

    values: float32 [num_blocks * block_size], with KEEPS_RESIDUAL changed to values minus decoded; scales: int32
    [num_blocks], the bits of float32 scales; codes: uint8 [num_blocks * block_bytes]; first_refused: int32 [1], lowered
    to the first block that holds a value beyond the range, whose values stay.
    """
    PARTS: tl.constexpr = 8 // BITS
    rows, inside, bytes_at, values_at = _places(num_blocks, block_bytes, PARTS, ROWS, COLUMNS)

    # As integers, because a NaN compares above every number there.
    largest = tl.zeros([ROWS], dtype=tl.int32)
    for part in tl.static_range(PARTS):
        value = tl.load(values + values_at + part * block_bytes, mask=inside, other=0.0)
        magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        largest = tl.maximum(largest, tl.max(magnitude, axis=1))
    is_refused = largest > LARGEST_BITS
    tl.atomic_min(first_refused, tl.min(tl.where(is_refused, rows, 0x7FFFFFFF), axis=0))

    quotient = tl.div_rn(largest.to(tl.float32, bitcast=True), TOP_CODE + tl.zeros([ROWS], dtype=tl.float32))
    scale_bits = ((quotient.to(tl.int32, bitcast=True) + ROUND_UP) >> DROPPED_BITS) << DROPPED_BITS
    scale_bits = tl.where(is_refused | (scale_bits < SMALLEST_SCALE_BITS), 0, scale_bits)
    tl.store(scales + rows, scale_bits, mask=rows < num_blocks)
    scale = scale_bits.to(tl.float32, bitcast=True)[:, None]
    # x / inf is 0, with the sign of x: a block without a scale gets codes of zero without a branch.
    divisor = tl.where(scale == 0.0, float("inf"), scale) + tl.zeros([ROWS, COLUMNS], dtype=tl.float32)

    packed = tl.zeros([ROWS, COLUMNS], dtype=tl.int32)
    for part in tl.static_range(PARTS):
        place = values + values_at + part * block_bytes
        value = tl.where(is_refused[:, None], 0.0, tl.load(place, mask=inside, other=0.0))
        ratio = tl.div_rn(value, divisor)
        # To the nearest integer, ties to even: the sum has no bits left for a fraction. Its zero has lost the sign.
        rounded = (ratio + 12582912.0) - 12582912.0
        rounded = tl.where(rounded == 0.0, ratio * 0.0, rounded)
        packed += rounded.to(tl.int32) << (BITS * part)
        if KEEPS_RESIDUAL:
            tl.store(place, value - rounded * scale, mask=inside & (is_refused[:, None] == 0))
    tl.store(codes + bytes_at, ((packed + ZERO_BYTE) & 0xFF).to(tl.uint8), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def decode_blocks(  # type: ignore[no-untyped-def]
    scales,
    codes,
    out,
    weight,
    num_blocks,
    block_bytes,
    BITS: tl.constexpr,
    ZERO_BYTE: tl.constexpr,
    ACCUMULATES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out = decoded, or with ACCUMULATES out + weight * decoded, each operation rounded to float32 on its own.

    scales: int32 [num_blocks], the bits of float32 scales; codes: uint8; out: float32 [num_blocks * block_size].
    """
    PARTS: tl.constexpr = 8 // BITS
    rows, inside, bytes_at, values_at = _places(num_blocks, block_bytes, PARTS, ROWS, COLUMNS)
    scale_bits = tl.load(scales + rows, mask=rows < num_blocks, other=0)
    scale = scale_bits.to(tl.float32, bitcast=True)[:, None]
    # Offset binary with its top bit flipped is two's complement: shift it up, then down with its sign.
    flipped = tl.load(codes + bytes_at, mask=inside, other=ZERO_BYTE).to(tl.int32) ^ ZERO_BYTE
    for part in tl.static_range(PARTS):
        code = (flipped << (32 - BITS * (part + 1))) >> (32 - BITS)
        decoded = code.to(tl.float32) * scale
        place = out + values_at + part * block_bytes
        if ACCUMULATES:
            decoded = decoded * weight
            decoded = tl.load(place, mask=inside, other=0.0) + decoded
        tl.store(place, decoded, mask=inside)
