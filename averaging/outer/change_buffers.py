"""Memory for changes of the live parameters: lent repeatedly, or not kept at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from averaging.arrays import F32


class Discarded:
    """Accepts a change that is not needed, part by part, in the memory of its longest part.

    A part keeps its content until the next part is requested.
    """

    def __init__(self) -> None:
        self._part = np.empty(0, dtype=np.float32)

    def __getitem__(self, values: slice) -> F32:
        """Return float32 [stop - start] with arbitrary content."""
        num_values = values.stop - values.start
        if self._part.size < num_values:
            self._part = np.empty(num_values, dtype=np.float32)
        return self._part[:num_values]


Change = F32 | Discarded
"""Change to add to the live parameters of a fragment, float32 [num_values]."""

Deliver = Callable[[int, Change | None, int], None]
"""(fragment, change of the live parameters, version): must not block. The change is overwritten after the return. None:
the content of the live parameters is unknown, so the whole fragment is delivered again."""

Lend = Callable[[int], AbstractContextManager[Change]]
"""Lends memory with arbitrary content for a change of this fragment, until the block ends."""
