"""Makes changes of tensors and counts atomic: an interruption of the training loop comes before or after all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import call

import torch

Change = Callable[[], object]
"""A `functools.partial` of a function not written in Python, such as a tensor's method or `setattr`."""


def at_once(changes: Sequence[Change]) -> None:
    """Make the changes in order.

    Python runs signal handlers, and so raises `KeyboardInterrupt`, only between its own instructions. No Python
    instruction runs between the changes.
    """
    # A mode such as `torch.set_default_device` would run Python code for each operation.
    with torch._C.DisableTorchFunction():
        deque(map(call, changes), maxlen=0)
