"""What somebody has reached, on which day, and what comes next. All of it follows from signed commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dashboard.history_facts import DayOfWork
from dht.ground.quantities import plural, words_text

SECONDS_PER_DAY: Final = 86_400
ROUNDS: Final = (1, 10, 100, 1000, 10_000, 100_000)
TOKENS: Final = tuple(step * 10**power for power in range(3, 15) for step in (1, 2, 5))
STREAKS: Final = (2, 7, 30, 100, 365)
SPEED_DAYS: Final = 7
"""The estimate of the next milestone goes by the mean of so many days."""
MAX_ESTIMATE_SECONDS: Final = 400.0 * SECONDS_PER_DAY
"""Beyond a year a date is a guess."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """One that was reached on `day` (since 1970, UTC)."""

    text: str
    day: int

    @property
    def at(self) -> float:
        """Unix seconds of that day's beginning."""
        return float(self.day * SECONDS_PER_DAY)


@dataclass(frozen=True, slots=True)
class NextMilestone:
    """The next number of tokens."""

    tokens: int
    share: float
    """Of the way there, from nothing, 0 to 1."""
    at: float | None
    """Unix seconds at the speed of the last days; None: not within a year, or there is no speed."""


def reached(days: Sequence[DayOfWork], counted: str = "tokens") -> tuple[Milestone, ...]:
    """Milestones that `days` (oldest first) came to, the newest first; of tokens only 1, 10, 100 and so on."""
    milli = rounds = streak = 0
    before = -2
    found: list[Milestone] = []
    best = {"rounds": 0, "tokens": 0, "streak": 0}

    def pass_by(kind: str, steps: Sequence[int], value: float, text: Callable[[int], str], day: int) -> None:
        for step in steps:
            if best[kind] < step <= value:
                best[kind] = step
                found.append(Milestone(text(step), day))

    powers = [step for step in TOKENS if str(step)[0] == "1"]
    for one in days:
        milli, rounds = milli + one.milli_witnessed, rounds + one.rounds
        streak = streak + 1 if one.day == before + 1 else 1
        before = one.day
        pass_by("rounds", ROUNDS, rounds, lambda step: "first round" if step == 1 else plural(step, "round"), one.day)
        pass_by("tokens", powers, milli / 1000, lambda step: f"{words_text(step)} {counted}", one.day)
        pass_by("streak", STREAKS, streak, lambda step: f"{step} days in a row", one.day)
    return tuple(reversed(found))


def next_milestone(milli_witnessed: int, days: Sequence[DayOfWork], first_at: float, now: float) -> NextMilestone:
    """The next number of tokens, and when it comes at the speed of the last days (times in unix seconds)."""
    tokens = milli_witnessed / 1000
    target = next((step for step in TOKENS if step > tokens), 10 * TOKENS[-1])
    first_day = int(now // SECONDS_PER_DAY) - SPEED_DAYS + 1
    recent = sum(one.milli_witnessed for one in days if one.day >= first_day) / 1000
    seconds = now - max(first_at, first_day * SECONDS_PER_DAY)
    if recent <= 0 or seconds <= 0:
        return NextMilestone(target, tokens / target, None)
    wait = (target - tokens) * seconds / recent
    return NextMilestone(target, tokens / target, now + wait if wait <= MAX_ESTIMATE_SECONDS else None)
