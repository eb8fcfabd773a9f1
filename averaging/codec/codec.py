"""Block codecs with error feedback: encode float32 arrays in a few bits per value, and decode them.

The `block_size` values of a block share a scale, a bfloat16, and each value becomes a small integer (`int4`, `int8`).
`fp32` keeps all bits. The byte layout is in `blocks.py`.

These properties hold for each kernel, thread count and division into slices of whole blocks:

- Bytes and floats are the same bit for bit. Values are quantised with the stored scale.
- scale = max|x| / top code, rounded *up* to a bfloat16, so no value is clipped. Codes are the exactly nearest ones,
  ties to even. With |x| / scale correctly rounded, a quotient reaches the half between two codes only if x does. That
  holds because the halves times a scale of 8 bits are float32 numbers themselves. So |x - decoded| <= scale / 2.
- The residual x - decoded is exact in float32. It is x itself where the code is zero. Elsewhere decoded is between half
  of x and twice x (Sterbenz's lemma). Hence `decoded + residual == x`, exactly, whatever the scale.
- Zero has its own code and is the nearest one below half a step: |x - decoded| <= |x|, as error feedback requires
  (arXiv 1901.09847).
- Any bytes of the right length either decode to finite values (at most 2^127 plus rounding) or are refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cached_property, partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from averaging.arrays import F32, U8, U32
from averaging.codec import compiled_kernels
from averaging.codec.blocks import (
    MAX_MAGNITUDE,
    MAX_MAGNITUDE_BITS,
    SMALLEST_SCALE_BITS,
    Buffer,
    EncodedBlocks,
    check_format,
    codes_num_bytes,
    encoded_num_bytes,
)
from averaging.codec.compiled_kernels import CompiledKernels
from averaging.codec.numpy_kernels import CHUNK_VALUES, DROPPED_BITS, INTEGER_CODES, NumpyKernels

KernelChoice = Literal["auto", "numpy", "compiled"]
Kernels = NumpyKernels | CompiledKernels
"""Both give the same bits."""

DEFAULT_BLOCK_SIZE = 128
"""4.125 bits a value with int4; half the block costs another 0.125 bits for 8 % less error on normal data."""

SCALE_DTYPE = np.dtype("<u2")
"""Type of a stored scale: the upper half of its float32."""


class Codec:
    """Codec of flat float32 arrays, whose blocks have scales. `make_codec` creates one; threads may share it."""

    def __init__(self, name: str, block_size: int, choice: KernelChoice) -> None:
        self.name = name
        self.block_size = block_size
        self._choice = choice
        self._code = INTEGER_CODES[name]

    @cached_property
    def _kernels(self) -> Kernels:
        library = None if self._choice == "numpy" else compiled_kernels.kernels()
        return NumpyKernels(self._code) if library is None else CompiledKernels(self._code, library)

    @property
    def kernels(self) -> str:
        """Return the name of the kernels in use: numpy or compiled."""
        return self._kernels.name

    def __repr__(self) -> str:
        return f"<{self.name} codec, blocks of {self.block_size}, {self.kernels} kernels>"

    def encoded_num_bytes(self, num_values: int) -> int:
        return encoded_num_bytes(self.name, self.block_size, num_values)

    def unpack(self, num_values: int, payload: Buffer) -> EncodedBlocks:
        """Return the encoded values in `payload` as views into it.

        Raises:
            ValueError: the payload has the wrong length.
        """
        return EncodedBlocks.unpack(self.name, self.block_size, num_values, payload)

    def encode(self, values: F32) -> EncodedBlocks:
        """Encode `values` (float32 [n], contiguous) without changing them.

        Raises:
            ValueError: wrong dtype or shape; a value that is not finite or exceeds 2^126.
        """
        return self._encode(values, False)

    def encode_with_residual(self, values: F32) -> EncodedBlocks:
        """Encode `values`, and store the encoding error in them: afterwards decoded + values is exactly the original.

        Raises the errors of `encode`, and then leaves `values` unchanged.
        """
        return self._encode(values, True)

    def check_fits(self, encoded: EncodedBlocks, num_values: int) -> None:
        """Check that `encoded` holds `num_values` values of this codec.

        Raises:
            ValueError: different codec, block size or length.
        """
        if (encoded.codec, encoded.block_size) != (self.name, self.block_size):
            raise ValueError(
                f"{encoded.codec} blocks of {encoded.block_size}; expected {self.name} blocks of {self.block_size}"
            )
        if num_values != encoded.num_values:
            raise ValueError(f"an output of {num_values} values; expected {encoded.num_values}")

    def _check_encoded(self, encoded: EncodedBlocks, out: F32) -> None:
        _check_array(out, is_written=True)
        self.check_fits(encoded, out.size)

    def _encode(self, values: F32, keep_residual: bool) -> EncodedBlocks:
        _check_array(values, is_written=keep_residual)
        num_values = values.size
        scales: U32 = np.empty(-(-num_values // self.block_size), dtype=np.uint32)
        codes: U8 = np.empty(codes_num_bytes(self.name, self.block_size, num_values), dtype=np.uint8)
        full = num_values // self.block_size
        whole, tail, tail_block = self._split(values)
        whole_bytes = codes_num_bytes(self.name, self.block_size, whole.size)
        done = self._kernels.encode(whole, self.block_size, scales[:full], codes[:whole_bytes], keep_residual)
        if done == full and tail_block is not None:
            size = tail_block.size
            done += self._kernels.encode(tail_block, size, scales[full:], codes[whole_bytes:], keep_residual)
            if keep_residual:
                tail[:] = tail_block[: tail.size]
        if done < len(scales):
            if keep_residual:
                # Restores the original: decoded values plus residuals are exact.
                end = done * self.block_size
                self._kernels.decode_accumulate(
                    scales[:done].view(np.float32),
                    codes[: codes_num_bytes(self.name, self.block_size, end)],
                    self.block_size,
                    values[:end],
                    1.0,
                )
            raise _refused_value(values)
        stored = (scales >> DROPPED_BITS).astype(SCALE_DTYPE)
        return EncodedBlocks(self.name, self.block_size, num_values, _bytes_of(stored), _bytes_of(codes))

    def largest(self, encoded: EncodedBlocks) -> float:
        """Return a bound on the magnitude of the decoded values, computed from the scales alone if the codec has
        scales.

        Raises:
            ValueError: different codec or block size, or a scale (or float) that no encoder writes.
        """
        self.check_fits(encoded, encoded.num_values)
        return float(self.scales_of(encoded).max(initial=0.0)) * self._code.top_code

    def decode(self, encoded: EncodedBlocks, out: F32) -> None:
        """Write the decoded values into `out`: float32 [num_values], contiguous.

        Raises:
            ValueError: different codec, block size or length, or a scale (or float) that no encoder writes. `out` is
                then unchanged.
        """
        self._check_encoded(encoded, out)
        self._run_on(encoded, out, self._kernels.decode, copy_tail=False)

    def decode_accumulate(self, encoded: EncodedBlocks, weight: float, out: F32) -> None:
        """Add weight * decoded to `out`. The weight, the product and the sum are each rounded to float32.

        Raises:
            ValueError: as `decode`, or the weight is not finite.
        """
        self._check_encoded(encoded, out)
        self._run_on(encoded, out, partial(self._kernels.decode_accumulate, weight=weight_float32(weight)))

    def _run_on(
        self, encoded: EncodedBlocks, out: F32, kernel: Callable[[F32, U8, int, F32], None], copy_tail: bool = True
    ) -> None:
        scales, codes = self.scales_of(encoded), np.frombuffer(encoded.codes, dtype=np.uint8)
        whole, tail, tail_block = self._split(out, copy_tail)
        full = encoded.num_values // self.block_size
        split = codes_num_bytes(self.name, self.block_size, full * self.block_size)
        kernel(scales[:full], codes[:split], self.block_size, whole)
        if tail_block is not None:
            kernel(scales[full:], codes[split:], tail_block.size, tail_block)
            tail[:] = tail_block[: tail.size]

    def _split(self, values: F32, copy_tail: bool = True) -> tuple[F32, F32, F32 | None]:
        """Return the whole blocks, the tail, and the tail as a separate block whose last byte is filled with zeros."""
        boundary = values.size // self.block_size * self.block_size
        whole, tail = values[:boundary], values[boundary:]
        if tail.size == 0:
            return whole, tail, None
        per_byte = self._code.codes_per_byte
        tail_block = np.zeros(-(-tail.size // per_byte) * per_byte, dtype=np.float32)
        if copy_tail:
            tail_block[: tail.size] = tail
        return whole, tail, tail_block

    def scales_of(self, encoded: EncodedBlocks) -> F32:
        """Return the scales as float32 [num_blocks].

        Raises:
            ValueError: a scale is one that no encoder writes.
        """
        stored = np.frombuffer(encoded.scales, dtype=SCALE_DTYPE)
        floats: F32 = (stored.astype(np.uint32) << np.uint32(DROPPED_BITS)).view(np.float32)
        limits = SMALLEST_SCALE_BITS >> DROPPED_BITS, self._code.largest_scale_bits >> DROPPED_BITS
        smallest, largest = np.array(limits, dtype=SCALE_DTYPE)
        # Unsigned: a value below the smallest wraps around to above the largest.
        outside = stored - smallest > largest - smallest
        if outside.any() and (refused := np.flatnonzero(outside & (stored != 0))).size:
            block = int(refused[0])
            raise ValueError(
                f"scale {float(floats[block])} of block {block}; "
                f"expected 0 or a number from 2^-100 to 2^126 / {self._code.top_code}"
            )
        return floats


class Float32Codec(Codec):
    """Codec that keeps all bits of float32. It has no scales and always uses numpy."""

    def __init__(self, block_size: int) -> None:
        self.name = "fp32"
        self.block_size = block_size

    @property
    def kernels(self) -> str:
        return "numpy"

    def _encode(self, values: F32, keep_residual: bool) -> EncodedBlocks:
        _check_array(values, is_written=keep_residual)
        for start in range(0, values.size, CHUNK_VALUES):
            # numpy's min and max would warn about NaN.
            if not (np.abs(values[start : start + CHUNK_VALUES]) <= MAX_MAGNITUDE).all():
                raise _refused_value(values)
        codes: F32 = values.astype("<f4")
        if keep_residual:
            values[:] = 0.0
        return EncodedBlocks(self.name, self.block_size, values.size, b"", _bytes_of(codes))

    def largest(self, encoded: EncodedBlocks) -> float:
        self.check_fits(encoded, encoded.num_values)
        return float(np.abs(self._values_of(encoded)).max(initial=0.0))

    def decode(self, encoded: EncodedBlocks, out: F32) -> None:
        self._check_encoded(encoded, out)
        out[:] = self._values_of(encoded)

    def decode_accumulate(self, encoded: EncodedBlocks, weight: float, out: F32) -> None:
        self._check_encoded(encoded, out)
        factor, values = np.float32(weight_float32(weight)), self._values_of(encoded)
        for start in range(0, values.size, CHUNK_VALUES):
            # As in `NumpyKernels.decode_accumulate`.
            with np.errstate(over="ignore", invalid="ignore"):
                out[start : start + CHUNK_VALUES] += values[start : start + CHUNK_VALUES] * factor

    def _values_of(self, encoded: EncodedBlocks) -> F32:
        """Return the values as a view; raise ValueError unless every value is in range."""
        bits = np.frombuffer(encoded.codes, dtype="<u4")
        values: F32 = bits.view("<f4")
        for start in range(0, len(bits), CHUNK_VALUES):
            # Without its sign, a float's bits compare as the float does, and NaN and infinity exceed every number.
            beyond = np.flatnonzero((bits[start : start + CHUNK_VALUES] & 0x7FFFFFFF) > MAX_MAGNITUDE_BITS)
            if beyond.size:
                position = start + int(beyond[0])
                raise ValueError(
                    f"{float(values[position])} at position {position}; expected finite values of at most 2^126"
                )
        return values


def make_codec(name: str, block_size: int = DEFAULT_BLOCK_SIZE, kernels: KernelChoice = "auto") -> Codec:
    """Return the codec called `name`: int4, int8 or fp32.

    Args:
        block_size: values that share a scale, a multiple of 8 up to 65536 (no effect on fp32).
        kernels: `numpy`, `compiled`, or `auto`: compiled if the package was installed with a C compiler. All give the
            same bits.

    Raises:
        ValueError: unknown name or kernels, bad block size, or compiled kernels were asked for and are missing.
    """
    check_format(name, block_size)
    if kernels not in ("auto", "numpy", "compiled"):
        raise ValueError(f"kernels {kernels!r}; expected auto, numpy or compiled")
    if name == "fp32":
        return Float32Codec(block_size)
    if kernels == "compiled" and compiled_kernels.kernels() is None:
        raise ValueError(
            "kernels compiled, which this installation lacks; install the package with a C compiler, or use numpy"
        )
    return Codec(name, block_size, kernels)


def _check_array(values: F32, is_written: bool) -> None:
    """Refuse arrays that the compiled kernels, which use raw pointers, would read wrongly."""
    if values.dtype != np.float32 or values.ndim != 1 or not values.flags.c_contiguous or not values.flags.aligned:
        kind = "a" if values.flags.c_contiguous else "a strided"
        raise ValueError(
            f"{kind} {values.dtype} array of shape {values.shape}; expected a contiguous, aligned, one-dimensional "
            "float32 array"
        )
    if is_written and not values.flags.writeable:
        raise ValueError("a read-only array; expected a writable array")


def weight_float32(weight: float) -> float:
    """Return `weight` rounded to float32 once, so that all kernels multiply by the same number."""
    try:
        rounded = struct.unpack("<f", struct.pack("<f", weight))[0]
    except OverflowError:
        rounded = math.inf
    if not math.isfinite(rounded):
        raise ValueError(f"weight {weight}; expected a finite float32 number")
    return float(rounded)


def _bytes_of(array: npt.NDArray[np.generic]) -> memoryview:
    return array.data.cast("B").toreadonly() if array.size else memoryview(b"")


def _refused_value(values: F32) -> ValueError:
    position = int(np.flatnonzero(~(np.abs(values) <= MAX_MAGNITUDE))[0])
    return ValueError(
        f"{float(values[position])} at position {position}; expected finite values of at most 2^126: "
        "see whether training diverged"
    )
