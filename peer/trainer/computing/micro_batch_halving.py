"""Sequences in one backward pass: as many as fit. The step's batch is the run's, whatever the number of passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peer.trainer.computing.memory_exceptions import is_about_memory

_Result = TypeVar("_Result")


class MicroBatch:
    """A size that is halved whenever memory runs out.

    Args:
        size: sequences to begin with, at least 1.
        may_halve: whether a step can be computed again from its start; not where other processes take part in it.
        tell: called with the size before and the size that fitted, once it has.
    """

    def __init__(self, size: int, *, may_halve: bool, tell: Callable[[int, int], object]) -> None:
        self.size = size
        self._may_halve = may_halve
        self._tell = tell

    def parts(self, positions: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """int64 [n] in parts of at most `size`."""
        return (positions[start : start + self.size] for start in range(0, len(positions), self.size))

    def fitting(self, compute: Callable[[], _Result], forget: Callable[[], object]) -> _Result:
        """What `compute` gives, called again with half the size until its memory suffices.

        Args:
            forget: lets go of what an unfinished `compute` left behind.

        Raises:
            Exception: of `compute`; one about memory when a single sequence does not fit.
        """
        before = self.size
        while True:
            try:
                result = compute()
            except (RuntimeError, MemoryError) as error:
                if self.size == 1 or not self._may_halve or not is_about_memory(error):
                    raise
            else:
                break
            # Only here are the frames of the exception, with the tensors in them, gone.
            self.size //= 2
            forget()
        if self.size < before:
            self._tell(before, self.size)
        return result
