"""What a volunteer may choose about computing an inner step, out of all the choices of `PeerConfig`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

from peer.config.peer_config import Attention, OptimizerBits, PeerConfig, Precision


@dataclass(frozen=True, slots=True)
class ComputeChoices:
    """Fields of `PeerConfig` of the same names; their defaults change nothing."""

    precision: Precision = "auto"
    compile: bool = False
    checkpoint_activations: bool = False
    attention: Attention | None = None
    optimizer_bits: OptimizerBits = "32"
    micro_batch: int | None = None

    @classmethod
    def of(cls, config: PeerConfig) -> Self:
        """Those of a volunteer."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class Tell:
    """What takes news about computing.

    Attributes:
        note: a sentence.
        smaller: sequences per backward pass before memory ran out, and now.
        compiling: true: the first step is being compiled; false: that failed, and training goes on without it.
    """

    note: Callable[[str], object] = lambda sentence: None
    smaller: Callable[[int, int], object] = lambda before, now: None
    compiling: Callable[[bool], object] = lambda is_compiling: None
