"""The run's clock, from what members say of their anchors. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_high


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
