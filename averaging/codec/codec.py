"""Block codecs with error feedback: float32 arrays to a few bits a value and back.

The values of each block share a scale (`block_size` of them), and every value becomes a small code. The code is an
integer (`int2`, `int4`, `int8`) or a sign and a power of two (`e3m0`, the FP4 of Streaming DiLoCo, arXiv 2501.18512). A
scale is stored as bfloat16 (`bf16`: float32's range in two bytes), `fp32`, or a power of two (`pow2`: one byte, arXiv
2310.10537). `fp16` and `fp32` as codecs are plain casts. The byte layout is in `blocks.py`.

What holds, for every kernel, thread count and cut into slices of whole blocks:

- Bytes and floats are the same bit for bit. Values are quantised against the scale as it is stored.
- scale = max|x| / top code, rounded *up* to what can be stored, so no value is clipped. Codes are the exactly nearest
  ones, ties to even. With |x| / scale correctly rounded, a quotient reaches the half between two codes only if x does.
  That holds because the halves times a scale of 8 bits or less are float32 numbers themselves. So |x - decoded| <=
  scale / 2 for the integer codes; with fp32 scales, up to one rounding of code * scale.
- The residual x - decoded is exact in float32. It is x itself where the code is zero. Elsewhere decoded is between half
  of x and twice x (Sterbenz's lemma). Hence `decoded + residual == x`, exactly, whatever the scale.
- With stochastic rounding (arXiv 1502.02551) a code may be a whole step away and the residual is rounded to float32.
- Zero has its own code and is the nearest one below half a step: |x - decoded| <= |x|, what error feedback needs
  (arXiv 1901.09847). This is why int2 has three levels, not four.
- Any bytes of the right length decode to finite values (of 2^127 and a rounding at most), or are refused.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from averaging.arrays import F32, U8, U32
from averaging.codec import compiled_kernels
from averaging.codec.blocks import (
    DEFAULT_SCALE,
    MAX_MAGNITUDE,
    SCALE_BYTES,
    SMALLEST_SCALE_BITS,
    Buffer,
    EncodedBlocks,
    check_format,
    codes_num_bytes,
    encoded_num_bytes,
)
from averaging.codec.compiled_kernels import CompiledKernels
from averaging.codec.numpy_kernels import (
    BLOCK_FORMATS,
    CHUNK_VALUES,
    DROPPED_SCALE_BITS,
    NumpyKernels,
    noise_seed,
)

Rounding = Literal["nearest", "stochastic"]
KernelChoice = Literal["auto", "numpy", "compiled"]
Kernels = NumpyKernels | CompiledKernels
"""Both give the same bits."""

DEFAULT_BLOCK_SIZE = 128
"""4.125 bits a value with int4; half the block costs another 0.125 bits for 8 % less error on normal data."""


class Codec:
    """Encodes and decodes flat float32 arrays. Build one with `make_codec`; threads may share it."""

    name: str
    block_size: int
    scale: str
    rounding: Rounding

    def __repr__(self) -> str:
        return f"<{self.name} codec, blocks of {self.block_size}, {self.scale} scales, {self.kernels} kernels>"

    @property
    def bits_per_value(self) -> float:
        """Payload bits of one value in a whole block, its share of the scale included."""
        return 8 * self.encoded_num_bytes(self.block_size) / self.block_size

    @property
    def kernels(self) -> str:
        """Name of the kernels in use: numpy or compiled."""
        raise NotImplementedError

    def encoded_num_bytes(self, num_values: int) -> int:
        return encoded_num_bytes(self.name, self.block_size, num_values, self.scale)

    def unpack(self, num_values: int, payload: Buffer) -> EncodedBlocks:
        """Encoded values of this codec as views into a payload.

        Raises:
            ValueError: not exactly the right number of bytes.
        """
        return EncodedBlocks.unpack(self.name, self.block_size, num_values, payload, self.scale)

    def encode(self, values: F32, seed: int | None = None) -> EncodedBlocks:
        """Encode `values` (float32 [n], contiguous), which stay as they are.

        Args:
            seed: of the chance of stochastic rounding. It and a value's position decide, whatever the chunks and
                threads. By default it follows from the values: no two sends are rounded alike, and a run that is
                repeated gives the same.

        Raises:
            ValueError: wrong dtype or shape; a value that is not finite or exceeds 2^126 (65504 for fp16).
        """
        return self._encode(values, False, seed)

    def encode_with_residual(self, values: F32, seed: int | None = None) -> EncodedBlocks:
        """Encode, and leave what was lost in `values`: afterwards values = values - decoded.

        With nearest rounding decoded + values is exactly the original. Arguments and errors are those of `encode`;
        on an error `values` are as before.
        """
        return self._encode(values, True, seed)

    def decode(self, encoded: EncodedBlocks, out: F32) -> None:
        """out = decoded values. out: float32 [num_values], contiguous.

        Raises:
            ValueError: other codec, block size or length; a scale (or float) that no encoder writes. `out` is then
                untouched.
        """
        raise NotImplementedError

    def check_decodable(self, encoded: EncodedBlocks) -> None:
        """Raise what `decode` would raise, without decoding.

        Raises:
            ValueError: other codec or block size; a scale (or float) that no encoder writes.
        """
        raise NotImplementedError

    def largest(self, encoded: EncodedBlocks) -> float:
        """The magnitude that no decoded value of an encoder's exceeds; from the scales alone where there are some.

        Raises:
            ValueError: as `check_decodable`.
        """
        raise NotImplementedError

    def decode_accumulate(self, encoded: EncodedBlocks, weight: float, out: F32) -> None:
        """out = out + weight * decoded, the weight and both results rounded to float32 one after the other.

        Raises:
            ValueError: as `decode`, or the weight is not finite.
        """
        raise NotImplementedError

    def _encode(self, values: F32, keep_residual: bool, seed: int | None) -> EncodedBlocks:
        raise NotImplementedError

    def check_fits(self, encoded: EncodedBlocks, num_values: int) -> None:
        """Raise unless these are `num_values` values of this codec.

        Raises:
            ValueError: other codec, block size, scale or length.
        """
        if (encoded.codec, encoded.block_size, encoded.scale) != (self.name, self.block_size, self.scale):
            raise ValueError(
                f"{encoded.codec} blocks of {encoded.block_size} with {encoded.scale} scales; "
                f"expected {self.name} blocks of {self.block_size} with {self.scale} scales"
            )
        if num_values != encoded.num_values:
            raise ValueError(f"an output of {num_values} values; expected {encoded.num_values}")

    def _check_encoded(self, encoded: EncodedBlocks, out: F32) -> None:
        _check_array(out, is_written=True)
        self.check_fits(encoded, out.size)


class BlockCodec(Codec):
    """A codec whose blocks have scales."""

    def __init__(self, name: str, block_size: int, choice: KernelChoice, scale: str, rounding: Rounding) -> None:
        self.name = name
        self.block_size = block_size
        self.scale = scale
        self.rounding = rounding
        self._choice = choice
        self.format = replace(BLOCK_FORMATS[name], dropped_bits=DROPPED_SCALE_BITS[scale])
        self._scale_dtype = np.dtype(f"<u{SCALE_BYTES[scale]}")

    @cached_property
    def _kernels(self) -> Kernels:
        library = None if self._choice == "numpy" else compiled_kernels.kernels()
        return NumpyKernels(self.format) if library is None else CompiledKernels(self.format, library)

    @cached_property
    def _stored_limits(self) -> tuple[np.unsignedinteger[Any], np.unsignedinteger[Any]]:
        """The smallest and the largest scale other than 0, as they are stored."""
        dropped = self.format.dropped_bits
        limits = np.array([SMALLEST_SCALE_BITS >> dropped, self.format.largest_scale_bits >> dropped])
        smallest, largest = limits.astype(self._scale_dtype)
        return smallest, largest

    @property
    def kernels(self) -> str:
        return self._kernels.name

    def _encode(self, values: F32, keep_residual: bool, seed: int | None) -> EncodedBlocks:
        _check_array(values, is_written=keep_residual)
        noise = -1
        if self.rounding == "stochastic":
            noise = noise_seed(zlib.crc32(_bytes_of(values)) if seed is None else seed)
        num_values = values.size
        scales: U32 = np.empty(-(-num_values // self.block_size), dtype=np.uint32)
        codes: U8 = np.empty(codes_num_bytes(self.name, self.block_size, num_values), dtype=np.uint8)
        before = None
        if keep_residual and noise >= 0:
            # A stochastic residual is rounded, so that decoding cannot bring the original back after an error.
            before = values.copy()

        full = num_values // self.block_size
        whole, tail, tail_block = self._split(values)
        whole_bytes = codes_num_bytes(self.name, self.block_size, whole.size)
        done = self._kernels.encode(whole, self.block_size, scales[:full], codes[:whole_bytes], keep_residual, 0, noise)
        if done == full and tail_block is not None:
            size = tail_block.size
            done += self._kernels.encode(
                tail_block, size, scales[full:], codes[whole_bytes:], keep_residual, full * self.block_size, noise
            )
            if keep_residual:
                tail[:] = tail_block[: tail.size]
        if done < len(scales):
            if before is not None:
                values[:] = before
            elif keep_residual:
                end = done * self.block_size
                self._kernels.decode_accumulate(
                    scales[:done].view(np.float32),
                    codes[: codes_num_bytes(self.name, self.block_size, end)],
                    self.block_size,
                    values[:end],
                    1.0,
                )
            raise _refused_value(values, MAX_MAGNITUDE, "2^126")
        stored = (scales >> self.format.dropped_bits).astype(self._scale_dtype)
        return EncodedBlocks(self.name, self.block_size, num_values, _bytes_of(stored), _bytes_of(codes), self.scale)

    def check_decodable(self, encoded: EncodedBlocks) -> None:
        self.check_fits(encoded, encoded.num_values)
        self.scales_of(encoded)

    def largest(self, encoded: EncodedBlocks) -> float:
        self.check_fits(encoded, encoded.num_values)
        return float(self.scales_of(encoded).max(initial=0.0)) * self.format.top_code

    def decode(self, encoded: EncodedBlocks, out: F32) -> None:
        self._check_encoded(encoded, out)
        self._run_on(encoded, out, self._kernels.decode, copy_tail=False)

    def decode_accumulate(self, encoded: EncodedBlocks, weight: float, out: F32) -> None:
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
        """Whole blocks, the tail, and the tail as a block of its own that fills its last byte with zeros."""
        boundary = values.size // self.block_size * self.block_size
        whole, tail = values[:boundary], values[boundary:]
        if tail.size == 0:
            return whole, tail, None
        per_byte = self.format.codes_per_byte
        tail_block = np.zeros(-(-tail.size // per_byte) * per_byte, dtype=np.float32)
        if copy_tail:
            tail_block[: tail.size] = tail
        return whole, tail, tail_block

    def scales_of(self, encoded: EncodedBlocks) -> F32:
        """Scales as float32 [num_blocks].

        Raises:
            ValueError: one that no encoder writes.
        """
        stored = np.frombuffer(encoded.scales, dtype=self._scale_dtype)
        floats: F32 = (stored.astype(np.uint32) << np.uint32(self.format.dropped_bits)).view(np.float32)
        smallest, largest = self._stored_limits
        # Unsigned: what is below the smallest wraps around to above the largest.
        outside = stored - smallest > largest - smallest
        if outside.any() and (refused := np.flatnonzero(outside & (stored != 0))).size:
            block = int(refused[0])
            raise ValueError(
                f"scale {float(floats[block])} of block {block}; "
                f"expected 0 or a number from 2^-100 to 2^126 / {self.format.top_code}"
            )
        return floats


class _CastCodec(Codec):
    """fp16 and fp32: no scales; numpy does both, whatever kernels were asked for."""

    def __init__(self, name: str, block_size: int, scale: str) -> None:
        self.name = name
        self.block_size = block_size
        self.scale = scale
        self.rounding = "nearest"
        half = name == "fp16"
        self._dtype: np.dtype[Any] = np.dtype("<f2" if half else "<f4")
        self._bits_dtype = np.dtype("<u2" if half else "<u4")
        self._largest, self._largest_text = (65504.0, "65504") if half else (MAX_MAGNITUDE, "2^126")

    @property
    def kernels(self) -> str:
        return "numpy"

    def _encode(self, values: F32, keep_residual: bool, seed: int | None) -> EncodedBlocks:
        _check_array(values, is_written=keep_residual)
        chunks = [slice(start, start + CHUNK_VALUES) for start in range(0, values.size, CHUNK_VALUES)]
        for chunk in chunks:
            # Not numpy's min and max, which warn of a NaN.
            if not (np.abs(values[chunk]) <= self._largest).all():
                raise _refused_value(values, self._largest, self._largest_text)
        codes = np.empty(values.size, dtype=self._dtype)
        for chunk in chunks:
            codes[chunk] = values[chunk]
            if keep_residual:
                values[chunk] -= codes[chunk]
        return EncodedBlocks(self.name, self.block_size, values.size, b"", _bytes_of(codes), self.scale)

    def check_decodable(self, encoded: EncodedBlocks) -> None:
        self.check_fits(encoded, encoded.num_values)
        self._checked_bits(encoded)

    def largest(self, encoded: EncodedBlocks) -> float:
        self.check_fits(encoded, encoded.num_values)
        return max((float(np.abs(part).max()) for _, part in self._chunks(encoded)), default=0.0)

    def decode(self, encoded: EncodedBlocks, out: F32) -> None:
        self._check_encoded(encoded, out)
        for start, decoded in self._chunks(encoded):
            out[start : start + len(decoded)] = decoded

    def decode_accumulate(self, encoded: EncodedBlocks, weight: float, out: F32) -> None:
        self._check_encoded(encoded, out)
        factor = np.float32(weight_float32(weight))
        for start, decoded in self._chunks(encoded):
            # As in `NumpyKernels.decode_accumulate`.
            with np.errstate(over="ignore", invalid="ignore"):
                out[start : start + len(decoded)] += decoded.astype(np.float32) * factor

    def _chunks(self, encoded: EncodedBlocks) -> Iterator[tuple[int, npt.NDArray[np.floating[Any]]]]:
        """(start, values in the codec's dtype), once every float was found to be in range."""
        bits = self._checked_bits(encoded)
        for start in range(0, len(bits), CHUNK_VALUES):
            yield start, bits[start : start + CHUNK_VALUES].view(self._dtype)

    def _checked_bits(self, encoded: EncodedBlocks) -> npt.NDArray[np.unsignedinteger[Any]]:
        """The floats as whole numbers; raises ValueError unless every float is in range."""
        bits = np.frombuffer(encoded.codes, dtype=self._bits_dtype)
        magnitude = self._bits_dtype.type((1 << (8 * self._bits_dtype.itemsize - 1)) - 1)
        limit = np.array(self._largest, dtype=self._dtype).view(self._bits_dtype)
        for start in range(0, len(bits), CHUNK_VALUES):
            # Without its sign, a float's bits compare as the float does, and NaN and infinity exceed every number.
            beyond = np.flatnonzero((bits[start : start + CHUNK_VALUES] & magnitude) > limit)
            if beyond.size:
                position = start + int(beyond[0])
                got = float(bits[position : position + 1].view(self._dtype)[0])
                raise ValueError(
                    f"{got} at position {position}; expected finite values of at most {self._largest_text}"
                )
        return bits


def make_codec(
    name: str,
    block_size: int = DEFAULT_BLOCK_SIZE,
    kernels: KernelChoice = "auto",
    scale: str = DEFAULT_SCALE,
    rounding: Rounding = "nearest",
) -> Codec:
    """The codec called `name`: int4, e3m0, int8, int2, fp16 or fp32.

    Args:
        block_size: values that share a scale, a multiple of 8 up to 65536 (no effect on fp16 and fp32).
        kernels: `numpy`, `compiled`, or `auto`: compiled where the package was installed with a C compiler. The bits
            do not depend on it.
        scale: how scales are stored: bf16, fp32 or pow2 (no effect on fp16 and fp32, which have none).
        rounding: `nearest` (ties to even), or `stochastic`: up or down by chance, so that the decoded values are right
            on average (to 2^-17 of a step). fp16 and fp32 can only round to nearest.

    Raises:
        ValueError: unknown name, scale, rounding or kernels, bad block size, or compiled kernels were asked for and
            are missing.
    """
    check_format(name, block_size, scale)
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding {rounding!r}; expected nearest or stochastic")
    if kernels not in ("auto", "numpy", "compiled"):
        raise ValueError(f"kernels {kernels!r}; expected auto, numpy or compiled")
    if name not in BLOCK_FORMATS:
        if rounding != "nearest":
            raise ValueError(f"rounding {rounding!r} with {name}; expected nearest")
        return _CastCodec(name, block_size, scale)
    if kernels == "compiled" and compiled_kernels.kernels() is None:
        raise ValueError("kernels compiled, but there are none; install the package with a C compiler, or use numpy")
    return BlockCodec(name, block_size, kernels, scale, rounding)


def _check_array(values: F32, is_written: bool) -> None:
    """The compiled kernels go by pointers, so what numpy would refuse is refused here."""
    if values.dtype != np.float32 or values.ndim != 1 or not values.flags.c_contiguous or not values.flags.aligned:
        kind = "a" if values.flags.c_contiguous else "a strided"
        raise ValueError(
            f"{kind} {values.dtype} array of shape {values.shape}; expected a contiguous, aligned, one-dimensional "
            "float32 array"
        )
    if is_written and not values.flags.writeable:
        raise ValueError("a read-only array; expected one that can be written to")


def weight_float32(weight: float) -> float:
    """`weight` rounded to float32 once, so that every kernel multiplies by the same number."""
    try:
        rounded = struct.unpack("<f", struct.pack("<f", weight))[0]
    except OverflowError:
        rounded = math.inf
    if not math.isfinite(rounded):
        raise ValueError(f"weight {weight}; expected a finite float32 number")
    return float(rounded)


def _bytes_of(array: npt.NDArray[np.generic]) -> memoryview:
    return array.data.cast("B").toreadonly() if array.size else memoryview(b"")


def _refused_value(values: F32, largest: float, largest_text: str) -> ValueError:
    position = int(np.flatnonzero(~(np.abs(values) <= largest))[0])
    return ValueError(
        f"{float(values[position])} at position {position}; expected finite values of at most {largest_text}: "
        "see whether training diverged"
    )
