"""Check the answers of the model's process: short, printable texts, and numbers in range. Pure."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dashboard.history_facts import ModelSample, WrittenText
from dashboard.observe.strangers_words import label_text, without_towers
from dashboard.samples.sample_schedule import MAX_PROMPT_LENGTH, MAX_PROMPTS
from peer.view.run_view import RunView

MAX_ANSWER_BYTES: Final = 1 << 20
MAX_TEXT_LENGTH: Final = 1000
"""Characters of a text that are shown and stored."""
MAX_TEXT_LINES: Final = 24
MOST_ROUNDS_APART: Final = 4
"""Largest distance in rounds for each fragment: beyond it, a validation loss does not describe the model that wrote the
text."""
MAX_NUMBER: Final = 2**53 - 1
Count = Annotated[int, Field(ge=0, le=MAX_NUMBER)]


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True)

    problem: str = ""
    lasts: bool = False
    versions: list[Count] = Field(default_factory=list, max_length=65_536)
    tokens: Count = 0
    texts: list[WrittenText] = Field(default_factory=list, max_length=MAX_PROMPTS)


class NoAnswer(Exception):
    """The reason why no sample was made. `lasts`: the reason holds until the run's manifest changes."""

    def __init__(self, why: str, *, lasts: bool = False) -> None:
        super().__init__(why)
        self.lasts = lasts


def read_answer(raw: bytes, at: float, view: RunView) -> ModelSample:
    """Return the sample in the process's answer.

    Args:
        at: time of the request.
        view: the run at that time. Its validation loss is shown beside the text only if it was measured at about that
            time.

    Raises:
        NoAnswer: the process wrote nothing, or its answer is unusable.
    """
    try:
        answer = _Answer.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all"
        raise NoAnswer(f"its answer cannot be used ({where}: {first['msg']})") from error
    if answer.problem:
        raise NoAnswer(label_text(answer.problem, 400), lasts=answer.lasts)
    texts = tuple(
        WrittenText(shown_lines(one.prompt, MAX_PROMPT_LENGTH), shown_lines(one.text, MAX_TEXT_LENGTH))
        for one in answer.texts
    )
    if not any(one.text.strip() for one in texts):
        raise NoAnswer("the model wrote no text that can be shown")
    version, apart = sum(answer.versions), MOST_ROUNDS_APART * len(answer.versions)
    near = view.evaluation
    if near is not None and abs(near.version - version) > apart:
        near = None
    return ModelSample(at, version, answer.tokens, None if near is None else near.loss, texts)


def shown_lines(text: str, max_length: int) -> str:
    """Return a text for display: with its line ends and printable characters; others become U+FFFD."""
    lines = without_towers(text.replace("\r\n", "\n").expandtabs(4)[:max_length]).split("\n")[:MAX_TEXT_LINES]
    return "\n".join("".join(one if one.isprintable() else "\ufffd" for one in line) for line in lines)
