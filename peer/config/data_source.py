"""The manifest's section on data: which data it may name, and what becomes of that on a volunteer's machine. Pure.

A manifest is signed by somebody else. It may name data that every machine has (`stdlib:`), or the kind of data that
each volunteer brings (`text:`, `tokens:`). A path in it would be a path of the volunteer's machine, and what is trained
on can be got out of the model again: paths come from the volunteer's own `--data` or configuration, never from a
manifest.
"""

from __future__ import annotations

from pydantic import Field

from dht.errors import UsageFault
from peer.config.section import Section

LIBRARY = "stdlib:"
"""Data that every machine has: the text of Python's standard library."""
TEXT, TOKENS = "text:", "tokens:"
"""Files or folders of each volunteer: bytes as tokens, or shards of tokens."""


class DataSection(Section):
    """Which text the run reads, and what is kept out of it to measure the loss."""

    source: str = Field(
        default="stdlib:",
        # Runs that older software signed may name a path here: they can still be read, and nobody follows the path.
        pattern=r"^(stdlib:|(text|tokens):[^\p{C}]*)$",
        max_length=500,
        examples=["stdlib:", "text:", "tokens:"],
        description="the library text that every machine has, or the kind of data that each volunteer brings with "
        "`--data`; a path is neither signed nor followed",
    )
    held_out_fraction: float = Field(
        default=0.05, gt=0, le=0.5, description="share of the text that is never trained on"
    )
    evaluation_batches: int = Field(
        default=16, ge=1, le=4096, description="batches per measurement of the held-out loss"
    )


def names_path(source: str) -> bool:
    """Whether a manifest's source names a place on the reader's machine."""
    return source not in (LIBRARY, TEXT, TOKENS)


def reads_bytes(source: str) -> bool:
    """Whether the tokens of a source are the bytes of text."""
    return not source.startswith(TOKENS)


def check_signable(source: str) -> None:
    """Before an owner signs a manifest.

    Raises:
        UsageFault: its source names a path, which no volunteer would follow.
    """
    if names_path(source):
        kind = source.partition(":")[0]
        raise UsageFault(
            f"data.source is {source!r}, a path that would be read on every volunteer's machine; expected {LIBRARY}, "
            f'{TEXT} or {TOKENS}; write source = "{kind}:", and let each peer say where its data is with '
            f"`peer join --data {kind}:PATH`"
        )


def source_here(named: str, own: str | None) -> str:
    """What this machine reads: its owner's choice, or what the manifest names if every machine has that.

    Args:
        named: `data.source` of the manifest.
        own: what the volunteer gave with `--data` or in a configuration file; None: nothing.

    Raises:
        UsageFault: the volunteer has to say which data, or said another kind.
    """
    if own is not None:
        if reads_bytes(own) and not reads_bytes(named):
            raise UsageFault(
                f"this run reads token shards (data.source is {named!r}), and --data {own} holds bytes; expected "
                f"shards of the run's own tokenizer; give --data {TOKENS}PATH"
            )
        return own
    if named == LIBRARY:
        return named
    kind = named.partition(":")[0]
    if names_path(named):
        raise UsageFault(
            f"the run's manifest names {named!r}, a path on this machine, as what to read; expected no path, because "
            f"its signer does not decide which of your files are read; choose data yourself with --data {kind}:PATH"
        )
    raise UsageFault(
        f"this run reads {'text' if named == TEXT else 'token shards'} that each volunteer brings (data.source is "
        f"{named!r}); expected a file or folder of this machine; give --data {kind}:PATH"
    )
