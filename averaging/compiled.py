"""Numba kernels, compiled once and kept on disk where that is possible.

No fastmath anywhere: multiply and add are not fused, every operation rounds once, and the bits are those of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit


@cache
def compiled(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Compile `function` for `signature`, or load it from the cache on disk if there is one."""
    try:
        kernel = njit([signature], nogil=True, error_model="numpy", cache=True)(function)
    except Exception:  # noqa: BLE001 (no writable directory, a full disk, or whatever a damaged cache file raises)
        kernel = njit([signature], nogil=True, error_model="numpy")(function)
    return kernel
