"""The outer step in one pass over memory: the bits of `outer.outer_step_`, compiled.

Editor's rules are those of `codec_numba.py`: no fastmath, so that no multiply and add are fused and every operation
rounds once, as in torch.
"""

from __future__ import annotations

import numpy as np
from numba import types

from averaging.codec_torch import F32
from averaging.compiled import compiled

f32 = np.float32

_FLOATS = types.Array(types.float32, 1, "C")
_SIGNATURE = types.void(_FLOATS, _FLOATS, _FLOATS, types.float32, types.float32, _FLOATS)


def _step(anchor, momentum, gradient, outer_lr, outer_momentum, change):  # type: ignore[no-untyped-def]
    for i in range(anchor.shape[0]):
        velocity = momentum[i] * outer_momentum + gradient[i]
        momentum[i] = velocity
        before = anchor[i]
        after = before - (velocity * outer_momentum + gradient[i]) * outer_lr
        anchor[i] = after
        change[i] = after - before


def step(anchor: F32, momentum: F32, gradient: F32, outer_lr: float, outer_momentum: float, change: F32) -> None:
    """As `outer.outer_step_`, into `change`. Arrays: float32 [n], contiguous; none overlaps another."""
    compiled(_step, _SIGNATURE)(anchor, momentum, gradient, f32(outer_lr), f32(outer_momentum), change)
