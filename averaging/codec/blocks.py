"""Byte layout of an encoded array. Does not use numpy, so the wire and the round machine can import it.

An array of `num_values` float32 values is divided into blocks of `block_size` values; the last block may be shorter.
The payload is all scales, then all codes, little-endian:

- scales: one bfloat16 per block, the upper half of a positive float32. The codec `fp32` has none;
- codes: `bits_per_code` bits a value. A block of n values fills ceil(n * bits / 8) bytes. A byte has k = 8 / bits
  codes, and a block w bytes. Byte i of a block holds the values `i, i + w, i + 2w, ...`, lowest bits first. Parts of a
  block therefore lie side by side, and packing works on whole vectors. Missing values are coded as zero.

int4 and int8 codes are offset binary (code = integer + 2^(bits-1)). Members send int4 or fp32; int8 stores the errors
of a reducer's own broadcasts (`averaging/outer/shard_mean.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Buffer = bytes | bytearray | memoryview

SCALE_BYTES = 2
"""Size of a bfloat16. fp16 does not suit: outer gradients over 7 lie around its smallest normal number. A float32 scale
would cost another eighth of a bit per value for 1 % less error; a power of two would save a sixteenth for up to 50 %
more error."""


CODE_BITS: Mapping[str, int] = MappingProxyType({"int4": 4, "int8": 8, "fp32": 32})
"""Bits of one value. The blocks of all codecs but fp32 have scales."""

MAX_MAGNITUDE, MAX_MAGNITUDE_BITS = 2.0**126, 0x7E800000
"""The codec refuses values beyond this magnitude. No sum of two accepted values, and no product of code and scale, can
then overflow float32."""
SMALLEST_SCALE_BITS = 0x0D800000
"""2^-100. A block that would need a smaller scale is sent as zeros, which keeps subnormal numbers (and machines that
flush them) out of the arithmetic. Error feedback carries the lost values into a later encoding."""

BLOCK_SIZE_MULTIPLE = 8
"""Block sizes are multiples of this, so that whole blocks of any codec end on a byte (and halves stay aligned)."""

MAX_BLOCK_SIZE = 65536
"""In larger blocks the scale's share would be too small to measure, and one outlier would round too many neighbours to
zero."""


def check_format(codec: str, block_size: int) -> int:
    """Return the bits of one value of `codec`.

    Raises:
        ValueError: unknown codec, or a block size that is not a multiple of 8 in 8..65536.
    """
    bits = CODE_BITS.get(codec)
    if bits is None:
        raise ValueError(f"codec {codec!r} is unknown; expected one of {', '.join(CODE_BITS)}")
    if not (BLOCK_SIZE_MULTIPLE <= block_size <= MAX_BLOCK_SIZE) or block_size % BLOCK_SIZE_MULTIPLE:
        raise ValueError(
            f"block size {block_size}; expected a multiple of {BLOCK_SIZE_MULTIPLE} "
            f"from {BLOCK_SIZE_MULTIPLE} to {MAX_BLOCK_SIZE}"
        )
    return bits


def scales_num_bytes(codec: str, block_size: int, num_values: int) -> int:
    return 0 if check_format(codec, block_size) == 32 else SCALE_BYTES * -(-num_values // block_size)


def codes_num_bytes(codec: str, block_size: int, num_values: int) -> int:
    """Return the number of bytes of all codes of `num_values` values. Only the last byte can be partly empty."""
    return -(-num_values * check_format(codec, block_size) // 8)


def encoded_num_bytes(codec: str, block_size: int, num_values: int) -> int:
    """Return the payload bytes of `num_values` values: int4 with blocks of 128 takes 4.125 bits per value.

    Raises:
        ValueError: unknown codec, bad block size, or a negative count.
    """
    if num_values < 0:
        raise ValueError(f"{num_values} values; expected zero or more")
    return scales_num_bytes(codec, block_size, num_values) + codes_num_bytes(codec, block_size, num_values)


@dataclass(frozen=True, slots=True)
class EncodedBlocks:
    """Encoded values: `scales` and `codes` as described at the top of this module.

    Raises:
        ValueError: on construction, when the buffers do not have exactly the bytes that the counts demand.
    """

    codec: str
    block_size: int
    num_values: int
    scales: Buffer
    codes: Buffer

    def __post_init__(self) -> None:
        encoded_num_bytes(self.codec, self.block_size, self.num_values)
        for name, buffer, expected_bytes in (
            ("scales", self.scales, scales_num_bytes(self.codec, self.block_size, self.num_values)),
            ("codes", self.codes, codes_num_bytes(self.codec, self.block_size, self.num_values)),
        ):
            got_bytes = memoryview(buffer).nbytes
            if got_bytes != expected_bytes:
                raise ValueError(
                    f"{got_bytes} bytes of {name}; expected {expected_bytes} for {self.num_values} values "
                    f"in {self.codec} blocks of {self.block_size}"
                )

    @property
    def num_bytes(self) -> int:
        """Return the number of payload bytes, without framing."""
        return encoded_num_bytes(self.codec, self.block_size, self.num_values)

    def slice_blocks(self, first_value: int, num_values: int) -> EncodedBlocks:
        """Return the encoding of `num_values` values from `first_value` on. It shares memory with these blocks.

        Raises:
            ValueError: the range leaves the array, or an end of the range is neither a block boundary nor the end of
                the array.
        """
        end = first_value + num_values
        if first_value < 0 or num_values < 0 or end > self.num_values:
            raise ValueError(f"values {first_value}..{end}; expected a range inside 0..{self.num_values}")
        if (first_value % self.block_size and num_values) or (end % self.block_size and end != self.num_values):
            raise ValueError(f"values {first_value}..{end}; expected both ends at multiples of {self.block_size}")

        def part(buffer: Buffer, start_bytes: int, length_bytes: int) -> memoryview:
            return memoryview(buffer).cast("B")[start_bytes : start_bytes + length_bytes]

        def num_bytes(count: int) -> tuple[int, int]:
            scales = scales_num_bytes(self.codec, self.block_size, count)
            return scales, codes_num_bytes(self.codec, self.block_size, count)

        scales_before, codes_before = num_bytes(first_value)
        scales_inside, codes_inside = num_bytes(num_values)
        return EncodedBlocks(
            codec=self.codec,
            block_size=self.block_size,
            num_values=num_values,
            scales=part(self.scales, scales_before, scales_inside),
            codes=part(self.codes, codes_before, codes_inside),
        )

    def pack(self) -> list[Buffer]:
        """Return the payload as buffers to be sent in this order, without a copy."""
        return [self.scales, self.codes]

    @staticmethod
    def unpack(codec: str, block_size: int, num_values: int, payload: Buffer) -> EncodedBlocks:
        """Return the blocks that `pack` turned into this payload, as views into `payload`.

        Raises:
            ValueError: unknown codec, bad block size or count, or a payload of the wrong length.
        """
        expected_bytes = encoded_num_bytes(codec, block_size, num_values)
        view = memoryview(payload).cast("B")
        if view.nbytes != expected_bytes:
            raise ValueError(
                f"{view.nbytes} bytes of payload; expected {expected_bytes} for {num_values} values "
                f"in {codec} blocks of {block_size}"
            )
        split = scales_num_bytes(codec, block_size, num_values)
        return EncodedBlocks(codec, block_size, num_values, view[:split], view[split:])
