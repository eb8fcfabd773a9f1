"""Shares, places and changes in words."""

from __future__ import annotations

import pytest

from dashboard.people.ranking_words import share_words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, ""),
        (1.0, "all of the confirmed work"),
        (0.8, "80 of 100 tokens"),
        (0.5, "every second token"),
        (0.54, "54 of 100 tokens"),
        (0.445, "almost half of the tokens"),
        (0.42, "42 of 100 tokens"),
        (0.394, "39 of 100 tokens"),
        (0.31, "every third token"),
        (0.22, "22 of 100 tokens"),
        (0.15, "every seventh token"),
        (0.101, "every tenth token"),
        (0.0099, "one token in 100"),
        (0.000081, "one token in 12\u202f000"),
    ],
)
def test_a_share_is_said_in_words(share: float, words: str) -> None:
    assert share_words(share) == words
