"""The manifest's schedule of the inner learning rate, and the factor that results from it. Pure.

The schedule follows the run's clock, the number of tokens in signed commits (`peer.view.run_clock`). Therefore a peer
that is late, slow or was away has the same rate as all other peers. Each peer's own warm-up of its optimizer's moments
is in `peer/trainer/loop/inner_step.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from dht.ground.quantities import count_text
from peer.config.section import MAX_WHOLE_NUMBER, Section

DECAY_SHARE = 0.2
"""Share of the run's tokens over which wsd decays; a tenth to a fifth matches a whole cosine (arXiv 2405.18392)."""
FLOOR = 0.1
"""Share of the peak at the end of cosine, wsd or a cool-down, as in Chinchilla (arXiv 2203.15556). At a rate of zero,
work would consist only of the codec's rounding errors: their norms do not compare, and a robust round would refuse
honest members."""


class ScheduleSection(Section):
    """The inner learning rate as a share of its peak, which depends on the tokens that the swarm has committed."""

    kind: Literal["constant", "cosine", "wsd"] = Field(
        default="constant",
        description="constant: always the peak; cosine: half a cosine from the peak to a tenth of it (arXiv "
        "1608.03983); wsd: the peak, then a decay to a tenth of it by 1 - sqrt (arXiv 2405.18392)",
    )
    tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_WHOLE_NUMBER,
        description="number of tokens committed by the swarm at which the schedule ends; with constant, only the "
        "budget for the progress bar",
    )

    @property
    def changes_rate(self) -> bool:
        """Whether the rate ever falls below its peak; a budget alone does not lower the rate."""
        return self.kind != "constant"

    @property
    def in_words(self) -> str:
        """A description of the schedule for people."""
        name = {"constant": "constant", "cosine": "a cosine", "wsd": "stable, then a decay"}[self.kind]
        return name if self.tokens is None else f"{name} over {count_text(self.tokens)} tokens of the swarm"

    @property
    def decay_length(self) -> int:
        """Number of tokens over which wsd decays."""
        return max(1, int(DECAY_SHARE * (self.tokens or 0)))

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.kind != "constant" and self.tokens is None:
            raise ValueError(
                f"kind is {self.kind!r} without tokens; expected the number of tokens at which the schedule ends"
            )
        return self


@dataclass(frozen=True, slots=True)
class Cooldown:
    """The owner's cool-down of the rate to the floor: its first token on the run's clock, and its length in tokens."""

    from_tokens: int
    tokens: int


def rate_factor(schedule: ScheduleSection, tokens: int, cooldown: Cooldown | None = None) -> float:
    """Return the inner learning rate at `tokens` on the run's clock as a share of its peak, 0 to 1.

    The share is the same on every peer. A cool-down falls linearly to the floor, from the scheduled share at the start
    of the cool-down. The schedule stays an upper bound.
    """
    factor = _scheduled(schedule, tokens)
    if cooldown is None or tokens < cooldown.from_tokens:
        return factor
    began_at = max(FLOOR, _scheduled(schedule, cooldown.from_tokens))
    left = 1.0 - min(1.0, (tokens - cooldown.from_tokens) / cooldown.tokens)
    return min(factor, FLOOR + (began_at - FLOOR) * left)


def progress_of(schedule: ScheduleSection, tokens: int) -> float | None:
    """Return the completed share of the budget, 0 to 1, or None if the run has no budget."""
    return None if schedule.tokens is None else min(1.0, tokens / schedule.tokens)


def _scheduled(schedule: ScheduleSection, tokens: int) -> float:
    if schedule.kind == "constant" or schedule.tokens is None:
        return 1.0
    if schedule.kind == "cosine":
        done = _share(tokens, schedule.tokens)
        return FLOOR + (1.0 - FLOOR) * 0.5 * (1.0 + math.cos(math.pi * done))
    done = _share(tokens - (schedule.tokens - schedule.decay_length), schedule.decay_length)
    return FLOOR + (1.0 - FLOOR) * (1.0 - math.sqrt(done))


def _share(done: int, whole: int) -> float:
    return min(1.0, max(0.0, done / whole)) if whole else 1.0
