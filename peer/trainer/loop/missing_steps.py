"""Loops that train beside their session: their optimizer is another one than `join` was given, or was made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dht.ground.errors import UsageFault

MAX_CALLS = 1000
"""Of a loop that reads and reports, without a step: accumulation takes some hundreds."""
PATIENCE_SECONDS = 60.0
"""After which fewer will do: `FEW_CALLS` where parameters moved, `MANY_CALLS` where none has a gradient."""
FEW_CALLS, MANY_CALLS = 20, 100
_FIRST_CALLS = 10
"""No usual step takes as many; from then on it is looked at what happens."""
_NUM_SAMPLED = 64


class MissingSteps:
    """Counts the calls of a loop since the last step of its session.

    Args:
        parameters: what the session trains.
        clock: seconds.
    """

    def __init__(self, parameters: Sequence[Tensor], clock: Callable[[], float]) -> None:
        self._parameters = tuple(parameters)
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """A step was taken, or the loop had nothing to do until now."""
        self._num_calls = 0
        self._since = self._clock()
        self._has_gradient = False
        self._before: list[Tensor] = []

    def called(self) -> None:
        """The loop has read data or reported.

        Raises:
            UsageFault: it must have taken steps meanwhile of which the session knows nothing.
        """
        self._num_calls += 1
        if self._num_calls < _FIRST_CALLS:
            return
        if self._num_calls == _FIRST_CALLS:
            self._before = self._sampled()
        self._has_gradient = self._has_gradient or any(one.grad is not None for one in self._parameters)
        is_late = self._clock() - self._since >= PATIENCE_SECONDS
        if self._num_calls < MAX_CALLS and not (is_late and self._num_calls >= FEW_CALLS):
            return
        is_moved = any(not torch.equal(one, now) for one, now in zip(self._before, self._sampled(), strict=True))
        if is_moved or (not self._has_gradient and self._num_calls >= MANY_CALLS):
            what = "although the parameters changed" if is_moved else "and none of the parameters got a gradient"
            raise UsageFault(
                f"the loop has read data or reported {self._num_calls} times without a step of the optimizer that "
                f"join() was given, {what}; expected steps of that one, and nothing was counted or sent meanwhile; "
                "give join() the module and the optimizer that the loop trains, and join again after making a new one"
            )
        if self._num_calls >= MAX_CALLS:
            self.begin()  # it accumulates

    def _sampled(self) -> list[Tensor]:
        """Some values of the first, the middle and the last parameter, where they are."""
        places = {0, len(self._parameters) // 2, len(self._parameters) - 1} if self._parameters else set()
        return [self._parameters[place].detach().reshape(-1)[:_NUM_SAMPLED].clone() for place in sorted(places)]
