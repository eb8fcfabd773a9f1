"""Detect own work that is so long that a fault of the machine, not training, made it. Pure."""

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
"""With fewer, one short contribution (such as a warm-up's first step) would decide what is typical."""
MOST_OF_USUAL = 1000.0
"""Ten times the learning rate or the number of steps stays far below this; a flipped exponent bit does not."""


@dataclass
class UsualWork:
    """Lengths and inner steps of the last own contributions to one fragment. Zero work does not count.

    Withheld work counts as well. A peer whose work became permanently longer therefore continues after a few rounds,
    for example when its schedule raises the learning rate from nearly zero.
    """

    _lengths: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_COMPARED))
    _steps: deque[int] = field(default_factory=lambda: deque(maxlen=NUM_COMPARED))

    def objection(self, length: float, steps: int) -> str:
        """Return why training cannot explain work of this length, or an empty text. Remembers the work.

        Args:
            length: Euclidean norm; infinite if its square overflows float32.
        """
        times = self._times_usual(length, steps)
        if 0 < length <= LARGEST_VALUE:
            self._lengths.append(length)
            self._steps.append(steps)
        if not length <= LARGEST_VALUE:
            return "its values are larger than training can produce"
        return f"its norm is {times:.3g} times the usual norm" if times > MOST_OF_USUAL else ""

    def _times_usual(self, length: float, steps: int) -> float:
        if len(self._lengths) < FEWEST_COMPARED:
            return 0.0
        # The number of steps between two sends may grow during a run.
        longer = max(1.0, steps / statistics.median(self._steps))
        return length / (statistics.median(self._lengths) * longer)


def length_of(values: F32) -> float:
    """Return the Euclidean norm of float32 [n], computed in one pass on one thread; infinite if squares overflow
    float32.
    """
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, values.size, CHUNK_VALUES):
            part = values[start : start + CHUNK_VALUES]
            total += float(np.einsum("i,i->", part, part))
    return math.sqrt(total)
