"""What an encoded array looks like as bytes. Knows nothing of numpy, so the wire and the round machine can use it.

An array of `num_values` float32 values is cut into blocks of `block_size` values; the last block may be shorter.
The payload is all scales, then all codes, little-endian:

- scales: one per block, the upper bits of a positive float32. These are 16 bits (`bf16`), all 32 (`fp32`), or the 8 of
  the exponent (`pow2`, the shared scale of arXiv 2310.10537). The codecs `fp16` and `fp32` have none;
- codes: `bits_per_code` bits a value. A block of n values fills ceil(n * bits / 8) bytes. A byte has k = 8 / bits
  codes, and a block w bytes. Byte i of a block holds the values `i, i + w, i + 2w, ...`, lowest bits first. So halves
  (quarters) of a block lie side by side, so packing is whole-vector work. Missing values are coded as zero.

int2, int4 and int8 codes are offset binary (code = integer + 2^(bits-1)); e3m0 is sign (bit 3) and exponent (bits 0-2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Buffer = bytes | bytearray | memoryview

SCALE_BYTES: Mapping[str, int] = MappingProxyType({"bf16": 2, "fp32": 4, "pow2": 1})
"""Ways to store a block's scale. There is no fp16: outer gradients over 7 lie around its smallest normal number."""
DEFAULT_SCALE = "bf16"


@dataclass(frozen=True, slots=True)
class CodeFormat:
    """How many bits one value takes, and whether its block carries a scale."""

    bits_per_code: int
    has_scales: bool


CODE_FORMATS: Mapping[str, CodeFormat] = MappingProxyType(
    {
        "int4": CodeFormat(4, True),
        "e3m0": CodeFormat(4, True),
        "int8": CodeFormat(8, True),
        "int2": CodeFormat(2, True),
        "fp16": CodeFormat(16, False),
        "fp32": CodeFormat(32, False),
    }
)

MAX_MAGNITUDE, MAX_MAGNITUDE_BITS = 2.0**126, 0x7E800000
"""Values beyond it are refused: no sum of two of them, and no code times scale, can overflow float32."""
SMALLEST_SCALE_BITS = 0x0D800000
"""2^-100. A block that would need a smaller scale is sent as zeros, which keeps subnormal numbers (and machines that
flush them) out of the arithmetic. With error feedback nothing of it is lost."""

BLOCK_SIZE_MULTIPLE = 8
"""Block sizes are multiples of this, so that whole blocks of any codec end on a byte (and halves stay aligned)."""

MAX_BLOCK_SIZE = 65536
"""Beyond it a scale costs nothing measurable any more, and one outlier would silence too many neighbours."""


def check_format(codec: str, block_size: int, scale: str = DEFAULT_SCALE) -> CodeFormat:
    """The format of `codec`.

    Raises:
        ValueError: unknown codec or scale, or a block size that is no multiple of 8 in 8..65536.
    """
    code_format = CODE_FORMATS.get(codec)
    if code_format is None:
        raise ValueError(f"codec {codec!r} is unknown; expected one of {', '.join(CODE_FORMATS)}")
    if not (BLOCK_SIZE_MULTIPLE <= block_size <= MAX_BLOCK_SIZE) or block_size % BLOCK_SIZE_MULTIPLE:
        raise ValueError(
            f"block size {block_size}; expected a multiple of {BLOCK_SIZE_MULTIPLE} "
            f"from {BLOCK_SIZE_MULTIPLE} to {MAX_BLOCK_SIZE}"
        )
    if scale not in SCALE_BYTES:
        raise ValueError(f"scale {scale!r} is unknown; expected one of {', '.join(SCALE_BYTES)}")
    return code_format


