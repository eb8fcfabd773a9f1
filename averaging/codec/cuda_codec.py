"""The integer codecs on a CUDA device: tensors that are there become the same bytes as on the CPU, and the reverse.

What crosses is the encoded form, an eighth of float32 with int4. Peers do not use it: what waits in their residual must
outlive the trainer, so it is in host memory and is encoded there. It is for those who average tensors of their own
devices with these codecs. Triton launches on the current device, whichever the tensors are on: hence `_current`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from averaging.codec.blocks import DEFAULT_SCALE, EncodedBlocks
from averaging.codec.codec import DEFAULT_BLOCK_SIZE, BlockCodec, make_codec, weight_float32
from averaging.codec.numpy_kernels import MAX_MAGNITUDE_BITS, SMALLEST_SCALE_BITS

INTEGER_CODECS = ("int2", "int4", "int8")
NONE_REFUSED = 2**31 - 1
PROGRAM_VALUES = 2048
"""Values a program works on, unless a block has more: 16 per thread of four warps."""


class DeviceCodec:
    """Encodes and decodes flat float32 tensors on the device on which they are, rounding to nearest.

    Args:
        name: int2, int4 or int8.
        block_size, scale: as `make_codec`.

    Raises:
        ValueError: another codec, a bad block size or scale, or Triton is not installed.
    """

    def __init__(self, name: str, block_size: int = DEFAULT_BLOCK_SIZE, scale: str = DEFAULT_SCALE) -> None:
        if name not in INTEGER_CODECS:
            raise ValueError(f"codec {name!r} on a device; expected one of {', '.join(INTEGER_CODECS)}")
        host = make_codec(name, block_size, scale=scale)
        assert isinstance(host, BlockCodec)
        self._host = host
        self._format = host.format
        self._kernels = _kernels()

    @property
    def block_size(self) -> int:
        """Values that share a scale."""
        return self._host.block_size

    def encode(self, values: Tensor) -> EncodedBlocks:
        """Encode `values` (float32 [n], contiguous, on the device), which stay as they are.

        Raises:
            ValueError: wrong dtype or shape; a value that is not finite or exceeds 2^126.
        """
        return self._encode(values, keeps_residual=False)

    def encode_with_residual(self, values: Tensor) -> EncodedBlocks:
        """Encode, and leave values minus decoded in `values`; on an error they are as before."""
        return self._encode(values, keeps_residual=True)

    def decode(self, encoded: EncodedBlocks, out: Tensor) -> None:
        """out = decoded values. out: float32 [num_values], contiguous, on the device.

        Raises:
            ValueError: other codec, block size or length; a scale that no encoder writes. `out` is then untouched.
        """
        self._decode(encoded, None, out)

    def decode_accumulate(self, encoded: EncodedBlocks, weight: float, out: Tensor) -> None:
        """out = out + weight * decoded, the weight and both results rounded to float32 one after the other.

        Raises:
            ValueError: as `decode`, or the weight is not finite.
        """
        self._decode(encoded, weight, out)

    def _encode(self, values: Tensor, keeps_residual: bool) -> EncodedBlocks:
        _check_tensor(values)
        values = values.detach()
        whole, tail = self._split(values)
        scales, codes, first_refused = self.launch_encode(whole, keeps_residual)
        # The last, shorter block is encoded on the CPU: a launch for it costs more than the copy.
        tail_there = tail.to("cpu", copy=True)
        try:
            last = self._host.encode_with_residual(tail_there.numpy())
            is_refused = int(first_refused.item()) != NONE_REFUSED
        except ValueError:
            is_refused = True
        if is_refused:
            if keeps_residual:
                # With nearest rounding, decoded plus what is left is the original; refused blocks were not touched.
                self.launch_decode(scales, codes, 1.0, whole)
            self._host.encode(values.cpu().numpy())  # says which value, and raises
        if keeps_residual:
            tail.copy_(tail_there)
        stored = self._host.stored_scales(scales.cpu().numpy().view(np.uint32))
        return EncodedBlocks(
            self._host.name,
            self._host.block_size,
            values.numel(),
            stored.tobytes() + bytes(last.scales),
            codes.cpu().numpy().tobytes() + bytes(last.codes),
            self._host.scale,
        )

    def _decode(self, encoded: EncodedBlocks, weight: float | None, out: Tensor) -> None:
        _check_tensor(out)
        out = out.detach()
        self._host.check_fits(encoded, out.numel())
        rounded = None if weight is None else weight_float32(weight)
        scales = self._host.scales_of(encoded)
        whole, tail = self._split(out)
        num_blocks = whole.numel() // self._host.block_size
        num_bytes = whole.numel() // self._format.codes_per_byte
        codes = np.frombuffer(encoded.codes, dtype=np.uint8)[:num_bytes]
        self.launch_decode(
            torch.from_numpy(scales[:num_blocks].view(np.int32).copy()).to(out.device),
            torch.from_numpy(codes.copy()).to(out.device),
            rounded,
            whole,
        )
        if tail.numel():
            last, tail_there = encoded.slice_blocks(whole.numel(), tail.numel()), tail.to("cpu", copy=True)
            if weight is None:
                self._host.decode(last, tail_there.numpy())
            else:
                self._host.decode_accumulate(last, weight, tail_there.numpy())
            tail.copy_(tail_there)

    def launch_encode(self, values: Tensor, keeps_residual: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Begin to encode whole blocks, all on the device.

        Args:
            values: float32 [num_blocks * block_size]; with `keeps_residual`, changed to values minus decoded.

        Returns:
            Scales as the bits of float32 (int32 [num_blocks]), codes (uint8), and the first block with a value beyond
            the range (int32 [1]; `NONE_REFUSED`: there is none). Such blocks have codes of zero and stay as they are.
        """
        num_blocks, block_bytes = values.numel() // self._host.block_size, self._block_bytes
        scales = torch.empty(num_blocks, dtype=torch.int32, device=values.device)
        codes = torch.empty(num_blocks * block_bytes, dtype=torch.uint8, device=values.device)
        first_refused = torch.full((1,), NONE_REFUSED, dtype=torch.int32, device=values.device)
        rows, columns = _tile(block_bytes, self._format.codes_per_byte)
        if num_blocks:
            with _current(values):
                self._kernels.encode_blocks[(-(-num_blocks // rows),)](
                    *(values, scales, codes, first_refused, num_blocks, block_bytes),
                    TOP_CODE=self._format.top_code,
                    BITS=self._format.bits,
                    ROUND_UP=self._format.round_up,
                    DROPPED_BITS=self._format.dropped_bits,
                    ZERO_BYTE=self._format.zero_byte,
                    LARGEST_BITS=MAX_MAGNITUDE_BITS,
                    SMALLEST_SCALE_BITS=SMALLEST_SCALE_BITS,
                    KEEPS_RESIDUAL=keeps_residual,
                    ROWS=rows,
                    COLUMNS=columns,
                    enable_fp_fusion=False,
                )
        return scales, codes, first_refused

    def launch_decode(self, scales: Tensor, codes: Tensor, weight: float | None, out: Tensor) -> None:
        """Begin out = decoded, or out + weight * decoded, for whole blocks; scales and codes as `launch_encode`'s."""
        num_blocks, block_bytes = scales.numel(), self._block_bytes
        rows, columns = _tile(block_bytes, self._format.codes_per_byte)
        if num_blocks:
            with _current(out):
                self._kernels.decode_blocks[(-(-num_blocks // rows),)](
                    *(scales, codes, out, 1.0 if weight is None else weight, num_blocks, block_bytes),
                    BITS=self._format.bits,
                    ZERO_BYTE=self._format.zero_byte,
                    ACCUMULATES=weight is not None,
                    ROWS=rows,
                    COLUMNS=columns,
                    enable_fp_fusion=False,
                )

    @property
    def _block_bytes(self) -> int:
        return self._host.block_size // self._format.codes_per_byte

    def _split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        boundary = values.numel() // self._host.block_size * self._host.block_size
        return values[:boundary], values[boundary:]


def _tile(block_bytes: int, codes_per_byte: int) -> tuple[int, int]:
    """Blocks of one program and columns of its tensors, both powers of two."""
    columns = 1 << (block_bytes - 1).bit_length()
    return max(1, PROGRAM_VALUES // (columns * codes_per_byte)), columns


def _current(tensor: Tensor) -> Any:
    """Makes the tensor's device the current one inside; does nothing for a tensor on the CPU."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def _check_tensor(values: Tensor) -> None:
    if values.dtype != torch.float32 or values.dim() != 1 or not values.is_contiguous():
        raise ValueError(
            f"a {values.dtype} tensor of shape {tuple(values.shape)}; "
            "expected a contiguous one-dimensional float32 tensor"
        )


def _kernels() -> Any:
    try:
        from averaging.codec import triton_kernels
    except ImportError as error:
        raise ValueError(
            f"the codec on a device needs Triton, and here: {error}; it comes with torch for CUDA on Linux"
        ) from error
    return triton_kernels
