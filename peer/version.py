"""The version of this software, as peers tell each other."""

from __future__ import annotations

VERSION = "0.1.0"
SOFTWARE = f"murmuration {VERSION}"
