"""Where a run stands: its clock, from what members say of their anchors, and whether it has stalled. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_high
from typing import Final

STALLED_SECONDS: Final = 120.0
"""Without a commit for this long something is wrong: rounds take seconds, and a slow one a minute."""
STALLED_TIMES: Final = 5
"""Of what takes longer in this run, so many times its usual length. One that is late is usual."""


def committed_tokens(lineage_tokens: Iterable[int]) -> int:
    """The run's clock: tokens in the signed commits that led to the anchors, of the fragment that has most.

    Each fragment gets all work of all peers, one after the other: the one that was committed last knows most of it.

    Args:
        lineage_tokens: of each fragment.
    """
    return max(lineage_tokens, default=0)


def usual_clock(lineages: Iterable[Sequence[int]]) -> int:
    """The clock as the middle one of several members tells it, so that one which boasts moves nothing; 0: nobody does.

    Args:
        lineages: of each member its `lineage_tokens` per fragment; those without any do not count.
    """
    clocks = [committed_tokens(tokens) for tokens in lineages if tokens]
    return median_high(clocks) if clocks else 0


def has_stalled(silent_seconds: float, usual_seconds: float) -> bool:
    """Whether something that comes again and again has not come for too long.

    Args:
        silent_seconds: since it last came.
        usual_seconds: from one to the next; 0: not known.
    """
    return silent_seconds > max(STALLED_SECONDS, STALLED_TIMES * usual_seconds)
