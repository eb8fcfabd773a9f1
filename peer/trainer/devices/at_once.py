"""Several changes of tensors and counts as one: what interrupts a training loop comes before all of them or after."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import call

import torch

Change = Callable[[], object]
"""A `functools.partial` of a function that is no Python code, such as a tensor's method or `setattr`."""


def at_once(changes: Sequence[Change]) -> None:
    """Make the changes in order.

    Python runs handlers of signals, and so raises `KeyboardInterrupt`, only between its own instructions: here are none
    of them.
    """
    # A mode such as that of `torch.set_default_device` would run Python code for each operation.
    with torch._C.DisableTorchFunction():
        deque(map(call, changes), maxlen=0)
