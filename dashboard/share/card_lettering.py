"""Text that Pillow's own font can draw: it has the letters of western Europe, and names have any."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

from PIL import ImageFont

MISSING: Final = "\u00b7"
"""Stands for a letter that the font lacks."""
_NO_LETTER: Final = "\U0010ffff"


@lru_cache(maxsize=32)
def font_of(size: int) -> ImageFont.FreeTypeFont:
    """The font that Pillow ships, `size` pixels high."""
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font


@lru_cache(maxsize=4096)
def has_letter(letter: str) -> bool:
    """Whether the font draws this letter as itself."""
    if letter.isspace():
        return True
    return _drawn(letter) not in (_drawn(_NO_LETTER), b"")


def drawable(text: str, otherwise: str) -> str:
    """`text` in letters that the font has, accents dropped where need be; `otherwise` if it lacks more than a third."""
    shown, num_missing = [], 0
    for letter in text:
        plain = letter if has_letter(letter) else unicodedata.normalize("NFKD", letter)[:1]
        if plain and has_letter(plain):
            shown.append(plain)
        else:
            num_missing += 1
            shown.append(MISSING)
    return otherwise if 3 * num_missing > len(text) else "".join(shown).strip() or otherwise


def _drawn(letter: str) -> bytes:
    return bytes(font_of(20).getmask(letter))
