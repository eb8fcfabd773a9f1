"""Float buffers that are lent again and again: the first touch of fresh memory costs more than the arithmetic on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Buffers:
    """At most one buffer is kept while none is lent; as many are lent as are asked for."""

    def __init__(self) -> None:
        self._spare: Tensor | None = None

    @contextmanager
    def lent(self, num_values: int) -> Iterator[Tensor]:
        """A tensor, float32 [num_values], with any content; it is somebody else's when the block ends."""
        buffer, self._spare = self._spare, None
        if buffer is None or buffer.numel() < num_values:
            buffer = torch.empty(num_values)
        try:
            yield buffer[:num_values]
        finally:
            if self._spare is None or self._spare.numel() < buffer.numel():
                self._spare = buffer
