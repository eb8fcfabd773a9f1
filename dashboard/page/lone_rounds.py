"""Rounds of one member while several train: they share nothing, and readers of the page are told. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from dashboard.history_facts import RoundFacts
from peer.events.lone_rounds import LONE_ROUNDS

JOINING_SECONDS: Final = 60.0
"""From a peer's start until it has the model and is in its first round, generously."""


def num_lone(rounds: Sequence[RoundFacts]) -> int:
    """How many of the newest rounds in a row had one member; `rounds` begin with the newest."""
    known = (row for row in rounds if row.contributors)
    return sum(1 for _ in takewhile(lambda row: len(row.contributors) == 1, known))


def lone_words(rounds: Sequence[RoundFacts], started_at: Sequence[float]) -> str:
    """That several train and share nothing; empty while they share, or while their lone rounds may be chance.

    Args:
        rounds: the newest first.
        started_at: of those who train now, unix seconds. Rounds before the second of them had joined say nothing.
    """
    if len(started_at) < 2:
        return ""
    joined_at = sorted(started_at)[1] + JOINING_SECONDS
    number = num_lone([row for row in rounds if row.seen_at > joined_at])
    if number < LONE_ROUNDS:
        return ""
    return f"{len(started_at)} machines train, but the newest {number} rounds had one member each: they share nothing"
