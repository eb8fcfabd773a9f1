"""Block kernels of the compiled library: the bits of `numpy_kernels.py`, in one pass over memory."""

from __future__ import annotations

from averaging.arrays import F32, U8, U32
from averaging.codec.compiled import KernelLibrary
from averaging.codec.numpy_kernels import BlockFormat


class CompiledKernels:
    """Encode and decode whole blocks; arguments are those of `NumpyKernels`."""

    name = "compiled"

    def __init__(self, block_format: BlockFormat, library: KernelLibrary) -> None:
        self._format = block_format
        self._library = library

    def encode(
        self, values: F32, block_size: int, scales: U32, codes: U8, keep_residual: bool, first_value: int, noise: int
    ) -> int:
        """As `NumpyKernels.encode`."""
        return self._library.encode(values, block_size, self._format, scales, codes, keep_residual, first_value, noise)

    def decode(self, scales: F32, codes: U8, block_size: int, out: F32) -> None:
        """As `NumpyKernels.decode`."""
        self._library.decode(scales, codes, block_size, self._format, None, out)

    def decode_accumulate(self, scales: F32, codes: U8, block_size: int, weight: float, out: F32) -> None:
        """As `NumpyKernels.decode_accumulate`."""
        self._library.decode(scales, codes, block_size, self._format, weight, out)
