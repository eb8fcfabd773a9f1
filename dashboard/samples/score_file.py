"""Task scores of the model, from a file with output lines of `peer evaluate --tasks ... --json`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dashboard.history_facts import TaskScore
from dashboard.observe.strangers_words import label_text
from dashboard.samples.answer_check import Count
from dht.ground.regular_files import read_regular

LOOK_SECONDS: Final = 10.0
MAX_FILE_BYTES: Final = 4 << 20
"""Size of ten thousand lines with a few tasks each."""
MAX_SCORES: Final = 2000
"""Newest scores to keep; a page draws eight curves of them."""
MAX_NAME_LENGTH: Final = 60
_Real = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]


class _Score(BaseModel):
    model_config = ConfigDict(strict=True)

    task: str = Field(min_length=1)
    metric: str = Field(min_length=1)
    value: float
    error: _Real | None = None
    num_samples: Count = 0


class _Line(BaseModel):
    model_config = ConfigDict(strict=True)

    run_id: str
    versions: list[Count] = Field(min_length=1, max_length=65_536)
    tokens: Count
    scores: list[_Score] | None = Field(None, max_length=MAX_SCORES)


def read_scores(content: bytes, run_id: str) -> tuple[tuple[TaskScore, ...], str]:
    """Return the scores of `run_id` by tokens, oldest first, and the error of the first unusable line.

    The error is empty if all lines are usable. Lines without scores, which `peer evaluate` prints for a held-out loss,
    are skipped.
    """
    found: list[TaskScore] = []
    fault = ""
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found += _scores_of(line, run_id)
        except ValueError as error:
            fault = fault or f"line {number} {error}"
    found.sort(key=lambda score: score.committed_tokens)
    return tuple(found[-MAX_SCORES:]), fault


def _scores_of(line: bytes, run_id: str) -> Iterator[TaskScore]:
    try:
        facts = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"cannot be used ({where + ': ' if where else ''}{first['msg']})") from error
    if facts.run_id != run_id:
        raise ValueError(f"is of run {label_text(facts.run_id, MAX_NAME_LENGTH)}")
    return iter(
        TaskScore(
            task=label_text(score.task, MAX_NAME_LENGTH),
            metric=label_text(score.metric, MAX_NAME_LENGTH),
            value=score.value,
            error=score.error,
            num_samples=score.num_samples,
            committed_tokens=facts.tokens,
            version=sum(facts.versions),
        )
        for score in facts.scores or ()
        if math.isfinite(score.value)
    )


async def follow_scores(
    path: Path,
    run_id: str,
    show: Callable[[tuple[TaskScore, ...]], None],
    tell: Callable[[str], None],
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Read the file whenever it changes, forever. Each new error in it is reported.

    Args:
        show: replaces the displayed scores.
    """
    known: tuple[int, int] | None = None
    told = ""
    while True:
        try:
            stamp = await asyncio.to_thread(_stamp, path)
            if stamp != known:
                content = await asyncio.to_thread(read_regular, path, MAX_FILE_BYTES)
                scores, fault = read_scores(content, run_id)
                show(scores)
                known = stamp
                fault = (
                    fault
                    and f"{fault}; expected lines of `peer evaluate --tasks ... --json`; the other lines are shown"
                )
            else:
                fault = told
        except OSError as error:
            known, fault = None, f"{error.strerror or error}; expected a file of at most {MAX_FILE_BYTES >> 20} MiB; "
            fault += "the page continues without it, and checks it again"
        if fault and fault != told:
            tell(f"--evaluations {path}: {fault}.")
        told = fault
        await wait(LOOK_SECONDS)


def _stamp(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size
