"""The manifest's section on data: which data it may name, and what becomes of that on a volunteer's machine. Pure.

A manifest is signed by somebody else. It may name data that every machine has (`stdlib:`) or can get (`hf:`, `https:`).
Or it may name the kind of data that each volunteer brings (`text:`, `jsonl:`, `parquet:`, `tokens:`). A path in it
would be a path of the volunteer's machine, and what is trained on can be got out of the model again. So paths come from
the volunteer's own `--data` or configuration, never from a manifest.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from dht.ground.errors import UsageFault
from peer.config.allowed_files import FILE_NAME_PATTERN
from peer.config.section import DIGEST, LINE_OF_TEXT, Section

LIBRARY = "stdlib:"
"""Data that every machine has: the text of Python's standard library."""
TEXT, JSON_LINES, PARQUET, TOKENS = "text:", "jsonl:", "parquet:", "tokens:"
"""Files or folders of each volunteer: text, rows with text, or shards of tokens."""
HUB, WEB = "hf:", "https:"
"""A data set of the Hugging Face hub at one revision; the meta.json of prepared shards on a web server."""

_WORD = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
HUB_PATTERN = rf"hf:{_WORD}/{_WORD}@{_WORD}(?:/{_WORD})*(?::{_WORD})?"
WEB_PATTERN = r"https://[A-Za-z0-9.-]+(?::[0-9]+)?/(?:[A-Za-z0-9_.~%/-]+/)?meta\.json"
_KINDS = (TEXT, JSON_LINES, PARQUET, TOKENS)
_HERE = r"(?:text|jsonl|parquet|tokens):"

SOURCE_PATTERN = rf"^(stdlib:|{_HERE}[^\p{{C}}]*|{HUB_PATTERN}|{WEB_PATTERN})$"
"""Of a manifest. Runs that older software signed may name a path: they can still be read, and nobody follows it."""
OWN_PATTERN = rf"^(stdlib:|{_HERE}[^\p{{C}}]+|{HUB_PATTERN}|{WEB_PATTERN})$"
"""Of a volunteer's own choice."""


HELD_OUT_FRACTION = 0.05
"""Share of text without `meta.json` that is never trained on. Prepared shards have their own."""
EVALUATION_BATCHES = 16
"""Batches of a measurement of the validation loss, the same ones every time."""


class DataSection(Section):
    """Which text the run reads, and what is kept out of it to measure the loss."""

    source: str = Field(
        default="stdlib:",
        pattern=SOURCE_PATTERN,
        max_length=500,
        examples=[
            *("stdlib:", "text:", "jsonl:", "parquet:", "tokens:", "hf:ORG/NAME@REVISION[/FOLDER][:SPLIT]"),
            "https://HOST/PATH/meta.json",
        ],
        description="the library text that every machine has, a data set that each can get, or the kind of data that "
        "each volunteer brings with `--data`. A path is neither signed nor followed",
    )
    tokenizer: str | None = Field(
        default=None,
        pattern=FILE_NAME_PATTERN,
        examples=["tokenizer.json, the name of one of the run's files"],
        description="file of the run that turns text into tokens; absent: the tokens of text are its bytes",
    )
    text_field: str = Field(
        default="text",
        min_length=1,
        max_length=100,
        pattern=LINE_OF_TEXT["pattern"],
        examples=LINE_OF_TEXT["examples"],
        description="field of rows (jsonl, parquet, hf) that has the text",
    )
    digest: str | None = Field(
        default=None,
        pattern=DIGEST["pattern"],
        examples=DIGEST["examples"],
        description="BLAKE3 of the meta.json of prepared shards, which everybody then trains on; absent: none is named",
    )

    @property
    def has_byte_tokens(self) -> bool:
        """Whether the run's tokens are the bytes of text."""
        return self.tokenizer is None and reads_bytes(self.source)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.tokenizer is None and self.source.startswith((JSON_LINES, PARQUET, HUB)):
            raise ValueError(
                f"data.source is {self.source!r} without data.tokenizer; expected the name of a file of the run: "
                "`peer init --file tokenizer.json`"
            )
        if self.digest is None and self.source.startswith(WEB):
            raise ValueError(
                f"data.source is {self.source!r} without data.digest; expected the digest that `peer data prepare` "
                "printed, or a web server could choose what is trained on"
            )
        if self.digest is not None and not self.source.startswith((TOKENS, WEB)):
            raise ValueError(
                f"data.digest is given with data.source {self.source!r}; expected tokens: or https://, because it is "
                "that of prepared shards"
            )
        return self


def names_path(source: str) -> bool:
    """Whether a manifest's source names a place on the reader's machine."""
    return source not in _KINDS and source.startswith(_KINDS)


def needs_own(source: str) -> bool:
    """Whether each volunteer has to say where its data is."""
    return source.startswith(_KINDS)


def reads_bytes(source: str) -> bool:
    """Whether a source is plain text, whose bytes can be tokens."""
    return source.startswith((LIBRARY, TEXT))


def source_here(named: str, own: str | None, tokenizer: str | None = None, digest: str | None = None) -> str:
    """What this machine reads: its owner's choice, or what the manifest names if every machine has that.

    Args:
        named: `data.source` of the manifest.
        own: what the volunteer gave with `--data` or in a configuration file; None: nothing.
        tokenizer: `data.tokenizer` of the manifest.
        digest: `data.digest` of the manifest, where what is read is trained on.

    Raises:
        UsageFault: the volunteer has to say which data, or said another kind.
    """
    if own is not None:
        if digest is not None and not own.startswith((TOKENS, WEB)):
            raise UsageFault(
                f"everybody trains this run on the same prepared shards (data.digest), and --data {own} is other data; "
                f"expected those; give --data {TOKENS}PATH with the folder of the run's owner"
            )
        if not own.startswith((TOKENS, WEB)) and tokenizer is None:
            if not reads_bytes(named):
                raise UsageFault(
                    f"this run reads token shards (data.source is {named!r}), and --data {own} holds bytes; expected "
                    f"shards of the run's own tokenizer; give --data {TOKENS}PATH"
                )
            if not reads_bytes(own):
                raise UsageFault(
                    f"--data {own} holds rows, and this run reads the bytes of text (it has no tokenizer); expected "
                    f"plain text; give --data {TEXT}PATH"
                )
        return own
    if not needs_own(named):
        return named
    kind = named.partition(":")[0]
    if names_path(named):
        raise UsageFault(
            f"the run's manifest names {named!r}, a path on this machine, as what to read; expected no path, because "
            f"its signer does not decide which of your files are read; choose data yourself with --data {kind}:PATH"
        )
    what = {TEXT: "text", JSON_LINES: "rows with text", PARQUET: "Parquet files", TOKENS: "token shards"}[named]
    raise UsageFault(
        f"this run reads {what} that each volunteer brings (data.source is {named!r}); expected a file or folder of "
        f"this machine; give --data {kind}:PATH"
    )
