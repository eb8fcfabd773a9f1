"""Sentences for a terminal, which would break them in the middle of a word."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

_TO_COPY = re.compile(r"`[^`]*`|(?<=: )peer [a-z]+( .*)?$")
"""A command in a sentence, or at its end: it is copied, so it stays in one piece."""


def fitting(text: str, stream: TextIO) -> str:
    """The text with line breaks between words, as `stream` shows it; unchanged where that is no terminal."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):  # a pipe, a file, or no file at all
        return text
    return "\n".join(line for whole in text.split("\n") for line in wrapped(whole, columns))


def wrapped(text: str, columns: int, first: str = "", rest: str = "") -> list[str]:
    """One line as several of at most so many columns; a word or a command that is longer has a line of its own.

    Args:
        first: before the first of them.
        rest: before the others.
    """
    if columns <= len(rest) or len(first) + len(text) <= columns:
        return [first + text]
    from textwrap import TextWrapper  # most texts are short, and `peer --help` is to be there at once

    kept = _TO_COPY.sub(lambda command: command[0].replace(" ", "\0"), text)
    wrapper = TextWrapper(columns, first, rest, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in wrapper.wrap(kept)]


def print_fitting(sentence: str) -> None:
    """Print a sentence in lines that fit the terminal."""
    print(fitting(sentence, sys.stdout), flush=True)
