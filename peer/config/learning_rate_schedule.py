"""The manifest's schedule of the inner learning rate, and the factor that follows from it. Pure.

The clock is the run's: tokens in signed commits, as every member knows them (`peer.view.run_clock`). So a peer that
comes late, is slow, or was away has the rate that all others have. What belongs to a peer alone, the warm-up of its own
optimizer's moments, is in `peer/trainer/loop/inner_step.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from dht.ground.quantities import count_text
from peer.config.section import MAX_WHOLE_NUMBER, Section

DECAY_SHARE = 0.2
"""Of the run's tokens, for the decay of wsd: a tenth to a fifth is as good as a whole cosine (arXiv 2405.18392)."""
FLOOR = 0.1
"""Share of the peak at the end of cosine, wsd or a cool-down, as in Chinchilla (arXiv 2203.15556). At no rate
work is what the codec rounded off: sizes of it do not compare, and a robust round would refuse honest members."""


class ScheduleSection(Section):
    """The inner learning rate as a share of its peak, by the tokens that the whole swarm has committed."""

    kind: Literal["constant", "cosine", "wsd"] = Field(
        default="constant",
        description="constant; cosine: half a cosine down to the floor (arXiv 1608.03983). With "
        "wsd it is stable at the peak, then goes down to the floor by 1 - sqrt (arXiv 2405.18392)",
    )
    tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_WHOLE_NUMBER,
        description="of the swarm, at which the schedule ends; with constant only the budget that progress is shown of",
    )

    @property
    def changes_rate(self) -> bool:
        """Whether it ever asks for less than the peak; a budget alone does not."""
        return self.kind != "constant"

    @property
    def in_words(self) -> str:
        """The schedule, for people."""
        name = {"constant": "constant", "cosine": "a cosine", "wsd": "stable, then a decay"}[self.kind]
        return name if self.tokens is None else f"{name} over {count_text(self.tokens)} tokens of the swarm"

    @property
    def decay_length(self) -> int:
        """Tokens of the decay of wsd."""
        return max(1, int(DECAY_SHARE * (self.tokens or 0)))

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.kind != "constant" and self.tokens is None:
            raise ValueError(f"kind is {self.kind!r} without tokens; expected the tokens at which the schedule ends")
        return self


@dataclass(frozen=True, slots=True)
class Cooldown:
    """A descent to the floor that the owner started: its first token on the clock, and its length in tokens."""

    from_tokens: int
    tokens: int


def rate_factor(schedule: ScheduleSection, tokens: int, cooldown: Cooldown | None = None) -> float:
    """The inner learning rate as a share of its peak when the clock shows `tokens`: 0 to 1, the same on every peer.

    A cool-down goes linearly from the share that the schedule had at its beginning to the floor, and the schedule stays
    an upper bound.
    """
    factor = _scheduled(schedule, tokens)
    if cooldown is None or tokens < cooldown.from_tokens:
        return factor
    began_at = max(FLOOR, _scheduled(schedule, cooldown.from_tokens))
    left = 1.0 - min(1.0, (tokens - cooldown.from_tokens) / cooldown.tokens)
    return min(factor, FLOOR + (began_at - FLOOR) * left)


def progress_of(schedule: ScheduleSection, tokens: int) -> float | None:
    """What of the budget is done, 0 to 1; None: the run has none."""
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
