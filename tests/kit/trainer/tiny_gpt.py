"""The built-in GPT in a size that trains in milliseconds, and settings of an inner loop for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peer.trainer.model.gpt import GPT, initialise

CONTEXT = 16


@dataclass(frozen=True)
class Settings:
    """The manifest's training section, as the inner loop reads it."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    batch_size: int = 4
    accumulation_steps: int = 1
    learning_rate: float = 3e-3
    warmup_steps: int = 5


def model_of(seed: int = 0) -> GPT:
    """One layer of 16, with initial values of `seed`."""
    model = GPT(num_layers=1, d_model=16, num_heads=2, vocab_size=256, context=CONTEXT)
    initialise(model, seed)
    return model
