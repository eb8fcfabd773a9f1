"""When a peer sends each fragment, by its steps and speed. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


class SendSchedule:
    """Schedule that returns the due fragments after each inner step, at an interval that may change from step to step.

    Each fragment is due every `sync_every` (H) steps. Fragments are staggered evenly over the interval so that the line
    carries a constant stream instead of bursts (arXiv 2501.18512, section 2.2). At a constant interval the last
    fragment is due at multiples of H, so that with one fragment this is plain DiLoCo.

    When H changes, the remaining time until each send changes in proportion. The measured H of equal machines flickers
    between two numbers. If sends were at multiples of H, each flicker would move a peer to another place in the
    interval, and the others would wait for it there.

    Args:
        sync_every: H at the beginning, at least 1.
        inner_step: finished steps at the beginning, counted as if H had always been the same.
    """

    def __init__(self, sync_every: int, num_fragments: int, inner_step: int = 0) -> None:
        self._sync_every = sync_every
        firsts = [sync_every * (fragment + 1) // num_fragments for fragment in range(num_fragments)]
        self._steps_left = [
            float(first - inner_step if inner_step < first else sync_every - (inner_step - first) % sync_every)
            for first in firsts
        ]

    def after_step(self, sync_every: int) -> tuple[int, ...]:
        """Return the fragments that are due after one more inner step, at the present interval (at least 1)."""
        ratio, self._sync_every = sync_every / self._sync_every, sync_every
        self._steps_left = [left * ratio - 1 for left in self._steps_left]
        # After a change of the interval, a send may be due between two steps and happens after the nearer one.
        due = tuple(fragment for fragment, left in enumerate(self._steps_left) if left < 0.5)
        for fragment in due:
            self._steps_left[fragment] += sync_every
        return due


MOST_OF_MEDIAN_SPEED = 8.0
"""A phone and a data centre are further apart, but a peer that announces an extreme speed must not make all others send
after each step."""


def fastest_believed(tokens_per_second: Sequence[float], *, is_strict: bool) -> float:
    """Return the fastest announced speed; if strangers take part, limited to a multiple of the median. Not empty."""
    fastest = max(tokens_per_second)
    known = [speed for speed in tokens_per_second if speed > 0]
    return min(fastest, MOST_OF_MEDIAN_SPEED * statistics.median_low(known)) if is_strict and known else fastest


def effective_sync_every(sync_every: int, tokens_per_second: float, fastest_tokens_per_second: float) -> int:
    """Return the inner steps between two sends for a peer of this speed: max(1, floor(H * v / v_max)) (arXiv
    2401.09135, DyLU).

    A slow peer sends after fewer steps, so it is ready at about the same time as the fastest one. Unknown speeds (0)
    keep H.
    """
    if tokens_per_second <= 0 or fastest_tokens_per_second <= tokens_per_second:
        return sync_every
    return max(1, int(sync_every * tokens_per_second / fastest_tokens_per_second))
