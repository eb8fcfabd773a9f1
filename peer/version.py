"""The version of this software, as peers tell each other."""

from __future__ import annotations

import re

VERSION = "0.1.0"
SOFTWARE = f"murmuration {VERSION}"

_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})")


def is_older(software: str, minimum: str) -> bool:
    """Whether `software`, as a peer tells it, is older than `minimum` (three numbers) or tells no version at all."""
    told, wanted = _NUMBERS.search(software), _NUMBERS.search(minimum)
    if told is None or wanted is None:
        return True
    return tuple(map(int, told.groups())) < tuple(map(int, wanted.groups()))
