"""Whether a peer's own work is so long that its machine, not its training, made it. Pure."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from averaging.arrays import F32
from averaging.outer.outer_step import CHUNK_VALUES
from averaging.outer.robust_mean import LARGEST_VALUE

NUM_COMPARED = 8
FEWEST_COMPARED = 3
"""Of fewer, one that was short by chance (a warm-up's first step) decides what is usual."""
MOST_OF_USUAL = 1000.0
"""A learning rate ten times as high, or as many more steps, stays far below; a flipped exponent does not."""


@dataclass
class UsualWork:
    """The last own contributions to one fragment: their lengths and inner steps. Zero work does not count.

    Work that was withheld counts as well. So a peer whose work became that much longer for good goes on after a few
    rounds, as with a learning rate that its schedule raises from nearly zero.
    """

    _lengths: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_COMPARED))
    _steps: deque[int] = field(default_factory=lambda: deque(maxlen=NUM_COMPARED))

    def objection(self, length: float, steps: int) -> str:
        """Why no training explains work of this length, or an empty text. Remembers the work.

        Args:
            length: Euclidean norm; infinite where its square leaves float32.
        """
        times = self._times_usual(length, steps)
        if 0 < length <= LARGEST_VALUE:
            self._lengths.append(length)
            self._steps.append(steps)
        if not length <= LARGEST_VALUE:
            return "its values are beyond anything that trains"
        return f"it is {times:.3g} times as long as usual" if times > MOST_OF_USUAL else ""

    def _times_usual(self, length: float, steps: int) -> float:
        if len(self._lengths) < FEWEST_COMPARED:
            return 0.0
        # A run may ask for more steps between two sends.
        longer = max(1.0, steps / statistics.median(self._steps))
        return length / (statistics.median(self._lengths) * longer)


def length_of(values: F32) -> float:
    """Euclidean norm of float32 [n] in one pass on one thread; infinite where squares leave float32."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, values.size, CHUNK_VALUES):
            part = values[start : start + CHUNK_VALUES]
            total += float(np.einsum("i,i->", part, part))
    return math.sqrt(total)