def scales_num_bytes(codec: str, block_size: int, num_values: int, scale: str = DEFAULT_SCALE) -> int:
    if not check_format(codec, block_size, scale).has_scales:
        return 0
    return SCALE_BYTES[scale] * -(-num_values // block_size)


def codes_num_bytes(codec: str, block_size: int, num_values: int) -> int:
    """Bytes of all codes of `num_values` values; only the last byte can be partly empty."""
    return -(-num_values * check_format(codec, block_size).bits_per_code // 8)


def encoded_num_bytes(codec: str, block_size: int, num_values: int, scale: str = DEFAULT_SCALE) -> int:
    """Payload bytes of `num_values` values: int4 with blocks of 128 and bf16 scales takes 4.125 bits a value.

    Raises:
        ValueError: unknown codec or scale, bad block size, or a negative count.
    """
    if num_values < 0:
        raise ValueError(f"{num_values} values; expected zero or more")
    return scales_num_bytes(codec, block_size, num_values, scale) + codes_num_bytes(codec, block_size, num_values)


@dataclass(frozen=True, slots=True)
class EncodedBlocks:
    """Encoded values: `scales` and `codes` as described at the top of this module; `scale` says how scales are stored.

    Raises:
        ValueError: on construction, when the buffers do not have exactly the bytes that the counts demand.
    """

    codec: str
    block_size: int
    num_values: int
    scales: Buffer
    codes: Buffer
    scale: str = DEFAULT_SCALE

    def __post_init__(self) -> None:
        encoded_num_bytes(self.codec, self.block_size, self.num_values, self.scale)
        for name, buffer, expected_bytes in (
            ("scales", self.scales, scales_num_bytes(self.codec, self.block_size, self.num_values, self.scale)),
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
        """Payload bytes, framing not included."""
        return encoded_num_bytes(self.codec, self.block_size, self.num_values, self.scale)

    def slice_blocks(self, first_value: int, num_values: int) -> EncodedBlocks:
        """The encoding of `num_values` values from `first_value` on; shares memory with this one.

        Raises:
            ValueError: the range leaves the array, or does not begin and end on a block boundary (the end of the
                array counts as one).
        """
        end = first_value + num_values
        if first_value < 0 or num_values < 0 or end > self.num_values:
            raise ValueError(f"values {first_value}..{end}; expected a range inside 0..{self.num_values}")
        if (first_value % self.block_size and num_values) or (end % self.block_size and end != self.num_values):
            raise ValueError(f"values {first_value}..{end}; expected both ends at multiples of {self.block_size}")

        def part(buffer: Buffer, start_bytes: int, length_bytes: int) -> memoryview:
            return memoryview(buffer).cast("B")[start_bytes : start_bytes + length_bytes]

        sizes = (self.codec, self.block_size)
        before, inside = (scales_num_bytes(*sizes, count, self.scale) for count in (first_value, num_values))
        return EncodedBlocks(
            codec=self.codec,
            block_size=self.block_size,
            num_values=num_values,
            scales=part(self.scales, before, inside),
            codes=part(self.codes, codes_num_bytes(*sizes, first_value), codes_num_bytes(*sizes, num_values)),
            scale=self.scale,
        )

    def pack(self) -> list[Buffer]:
        """The payload as buffers to be sent one after the other, without a copy."""
        return [self.scales, self.codes]

    @staticmethod
    def unpack(
        codec: str, block_size: int, num_values: int, payload: Buffer, scale: str = DEFAULT_SCALE
    ) -> EncodedBlocks:
        """The reverse of `pack`, as views into `payload`.

        Raises:
            ValueError: unknown codec or scale, bad block size or count, or not exactly the right number of bytes.
        """
        expected_bytes = encoded_num_bytes(codec, block_size, num_values, scale)
        view = memoryview(payload).cast("B")
        if view.nbytes != expected_bytes:
            raise ValueError(
                f"{view.nbytes} bytes of payload; expected {expected_bytes} for {num_values} values "
                f"in {codec} blocks of {block_size}"
            )
        split = scales_num_bytes(codec, block_size, num_values, scale)
        return EncodedBlocks(codec, block_size, num_values, view[:split], view[split:], scale)
