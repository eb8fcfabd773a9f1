"""The API's answers about the model itself: what it wrote, and its scores."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from dashboard.server.api_answers import Answer, Model, Number, TextOrNull, answer_of
from dashboard.server.api_queries import Query
from dashboard.server.handler_context import Site

COMPUTED: Final = "computed"
"""This page's own machine computed it."""


class SampleText(Model):
    """What the model wrote after a prompt; an empty prompt is null."""

    prompt: TextOrNull
    text: str


class WrittenSample(Model):
    at: Number
    version: int
    committed_tokens: int = Field(validation_alias="tokens")
    validation_loss: Number | None
    texts: list[SampleText]


class Samples(Answer):
    samples: list[WrittenSample]


class Evaluation(Model):
    task: str
    metric: str
    value: Number
    error: Number | None
    num_samples: int
    committed_tokens: int = Field(validation_alias="tokens")
    version: int


class Evaluations(Answer):
    evaluations: list[Evaluation]


async def samples(site: Site, query: Query) -> Samples:
    """What the committed model wrote over time, oldest first: asked by this page, from anchors that members confirm."""
    return answer_of(Samples, site, COMPUTED)


async def evaluations(site: Site, query: Query) -> Evaluations:
    """The model's scores in tasks over tokens, as the owner of this page measured them."""
    return answer_of(Evaluations, site, COMPUTED, evaluations=site.live.history.scores)
