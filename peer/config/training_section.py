"""The manifest's section on the inner loop: optimizer, batch and rate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dht.ground.errors import UsageFault
from peer.config.learning_rate_schedule import ScheduleSection
from peer.config.section import Section


class TrainingSection(Section):
    """The inner loop: the optimizer, the batch, each peer's own warm-up, and the run's learning-rate schedule."""

    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="inner optimizer; adamw: arXiv 1711.05101; muon: orthogonalised momentum for the matrices between "
        "hidden layers, AdamW for all other parameters (arXiv 2505.23725, 2502.16982)",
    )
    batch_size: int = Field(default=8, ge=1, le=65_536, description="number of sequences per backward pass")
    learning_rate: float = Field(default=3e-3, gt=0, le=10, description="peak inner learning rate")
    warmup_steps: int = Field(
        default=50, ge=0, le=10**7, description="number of inner steps over which each new optimizer warms up linearly"
    )
    accumulation_steps: int = Field(default=1, ge=1, le=65_536, description="number of backward passes per inner step")
    schedule: ScheduleSection = Field(default=ScheduleSection())

    @property
    def rate_in_words(self) -> str:
        """A description of the inner learning rate for people."""
        if self.schedule.changes_rate:
            return f"{self.learning_rate:g} at its peak, {self.schedule.in_words}"
        return f"{self.learning_rate:g} throughout; training.schedule can lower it"


def check_optimizer_bits(optimizer: str, bits: str) -> None:
    """Check that the run's inner optimizer can store its moments in `bits` bits (`--optimizer-bits`).

    Raises:
        UsageFault: the optimizer has no moments of that size.
    """
    if bits != "32" and optimizer != "adamw":
        raise UsageFault(
            f"--optimizer-bits {bits} was given, but the run's inner optimizer is {optimizer}; expected adamw; omit "
            "--optimizer-bits."
        )
