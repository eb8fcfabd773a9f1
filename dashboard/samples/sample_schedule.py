"""Prompts and times for samples of the model's text. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dashboard.history_facts import ModelSample
from dht.ground.errors import UsageFault

EVERY_SECONDS: Final = 3600.0
MIN_SECONDS: Final = 20.0
"""Seconds between two tries: loading torch and the model takes about as long on a small machine."""
MAX_SECONDS: Final = 31 * 86_400.0
_UNIT_SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
FIRST_SECONDS: Final = 60.0
"""First time between two samples; it doubles, since a model learns most at the beginning."""
PROMPTS: Final = ("", "The ")
MAX_PROMPTS: Final = 8
MAX_PROMPT_LENGTH: Final = 200
MAX_TOKENS: Final = 200
TEMPERATURE: Final = 0.8
"""Values below 1 prefer likelier words, as in `peer sample`."""
SEED: Final = 1
KEPT: Final = 200
"""Samples of a run; a month of hours and the first day give 15 for each doubling of the time."""


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """Options of a page's owner for samples.

    Attributes:
        every_seconds: the longest time between two samples.
        prompts: texts that the model continues.
        base: folder with the base weights of an adapter; empty: the hub's weights, if the run refers to the hub.
    """

    every_seconds: float = EVERY_SECONDS
    prompts: tuple[str, ...] = PROMPTS
    base: str = ""


def sample_plan(every: str, prompts: Sequence[str], base: Path | None = None) -> SamplePlan | None:
    """Return the plan from command-line flags; None: no samples.

    Args:
        every: ``1h``, ``20min``, ``90s``, ``1d`` or ``never``.
        prompts: empty: `PROMPTS`.
        base: see `SamplePlan`.

    Raises:
        UsageFault: a flag is wrong.
    """
    if len(prompts) > MAX_PROMPTS:
        raise UsageFault(
            f"--prompt was given {len(prompts)} times; expected at most {MAX_PROMPTS}, because the model continues "
            "each of them every time; leave some out"
        )
    for prompt in prompts:
        if len(prompt) > MAX_PROMPT_LENGTH:
            raise UsageFault(
                f"--prompt has {len(prompt)} characters; expected at most {MAX_PROMPT_LENGTH}; give a shorter prompt"
            )
    if every == "never":
        if prompts:
            raise UsageFault("--prompt and --samples-every never were given together; expected only one of them")
        return None
    if base is not None and not base.is_dir():
        raise UsageFault(
            f"--base is {str(base)[:200]!r}, which is not a folder on this machine; expected a folder with the weights "
            "on which the run's adapter is based"
        )
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(s|min|h|d)", every)
    seconds = math.nan if found is None else float(found[1]) * _UNIT_SECONDS[found[2]]
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise UsageFault(
            f"--samples-every is {every[:40]!r}; expected a time from {MIN_SECONDS:.0f}s to "
            f"{MAX_SECONDS / 86_400:.0f}d such as 90s, 20min, 1h or 1d, or never"
        )
    return SamplePlan(seconds, tuple(prompts) or PROMPTS, str(base.resolve()) if base is not None else "")


def next_at(plan: SamplePlan, samples: tuple[ModelSample, ...]) -> float:
    """Return the time of the next sample, in unix seconds; 0 before the first.

    The time after the newest sample is at least the time from the first to the newest, from `FIRST_SECONDS` to
    `every_seconds`.
    """
    if not samples:
        return 0.0
    age = samples[-1].at - samples[0].at
    return samples[-1].at + min(max(age, FIRST_SECONDS), plan.every_seconds)


def kept(samples: tuple[ModelSample, ...], most: int = KEPT) -> tuple[ModelSample, ...]:
    """Return at most `most` samples, dropping those that are closest to each other for their age in the run.

    The first and the newest always stay.
    """
    found = list(samples)
    while len(found) > most:
        begin_at = found[0].at
        gaps = [
            (found[place + 1].at - found[place - 1].at) / (found[place].at - begin_at + FIRST_SECONDS)
            for place in range(1, len(found) - 1)
        ]
        del found[1 + gaps.index(min(gaps))]
    return tuple(found)
