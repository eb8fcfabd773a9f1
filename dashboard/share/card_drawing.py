"""A preview picture of 1200 x 630 pixels for links to a page: a name, a large figure, a line of facts, a curve."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from dashboard.share.card_text import Card

WIDTH: Final = 1200
HEIGHT: Final = 630
"""The ratio that large services expect: 1.91 to 1."""
MAX_POINTS: Final = 200

_GROUND, _INK, _QUIET, _ACCENT, _RULE = "#0e1519", "#e3ebee", "#9bacb4", "#62bddb", "#26343b"
_MARGIN: Final = 72
_SCALE: Final = 2
"""Pictures are drawn this many times larger and then reduced, for smooth edges."""
_CURVE: Final = (_MARGIN, 400, WIDTH - _MARGIN, 560)
MISSING: Final = "\u00b7"
"""Replaces a letter that the font lacks."""
_NO_LETTER: Final = "\U0010ffff"


def card_png(card: Card) -> bytes:
    """Return the picture as a PNG of some 30 kB. Takes about 0.2 s and 15 MB."""
    image = Image.new("RGB", (WIDTH * _SCALE, HEIGHT * _SCALE), _GROUND)
    draw = ImageDraw.Draw(image)
    _flock(draw)
    # Runs with equal names differ in their key; the picture shows only the name.
    _write(draw, drawable(card.run, "a run"), (_MARGIN + 72, 62), 34, _QUIET)
    _write(draw, drawable(card.title, card.otherwise), (_MARGIN, 130), 76, _INK)
    _write(draw, drawable(card.figure, ""), (_MARGIN, 240), 60, _ACCENT)
    _write(draw, drawable(card.facts, ""), (_MARGIN, 325), 34, _QUIET)
    _curve(draw, card.curve)
    _write(draw, "Murmuration: models trained by people together", (_MARGIN, 580), 24, _QUIET)
    file = io.BytesIO()
    image.resize((WIDTH, HEIGHT), Image.Resampling.BOX).save(file, "PNG", optimize=False)
    return file.getvalue()


def _write(draw: ImageDraw.ImageDraw, text: str, at: tuple[int, int], size: int, colour: str) -> None:
    """Draw a line of text, in a smaller size and then cut if it is too long."""
    room = (WIDTH - _MARGIN - at[0]) * _SCALE
    while size > 24 and draw.textlength(text, font_of(size * _SCALE)) > room:
        size -= 4
    font = font_of(size * _SCALE)
    while text and draw.textlength(text, font) > room:
        text = text[:-2].rstrip() + "\u2026" if len(text) > 2 else ""
    draw.text((at[0] * _SCALE, at[1] * _SCALE), text, colour, font)


def _curve(draw: ImageDraw.ImageDraw, values: Sequence[float]) -> None:
    left, top, right, bottom = (_SCALE * edge for edge in _CURVE)
    draw.line((left, bottom, right, bottom), _RULE, 2 * _SCALE)
    step = -(-len(values) // MAX_POINTS) or 1
    shown = [*values[:-1:step], values[-1]] if len(values) > 1 else []
    if len(shown) < 2 or not all(map(math.isfinite, shown)):
        return
    low, high = min(shown), max(shown)
    reach = high / 2 - low / 2 or 1.0  # halves, because the difference may exceed the range of a float
    points = [
        (left + (right - left) * place / (len(shown) - 1), bottom - (bottom - top) * (value / 2 - low / 2) / reach)
        for place, value in enumerate(shown)
    ]
    draw.polygon([(left, bottom), *points, (right, bottom)], "#16323d")
    draw.line(points, _ACCENT, 4 * _SCALE, joint="curve")


def _flock(draw: ImageDraw.ImageDraw) -> None:
    """Draw three birds, as in the page's logo."""
    for x, y, span in ((_MARGIN, 78, 16), (_MARGIN + 22, 92, 13), (_MARGIN + 34, 70, 10)):
        wing = [(x, y), (x + span * 0.5, y - span * 0.35), (x + span, y)]
        other = [(x + span, y), (x + span * 1.5, y - span * 0.35), (x + 2 * span, y - span * 0.1)]
        for line in (wing, other):
            draw.line([(_SCALE * a, _SCALE * b) for a, b in line], _ACCENT, 3 * _SCALE, joint="curve")


@lru_cache(maxsize=32)
def font_of(size: int) -> ImageFont.FreeTypeFont:
    """Return the font that Pillow ships, `size` pixels high."""
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font


@lru_cache(maxsize=4096)
def has_letter(letter: str) -> bool:
    """Return whether the font contains this letter."""
    if letter.isspace():
        return True
    return _drawn(letter) not in (_drawn(_NO_LETTER), b"")


def drawable(text: str, otherwise: str) -> str:
    """Return `text` in letters of the font, without accents if needed; `otherwise` if more than a third are missing."""
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
