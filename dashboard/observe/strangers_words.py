"""Cleans strangers' text for display. Pure."""

from __future__ import annotations

import unicodedata
from typing import Final

from dht.ground.fields import clean_text

MAX_MARKS: Final = 2
"""Combining marks on one letter: enough for all living scripts, too few to cover neighbouring rows."""


def label_text(text: str, max_length: int) -> str:
    """Return a stranger's label for display: printable, short, and without letters with many combining marks."""
    return without_towers(clean_text(text, max_length))


def without_towers(text: str) -> str:
    """Return the text with at most `MAX_MARKS` combining marks on each letter."""
    shown: list[str] = []
    num_marks = 0
    for character in text:
        num_marks = num_marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if num_marks <= MAX_MARKS:
            shown.append(character)
    return "".join(shown)
