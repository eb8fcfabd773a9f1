"""Block kernels of the compiled library: the bits of `codec_torch.py`, in one pass over memory."""

from __future__ import annotations

from torch import Tensor

from averaging.codec_torch import F32, U8, U32, BlockFormat
from averaging.compiled import KernelLibrary


class CompiledKernels:
    """Encode and decode whole blocks; arguments are those of `TorchKernels`."""

    name = "compiled"

    def __init__(self, block_format: BlockFormat, library: KernelLibrary) -> None:
        self._format = block_format
        self._library = library

    def encode(
        self, values: Tensor, block_size: int, scales: U32, codes: U8, keep_residual: bool, first_value: int, noise: int
    ) -> int:
        """As `TorchKernels.encode`."""
        return self._library.encode(
            values.numpy(), block_size, self._format, scales, codes, keep_residual, first_value, noise
        )

    def decode(self, scales: F32, codes: U8, block_size: int, out: Tensor) -> None:
        """As `TorchKernels.decode`."""
        self._library.decode(scales, codes, block_size, self._format, None, out.numpy())

    def decode_accumulate(self, scales: F32, codes: U8, block_size: int, weight: float, out: Tensor) -> None:
        """As `TorchKernels.decode_accumulate`."""
        self._library.decode(scales, codes, block_size, self._format, weight, out.numpy())
