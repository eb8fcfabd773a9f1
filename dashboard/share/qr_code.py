"""An address as a QR code (ISO/IEC 18004), which a phone reads from a screen or from paper."""

from __future__ import annotations

from functools import lru_cache

import segno
from markupsafe import Markup


@lru_cache(maxsize=64)
def qr_code(address: str) -> Markup:
    """An SVG for HTML, dark on light in every colour scheme, with the margin that readers need.

    It is of level M or better: a seventh of it may be covered.
    """
    return Markup(segno.make_qr(address, error="m").svg_inline(border=4, light="#fff", omitsize=True))
