"""Where changes for the live parameters are written: memory that is lent again and again, or none at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from averaging.arrays import F32


class Discarded:
    """Takes a change that nobody will see, part after part, in the memory of its longest part.

    A part keeps its content until the next one is asked for.
    """

    def __init__(self) -> None:
        self._part = np.empty(0, dtype=np.float32)

    def __getitem__(self, values: slice) -> F32:
        """Float32 [stop - start], with any content."""
        num_values = values.stop - values.start
        if self._part.size < num_values:
            self._part = np.empty(num_values, dtype=np.float32)
        return self._part[:num_values]


Change = F32 | Discarded
"""What to add to the live parameters of a fragment, float32 [num_values]."""

Deliver = Callable[[int, Change | None, int], None]
"""(fragment, change of the live parameters, version): must not block. The change is overwritten once it returns. None:
the content of the live parameters is no longer known, so the whole fragment is delivered again."""

Lend = Callable[[int], AbstractContextManager[Change]]
"""Memory with any content for a change of this fragment; it is somebody else's when the block ends."""
