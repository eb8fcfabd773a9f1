"""The manifest's section on data: the permitted sources, and the data that a volunteer's machine reads. Pure.

A stranger may have signed the manifest. The manifest may name data that every machine has (`stdlib:`) or can download
(`hf:`, `https:`), or the kind of data that each volunteer brings (`text:`, `jsonl:`, `parquet:`, `tokens:`). A path
would refer to the volunteer's machine, and training data can be extracted from a model. Therefore paths come only from
the volunteer's own `--data` or configuration.
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
"""Files or folders of a volunteer: text, rows with text, or shards of tokens."""
HUB, WEB = "hf:", "https:"
"""A data set on the Hugging Face hub at a revision, and the meta.json of prepared shards on a web server."""

_WORD = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
HUB_PATTERN = rf"hf:{_WORD}/{_WORD}@{_WORD}(?:/{_WORD})*(?::{_WORD})?"
WEB_PATTERN = r"https://[A-Za-z0-9.-]+(?::[0-9]+)?/(?:[A-Za-z0-9_.~%/-]+/)?meta\.json"
_KINDS = (TEXT, JSON_LINES, PARQUET, TOKENS)
_HERE = r"(?:text|jsonl|parquet|tokens):"

SOURCE_PATTERN = rf"^(stdlib:|{_HERE}[^\p{{C}}]*|{HUB_PATTERN}|{WEB_PATTERN})$"
"""Pattern of a manifest's source. A run signed by older software may name a path; the manifest stays readable, but no
peer follows the path."""
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
    tokenizer: str | None = Field(
        default=None,
        pattern=FILE_NAME_PATTERN,
        examples=["tokenizer.json, the name of one of the run's files"],
        description="name of the run's file that turns text into tokens; absent: each byte of the text is a token",
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

    @property
    def has_byte_tokens(self) -> bool:
        """Whether each byte of the text is a token."""
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
    """Return whether a manifest's source names a path on the reader's machine."""
    return source not in _KINDS and source.startswith(_KINDS)


def needs_own(source: str) -> bool:
    """Return whether each volunteer must bring its own data."""
    return source.startswith(_KINDS)


def reads_bytes(source: str) -> bool:
    """Return whether a source is plain text, whose bytes can be tokens."""
    return source.startswith((LIBRARY, TEXT))


def source_here(named: str, own: str | None, tokenizer: str | None = None, digest: str | None = None) -> str:
    """Return the source that this machine reads: its owner's choice, or the manifest's source.

    Args:
        named: `data.source` of the manifest.
        own: the volunteer's source from `--data` or a configuration file, or None.
        tokenizer: `data.tokenizer` of the manifest.
        digest: `data.digest` of the manifest, if this machine trains on the data.

    Raises:
        UsageFault: the volunteer must choose data and did not, or chose a kind that the run cannot use.
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
