"""A peer's own contributions to one fragment: told of, under way, and what commits made of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from averaging.arrays import F32
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
    """A contribution of this peer to an earlier round, and the values of it that the anchor contains."""

    sent: Sent
    version: int
    committed: Ranges


@dataclass(frozen=True, slots=True)
class OwnWork:
    """The fields of `FragmentState` that belong to this peer alone, the residual excepted.

    Kept in checkpoints, so that a peer that returns can tell which of its work the swarm has, and none comes twice.

    Attributes:
        pending: the contribution that travels.
        recent: contributions of the last rounds, oldest first.
        velocity: float32 [num_values]; None when the mode has none or nothing was sent yet. Not a copy.
        dropped: see `FragmentState`.
    """

    unsent_tokens: int = 0
    unsent_steps: int = 0
    unsent_base_version: int = 0
    own_share: float = 1.0
    shown_share: float = 1.0
    num_rounds: int = 0
    returned_since: int | None = None
    pending: Sent | None = None
    recent: tuple[Settled, ...] = ()
    velocity: F32 | None = None
    dropped: tuple[tuple[int, int], ...] = ()

    @property
    def last_sequence(self) -> int:
        """Of the newest contribution known here; -1 without any."""
        newest = [*(entry.sent.sequence for entry in self.recent), *(sequence for sequence, _ in self.dropped)]
        return max(newest if self.pending is None else [*newest, self.pending.sequence], default=-1)


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


def is_fate_known(left_version: int, version: int, last_sequence: int, own: Mapping[int, tuple[int, Ranges]]) -> bool:
    """Whether the commits from `left_version` to `version` show that nothing was sent after `last_sequence`.

    Args:
        own: per version whose commit is known: (sequence of this peer's contribution in it or -1, its committed
            values).
    """
    return all(between in own and own[between][0] <= last_sequence for between in range(left_version, version))
