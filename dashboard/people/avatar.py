"""A picture for each key: a small flock, drawn from the key alone. A help for the eye, and no proof."""

from __future__ import annotations

import hashlib
from typing import Final

SIZE: Final = 48
"""Units of the drawing; how large it is shown is the page's choice."""
_DOMAIN: Final = b"murmuration avatar\0"
_MIN_BIRDS, _MAX_BIRDS = 3, 6
_COLUMNS: Final = 3
"""Birds keep to cells of a grid of so many columns and rows, so that they seldom cover one another."""


def avatar_svg(key: str) -> str:
    """An SVG of a few hundred bytes; `key` is any text and does not appear in it."""
    digest = hashlib.sha256(_DOMAIN + key.encode(errors="surrogatepass")).digest()
    hue = digest[0] * 360 // 256
    num_birds = _MIN_BIRDS + digest[1] % (_MAX_BIRDS - _MIN_BIRDS + 1)
    # The cells in an order that follows from the key: the birds take the first ones.
    cells = sorted(range(_COLUMNS**2), key=lambda cell: (digest[2 + cell], cell))
    birds = "".join(_bird(cell, digest[11 + place], digest[21 + place]) for place, cell in enumerate(cells[:num_birds]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}">'
        f'<rect width="{SIZE}" height="{SIZE}" rx="12" fill="hsl({hue} 45% 30%)"/>'
        f'<path d="{birds}" fill="none" stroke="hsl({(hue + 25) % 360} 75% 80%)" stroke-width="2.2" '
        'stroke-linecap="round" stroke-linejoin="round"/></svg>'
    )


def _bird(cell: int, place: int, shape: int) -> str:
    """Two wings as curves from the left tip over the body to the right tip."""
    x = 9 + 15 * (cell % _COLUMNS) + place % 4 - 2
    y = 11 + 14 * (cell // _COLUMNS) + place // 64 - 2
    span = 5 + shape % 3
    lift = 2 + shape // 64
    return f"M{x - span} {y}q{span - 1}-{lift} {span} {lift}q1-{2 * lift} {span}-{lift}"
