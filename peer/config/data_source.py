"""The manifest's section on data: the permitted sources, and the data that a volunteer's machine reads. Pure.

A stranger may have signed the manifest. The manifest may name data that every machine has (`stdlib:`) or can download
(`hf:`, `https:`), or the kind of data that each volunteer brings (`text:`, `jsonl:`, `parquet:`, `tokens:`). A path
would refer to the volunteer's machine, and training data can be extracted from a model. Therefore paths come only from
the volunteer's own `--data` or configuration.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from dht.ground.errors import UsageFault
from peer.config.section import DIGEST, LINE_OF_TEXT, Section
from peer.config.validation_sentences import shown

LIBRARY = "stdlib:"
"""Data that every machine has: the text of Python's standard library."""
TEXT, JSON_LINES, PARQUET, TOKENS = "text:", "jsonl:", "parquet:", "tokens:"
"""Files or folders of a volunteer: text, rows with text, or shards of tokens."""
HUB, WEB = "hf:", "https:"
"""A data set on the Hugging Face hub at a revision, and the meta.json of prepared shards on a web server."""

_WORD = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
HUB_PATTERN = rf"hf:{_WORD}/{_WORD}@{_WORD}(?:/{_WORD})*(?::{_WORD})?"
WEB_PATTERN = r"https://[A-Za-z0-9.-]+(?::[0-9]+)?/(?:[A-Za-z0-9_.~%/-]+/)?meta\.json"
_KINDS = (TEXT, JSON_LINES, PARQUET, TOKENS)
_HERE = r"(?:text|jsonl|parquet|tokens):"

SOURCE_PATTERN = rf"^(stdlib:|{_HERE}|{HUB_PATTERN}|{WEB_PATTERN})$"
"""Pattern of a manifest's source."""
OWN_PATTERN = rf"^(stdlib:|{_HERE}[^\p{{C}}]+|{HUB_PATTERN}|{WEB_PATTERN})$"
"""Pattern of a volunteer's own source."""


HELD_OUT_FRACTION = 0.05
"""Share of text without `meta.json` that is held out from training. Prepared shards define their own share."""
EVALUATION_BATCHES = 16
"""Number of batches in each measurement of the validation loss; the batches are always the same."""


class DataSection(Section):
    """The data that the run reads for training and for the validation loss."""

    source: str = Field(
        default="stdlib:",
        pattern=SOURCE_PATTERN,
        max_length=500,
        examples=[
            *("stdlib:", "text:", "jsonl:", "parquet:", "tokens:", "hf:ORG/NAME@REVISION[/FOLDER][:SPLIT]"),
            "https://HOST/PATH/meta.json",
        ],
        description="Python's library text, which every machine has; a data set that every machine can download; or "
        "the kind of data that each volunteer brings with `--data`. A path is refused",
    )
    text_field: str = Field(
        default="text",
        min_length=1,
        max_length=100,
        pattern=LINE_OF_TEXT["pattern"],
        examples=LINE_OF_TEXT["examples"],
        description="field that contains the text, in rows of jsonl, parquet and hf",
    )
    digest: str | None = Field(
        default=None,
        pattern=DIGEST["pattern"],
        examples=DIGEST["examples"],
        description="BLAKE3 of the meta.json of the prepared shards that every peer trains on; absent: the "
        "run requires no particular shards",
    )

    @field_validator("source", mode="before")
    @classmethod
    def _check_source(cls, source: object) -> object:
        if isinstance(source, str) and source not in _KINDS and source.startswith(_KINDS):
            kind = source.partition(":")[0]
            raise ValueError(
                f"{shown(source)} is a path that would be read on every volunteer's machine; expected one of "
                f'{LIBRARY}, {TEXT} or {TOKENS}; write source = "{kind}:", and let each peer say where its data is '
                f"with `peer join --data {kind}:PATH`"
            )
        return source

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.digest is None and self.source.startswith(WEB):
            raise ValueError(
                f"data.source is {self.source!r} without data.digest; expected the digest that `peer data prepare` "
                "printed, because the web server could otherwise replace the data"
            )
        if self.digest is not None and not self.source.startswith((TOKENS, WEB)):
            raise ValueError(
                f"data.digest is given with data.source {self.source!r}; expected tokens: or https://, because only "
                "prepared shards have a digest"
            )
        return self


def needs_own(source: str) -> bool:
    """Return whether each volunteer must bring its own data."""
    return source.startswith(_KINDS)


def reads_bytes(source: str) -> bool:
    """Return whether a source is plain text, whose bytes can be tokens."""
    return source.startswith((LIBRARY, TEXT))


def source_here(named: str, own: str | None, has_tokenizer: bool = False, digest: str | None = None) -> str:
    """Return the source that this machine reads: its owner's choice, or the manifest's source.

    Args:
        named: `data.source` of the manifest.
        own: the volunteer's source from `--data` or a configuration file, or None.
        has_tokenizer: whether the run has a tokenizer.
        digest: `data.digest` of the manifest, if this machine trains on the data.

    Raises:
        UsageFault: the volunteer must choose data and did not, or chose a kind that the run cannot use.
    """
    if own is not None:
        if digest is not None and not own.startswith((TOKENS, WEB)):
            raise UsageFault(
                f"all peers of this run train on the same prepared shards (data.digest), but --data {own} is different "
                f"data; expected these shards; give --data {TOKENS}PATH with the folder of the run's owner"
            )
        if not own.startswith((TOKENS, WEB)) and not has_tokenizer:
            if not reads_bytes(named):
                raise UsageFault(
                    f"this run reads token shards (data.source is {named!r}), but --data {own} contains bytes; "
                    f"expected shards made with the run's tokenizer; give --data {TOKENS}PATH"
                )
            if not reads_bytes(own):
                raise UsageFault(
                    f"--data {own} contains rows, but this run reads the bytes of text (it has no tokenizer); expected "
                    f"plain text; give --data {TEXT}PATH"
                )
        return own
    if not needs_own(named):
        return named
    kind = named.partition(":")[0]
    what = {TEXT: "text", JSON_LINES: "rows with text", PARQUET: "Parquet files", TOKENS: "token shards"}[named]
    raise UsageFault(
        f"this run reads {what} that each volunteer brings (data.source is {named!r}); expected a file or folder of "
        f"this machine; give --data {kind}:PATH"
    )
