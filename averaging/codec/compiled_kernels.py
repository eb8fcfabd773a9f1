"""Load the kernels of `kernels.c` and call them with numpy arrays. They give the same bits as `numpy_kernels.py`.

The installation compiles them (`build_kernels.py`). If they are missing, or were compiled from a different version of
the source, `missing_reason` returns why, and callers use numpy. The GIL is free while a kernel runs.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

from averaging.arrays import F32, U8, U32
from averaging.codec.build_kernels import BUILT_LIBRARY, SOURCE, source_mark
from averaging.codec.numpy_kernels import IntegerCode

_INT, _FLOAT, _POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p

log = logging.getLogger(__name__)


class KernelsMissing(Exception):
    """There are no compiled kernels. The text is one sentence with the reason."""


class KernelLibrary:
    """The functions of one compiled library. Callers must pass contiguous arrays of matching lengths.

    Raises:
        KernelsMissing: the library does not exist, cannot be loaded, or was compiled from a different source.
    """

    def __init__(self, path: Path, source: str) -> None:
        if not path.exists():
            raise KernelsMissing("compiled kernels were not built when this software was installed")
        try:
            loaded = ctypes.CDLL(str(path))
            loaded.kernels_source.restype = ctypes.c_char_p
            found = loaded.kernels_source().decode("ascii", "replace")
            self.encode, self.decode, self._step = loaded.encode_blocks, loaded.decode_blocks, loaded.outer_step
        except (OSError, AttributeError) as error:
            raise KernelsMissing(f"compiled kernels cannot be loaded ({error})") from error
        if found != source:
            raise KernelsMissing(f"compiled kernels were built from {found or 'an unnamed source'}; expected {source}")
        self.encode.restype = _INT
        self.encode.argtypes = [_POINTER, _INT, _INT, _INT, _POINTER, _POINTER, _INT]
        self.decode.restype = None
        self.decode.argtypes = [_POINTER, _POINTER, _INT, _INT, _INT, _FLOAT, _INT, _POINTER]
        self._step.restype = None
        self._step.argtypes = [_POINTER, _POINTER, _POINTER, _INT, _FLOAT, _FLOAT, _POINTER]

    def outer_step(
        self,
        anchor: F32,
        momentum: F32,
        gradient: F32,
        outer_lr: float,
        outer_momentum: float,
        change: F32,
    ) -> None:
        """Do the work of `averaging.outer.outer_step.outer_step_`, and write the change into `change`. All arrays are
        [n] and must not overlap.
        """
        self._step(
            anchor.ctypes.data,
            momentum.ctypes.data,
            gradient.ctypes.data,
            len(anchor),
            outer_lr,
            outer_momentum,
            change.ctypes.data,
        )


@cache
def kernels() -> KernelLibrary | None:
    """Return the library of this installation, or None, with one line in the log, if there is none."""
    found, reason = _found()
    if found is None:
        remedy = "install a C compiler, such as gcc, then reinstall this software"
        log.warning("%s; numpy is used instead, which is several times slower; %s", reason, remedy)
    return found


def missing_reason() -> str:
    """Return why `kernels` returns None, as one sentence, or an empty text if it returns a library."""
    return _found()[1]


@cache
def _found() -> tuple[KernelLibrary | None, str]:
    try:
        return KernelLibrary(BUILT_LIBRARY, source_mark(SOURCE)), ""
    except KernelsMissing as reason:
        return None, str(reason)


class CompiledKernels:
    """Encode and decode whole blocks. The methods take the arguments of `NumpyKernels`."""

    name = "compiled"

    def __init__(self, code: IntegerCode, library: KernelLibrary) -> None:
        self._bits = code.bits
        self._library = library

    def encode(self, values: F32, block_size: int, scales: U32, codes: U8, keep_residual: bool) -> int:
        done: int = self._library.encode(
            values.ctypes.data,
            len(scales),
            block_size,
            self._bits,
            scales.ctypes.data,
            codes.ctypes.data,
            keep_residual,
        )
        return done

    def decode(self, scales: F32, codes: U8, block_size: int, out: F32) -> None:
        self._decode(scales, codes, block_size, 0.0, False, out)

    def decode_accumulate(self, scales: F32, codes: U8, block_size: int, out: F32, weight: float) -> None:
        self._decode(scales, codes, block_size, weight, True, out)

    def _decode(self, scales: F32, codes: U8, block_size: int, weight: float, is_added: bool, out: F32) -> None:
        self._library.decode(
            scales.ctypes.data,
            codes.ctypes.data,
            len(scales),
            block_size,
            self._bits,
            weight,
            is_added,
            out.ctypes.data,
        )
