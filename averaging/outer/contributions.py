"""A peer's own contributions to one fragment: told of, under way, and what commits made of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.codec.blocks import EncodedBlocks

RECENT_CONTRIBUTIONS = 3
"""Remembered after their round, an eighth of the fragment each at 4 bits: a fork is found within two rounds."""

Ranges = tuple[tuple[int, int], ...]
"""Values [start, end) each."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Own work that travels: encoded, with what its weight needs. `sequence` never repeats on one peer."""

    sequence: int
    encoded: EncodedBlocks
    tokens: int
    steps: int
    base_version: int
    returned_since: int | None = None
    """Version of the oldest round whose returned work is in it."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What an offer says about work that is not encoded yet."""

    sequence: int
    tokens: int
    steps: int
    base_version: int


@dataclass(frozen=True, slots=True)
class Settled:
    """An own contribution of an earlier round, and the values of it that the anchor contains."""

    sent: Sent
    version: int
    committed: Ranges


@dataclass(frozen=True, slots=True)
class CommittedShard:
    """Values [start, end) of a commit: the encoded mean (None: void), its outer lr, and whether own work is in it.

    `outer_momentum` is beta of this commit; None: the rule's.
    """

    start: int
    end: int
    gradient: EncodedBlocks | None
    outer_lr: float
    own_included: bool
    outer_momentum: float | None = None


def oldest_in(sent: Sent, version: int) -> int:
    """The oldest round whose work is in a contribution that was sent for `version`."""
    return version if sent.returned_since is None else min(version, sent.returned_since)


def num_values_in(ranges: Ranges) -> int:
    """How many values the ranges have together; they do not overlap."""
    return sum(end - start for start, end in ranges)


def num_shared(ranges: Ranges, others: Ranges) -> int:
    """Values that are in both."""
    return sum(max(0, min(end, last) - max(start, first)) for start, end in ranges for first, last in others)
