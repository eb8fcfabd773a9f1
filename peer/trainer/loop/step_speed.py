"""How fast a trainer's usual inner step is: a median, so that a gap between two steps is no sample. Pure.

A machine that slept, a validation, a checkpoint, a recompilation or a clock that was set makes one or a few steps look
slow. In a running mean one hour of sleep hides the speed for many steps; here it is one of `NUM_STEPS` values.

The median is weighted by tokens. At least half of the window's tokens took as long per token or longer. So a window is
trained at no more than twice the speed that is told. What others hold against a claim
(`averaging.trust.exclusions.TOKENS_MARGIN`) leaves room for that.
"""

from __future__ import annotations

from collections import deque

NUM_STEPS = 32
"""Fewer than half of them may be slow at once: a compiler that starts anew, a validation after every third step. A
change of the machine's speed is told after 16 steps."""


class StepSpeed:
    """Seconds and tokens of the last inner steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=NUM_STEPS)

    def note(self, seconds: float, num_tokens: int) -> None:
        """An inner step of `num_tokens` took so long. No time and no tokens tell nothing."""
        if seconds > 0 and num_tokens > 0:
            self._steps.append((seconds / num_tokens, num_tokens))

    @property
    def tokens_per_second(self) -> float:
        """Of the usual step; 0 before the first."""
        left = sum(num_tokens for _, num_tokens in self._steps) / 2
        for seconds_per_token, num_tokens in sorted(self._steps):
            left -= num_tokens
            if left <= 0:
                return 1 / seconds_per_token
        return 0.0
