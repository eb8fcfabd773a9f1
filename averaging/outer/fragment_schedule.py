"""When a peer sends which fragment, by its own steps and speed. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def fragments_due(inner_step: int, sync_every: int, num_fragments: int) -> tuple[int, ...]:
    """Fragments whose outer gradient is sent after `inner_step` finished steps (counted from 1).

    Each fragment is due every `sync_every` (H) steps. Fragments are staggered evenly over the interval so that the line
    carries a constant stream instead of bursts (arXiv 2501.18512, section 2.2). The last fragment is due at multiples
    of H, so that with one fragment this is plain DiLoCo.
    """
    if inner_step < 1 or sync_every < 1:
        return ()
    return tuple(
        fragment
        for fragment in range(num_fragments)
        if inner_step >= sync_every * (fragment + 1) // num_fragments
        and (inner_step - sync_every * (fragment + 1) // num_fragments) % sync_every == 0
    )


MOST_OF_MEDIAN_SPEED = 8.0
"""A phone and a data centre are further apart, but somebody who announces any speed must not make all others send
after every step."""


def fastest_believed(tokens_per_second: Sequence[float], *, is_strict: bool) -> float:
    """The fastest of the announced speeds; where strangers take part, at most some times the median one. Not empty."""
    fastest = max(tokens_per_second)
    known = [speed for speed in tokens_per_second if speed > 0]
    return min(fastest, MOST_OF_MEDIAN_SPEED * statistics.median_low(known)) if is_strict and known else fastest


def effective_sync_every(sync_every: int, tokens_per_second: float, fastest_tokens_per_second: float) -> int:
    """Inner steps between two sends for a peer of this speed: max(1, floor(H * v / v_max)) (arXiv 2401.09135, DyLU).

    A slow peer sends after fewer steps, so that it is ready at about the same time as the fastest one.
    Unknown speeds (0) keep H.
    """
    if tokens_per_second <= 0 or fastest_tokens_per_second <= tokens_per_second:
        return sync_every
    return max(1, int(sync_every * tokens_per_second / fastest_tokens_per_second))
