"""The manifest's section on the inner loop: optimizer, batch and rate."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dht.ground.errors import UsageFault
from dht.ground.quantities import count_text
from peer.config.learning_rate_schedule import ScheduleSection
from peer.config.section import Section, later


class TrainingSection(Section):
    """The inner loop: AdamW (arXiv 1711.05101) or Muon, each peer's own warm-up, and the run's schedule of the rate."""

    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="inner optimizer; muon: orthogonalised momentum for the matrices between hidden layers, AdamW for "
        "the rest (arXiv 2505.23725, 2502.16982)",
    )
    batch_size: int = Field(default=8, ge=1, le=65_536, description="sequences per backward pass")
    learning_rate: float = Field(default=3e-3, gt=0, le=10, description="peak inner learning rate")
    warmup_steps: int = Field(
        default=50, ge=0, le=10**7, description="inner steps of linear warm-up of each new optimizer"
    )
    weight_decay: float = Field(default=0.1, ge=0, le=10, description="decoupled weight decay (arXiv 1711.05101)")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW decay of the first moment (arXiv 1412.6980)")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW decay of the second moment (arXiv 1412.6980)")
    grad_clip: float = Field(default=1.0, gt=0, le=1e6, description="largest global gradient norm (arXiv 1211.5063)")
    accumulation_steps: int = Field(default=1, ge=1, le=65_536, description="backward passes per inner step")
    total_steps: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="each peer's own inner steps of a cosine to a tenth (arXiv 1608.03983), wherever the run is; "
        "absent: none. training.schedule is better",
    )
    schedule: ScheduleSection = later(ScheduleSection())

    @property
    def rate_in_words(self) -> str:
        """How the inner learning rate goes, for people."""
        if self.schedule.changes_rate:
            return f"{self.learning_rate:g} at its peak, {self.schedule.in_words}"
        if self.total_steps is not None:
            return f"{self.learning_rate:g} at its peak, a cosine over {self.total_steps} steps of each peer's own"
        return f"{self.learning_rate:g} and never less; training.schedule lets it fall"

    @property
    def batch_in_words(self) -> str:
        """How many sequences an inner step takes, for people."""
        whole, over = self.batch_size * self.accumulation_steps, self.schedule.batch_warmup_tokens
        grown = f", {whole} from {count_text(over)} tokens of the swarm on" if over else ""
        return f"{self.batch_size if over else whole} sequences per inner step{grown}"

    def passes_at(self, tokens: int) -> int:
        """Backward passes of an inner step when the run's clock shows `tokens`, the same on every peer."""
        whole, over = self.accumulation_steps, self.schedule.batch_warmup_tokens
        return whole if tokens >= over else 1 + (whole - 1) * max(0, tokens) // over

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.total_steps is not None and self.total_steps <= self.warmup_steps:
            raise ValueError(
                f"total_steps is {self.total_steps} with warmup_steps {self.warmup_steps}; "
                "expected more than warmup_steps"
            )
        if self.schedule.batch_warmup_tokens and self.accumulation_steps == 1:
            got = f"schedule.batch_warmup_tokens is {self.schedule.batch_warmup_tokens} with accumulation_steps 1"
            raise ValueError(f"{got}; expected more than 1: a step grows from one pass to accumulation_steps of them")
        if self.total_steps is not None and self.schedule != ScheduleSection():
            raise ValueError(
                f"total_steps is {self.total_steps} beside a schedule; expected one of them: total_steps counts each "
                "peer's own steps, schedule.tokens those of the whole swarm; remove total_steps"
            )
        return self


def check_optimizer_bits(optimizer: str, bits: str) -> None:
    """Whether moments of a run's inner optimizer may have so few bits (`--optimizer-bits`).

    Raises:
        UsageFault: it has none of that size.
    """
    if bits != "32" and optimizer != "adamw":
        raise UsageFault(
            f"--optimizer-bits {bits} was given, and the run's inner optimizer is {optimizer}; expected adamw; leave "
            "it out."
        )
