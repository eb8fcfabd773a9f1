"""The text of a preview picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """Texts of a preview picture, in any script and of any length."""

    title: str
    otherwise: str
    """Fallback for a title that the font cannot write."""
    run: str
    figure: str
    """Large figure: ``1.45 million tokens``."""
    facts: str
    """Line below the title: ``rank 2 of 14``."""
    curve: Sequence[float] = ()
    """Values over time, oldest first; fewer than two are not drawn."""
