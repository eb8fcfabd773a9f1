"""The choices of `PeerConfig` that concern computing an inner step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

from peer.config.peer_config import Attention, OptimizerBits, PeerConfig, Precision


@dataclass(frozen=True, slots=True)
class ComputeChoices:
    """Fields of `PeerConfig` of the same names. The defaults change nothing."""

    precision: Precision = "auto"
    compile: bool = False
    checkpoint_activations: bool = False
    attention: Attention | None = None
    optimizer_bits: OptimizerBits = "32"
    micro_batch: int | None = None

    @classmethod
    def of(cls, config: PeerConfig) -> Self:
        """Return the choices in `config`."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class Tell:
    """Callbacks that receive news about computing.

    Attributes:
        note: receives a sentence.
        smaller: receives the number of sequences per backward pass before memory ran out, and the number now.
        compiling: receives true when compiling the first step begins, and false when it failed and training continues
            without it.
    """

    note: Callable[[str], object] = lambda sentence: None
    smaller: Callable[[int, int], object] = lambda before, now: None
    compiling: Callable[[bool], object] = lambda is_compiling: None
