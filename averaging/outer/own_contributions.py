"""A peer's own contributions to one fragment: in flight and committed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.wire.messages import WorkPart


@dataclass(frozen=True, slots=True)
class Sent:
    """Own work in flight: encoded, with the numbers that determine its weight (`averaging.wire.messages.Work`).

    `parts` gives these numbers for each range of values, if they differ; empty: they apply to all values.

    `sequence` never repeats on one peer: `Exchange` counts up, and begins above all numbers of earlier processes.
    """

    sequence: int
    encoded: EncodedBlocks
    tokens: int
    steps: int
    base_version: int
    parts: tuple[WorkPart, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnWork:
    """The fields of `FragmentState` that belong only to this peer, without the residual.

    Checkpoints contain these fields, so that work survives a restart and a contribution under way is not added twice.

    Attributes:
        unsent_tokens, unsent_steps, unsent_base_version, unsent_parts: the work that waits in the residual, as in
            `averaging.wire.messages.Work`: `unsent_parts` give its numbers by range of values, if ranges differ.
        own_share: this peer's share of the weights in the last commit with own work.
        shown_share: the share with which the overlay shows `pending`.
        pending: the contribution in flight.
        velocity: float32 [num_values], not a copy; None if the mode has none or nothing was sent.
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
    """Values [start, end) of a commit: the encoded mean (None: void), the outer learning rate, and whether own work is
    included.

    `outer_momentum` is beta of this commit; None: that of the rule.
    """

    start: int
    end: int
    gradient: EncodedBlocks | None
    outer_lr: float
    own_included: bool
    outer_momentum: float | None = None
