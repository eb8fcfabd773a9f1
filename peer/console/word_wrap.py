"""Wrap sentences for a terminal, which would break them in the middle of a word."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

_TO_COPY = re.compile(r"`[^`]*`|(?<=: )peer [a-z]+( .*)?$")
"""A command in a sentence, or at its end. Users copy it, so it is not broken."""


def fitting(text: str, stream: TextIO) -> str:
    """Insert line breaks between words for the width of `stream`. Without a terminal, the text is unchanged."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):  # a pipe, a file, or no file at all
        return text
    return "\n".join(line for whole in text.split("\n") for line in wrapped(whole, columns))


def wrapped(text: str, columns: int, first: str = "", rest: str = "") -> list[str]:
    """Break one line into several of at most `columns`. A longer word or command has its own line.

    Args:
        first: prefix of the first line.
        rest: prefix of the other lines.
    """
    if columns <= len(rest) or len(first) + len(text) <= columns:
        return [first + text]
    from textwrap import TextWrapper  # most texts are short, and `peer --help` must appear at once

    kept = _TO_COPY.sub(lambda command: command[0].replace(" ", "\0"), text)
    wrapper = TextWrapper(columns, first, rest, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in wrapper.wrap(kept)]


def print_fitting(sentence: str) -> None:
    """Print a sentence in lines that fit the terminal."""
    print(fitting(sentence, sys.stdout), flush=True)
