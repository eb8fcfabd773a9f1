"""A peer's own contributions to one fragment: told of, under way, and in a commit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.wire.messages import WorkPart


@dataclass(frozen=True, slots=True)
class Sent:
    """Own work that travels: encoded, with what its weight needs (`averaging.wire.messages.Work`).

    `sequence` never repeats on one peer.
    """

    sequence: int
    encoded: EncodedBlocks
    tokens: int
    steps: int
    base_version: int
    parts: tuple[WorkPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Announced:
    """What an offer says about work that is not encoded yet."""

    sequence: int
    tokens: int
    steps: int
    base_version: int
    parts: tuple[WorkPart, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnWork:
    """The fields of `FragmentState` that belong to this peer alone, the residual excepted.

    Kept in checkpoints.

    Attributes:
        pending: the contribution that travels.
        velocity: float32 [num_values]; None when the mode has none or nothing was sent yet. Not a copy.
    """

    unsent_tokens: int = 0
    unsent_steps: int = 0
    unsent_base_version: int = 0
    unsent_parts: tuple[WorkPart, ...] = ()
    own_share: float = 1.0
    shown_share: float = 1.0
    pending: Sent | None = None
    velocity: F32 | None = None


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
