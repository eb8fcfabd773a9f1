"""Shares in words."""

from __future__ import annotations

from typing import Final

_ORDINALS: Final = ("", "", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def share_words(share: float) -> str:
    """Describe a `share` (0 to 1) of the run's confirmed work: ``every third token``; empty: none."""
    if share <= 0:
        return ""
    if share >= 0.995:
        return "all of the confirmed work"
    if 0.44 < share < 0.495:
        return "almost half of the tokens"
    each = round(1 / share)
    if abs(each * share - 1) > (0.01 if each <= 2 else 0.1):
        return f"{round(100 * share)} of 100 tokens"
    if each < len(_ORDINALS):
        return f"every {_ORDINALS[each]} token"
    return f"one token in {int(float(f'{1 / share:.2g}')):,}".replace(",", "\u202f")
