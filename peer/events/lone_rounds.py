"""Rounds of one member: how many of them a peer has seen in a row. Pure."""

from __future__ import annotations

from typing import Final

from averaging.rounds.round_facts import RoundCommitted
from peer.events.peer_events import Event

LONE_ROUNDS: Final = 8
"""So many rounds of one member in a row are no chance. On two busy cores 4 of 10 rounds of two peers had one member."""


def is_shared(fact: RoundCommitted) -> bool:
    """Whether work of several peers is in the round."""
    return len(fact.contributors) > 1


def lone_rounds_after(before: int, event: Event, *, is_seed: bool) -> int:
    """The newest rounds in a row that had one member, this peer or another; the run's page counts them so, too.

    Of a machine with a thin line most are those of the others. A trainer's row ends with a round that it shared: what
    others share without it says nothing of its own rounds.
    """
    fact = event.fact
    if not isinstance(fact, RoundCommitted):
        return before
    if fact.contributors and not is_shared(fact):
        return before + 1
    return 0 if is_seed or event.peer_id in fact.contributors else before
