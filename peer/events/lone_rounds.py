"""Counts consecutive rounds that had one member. Pure."""

from __future__ import annotations

from typing import Final

from averaging.rounds.round_facts import RoundCommitted
from peer.events.peer_events import Event

LONE_ROUNDS: Final = 8
"""More consecutive rounds of one member than chance explains.

On two busy cores, 4 of 10 rounds of two peers had one member.
"""


def is_shared(fact: RoundCommitted) -> bool:
    """Return whether the round includes work of several peers."""
    return len(fact.contributors) > 1


def lone_rounds_after(before: int, event: Event, *, is_seed: bool) -> int:
    """Return the number of newest consecutive rounds that had one member, this peer or another.

    The run's page uses the same number. For a machine with a slow connection, most rounds in the row are rounds of
    other members. A trainer's row ends only with a shared round that includes the trainer, because rounds that other
    members share without it reveal nothing about its own rounds.
    """
    fact = event.fact
    if not isinstance(fact, RoundCommitted):
        return before
    if fact.contributors and not is_shared(fact):
        return before + 1
    return 0 if is_seed or event.peer_id in fact.contributors else before
