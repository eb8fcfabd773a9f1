"""In which order trainers may lead a round, and which of many contribute to it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from averaging.wire.messages import MAX_ROSTER
from dht.host import PeerId


def rank_leaders(run_id: str, fragment: int, version: int, trainers: Iterable[PeerId]) -> list[PeerId]:
    """Live trainers in the order in which they may lead the round: rendezvous hashing, the first leads attempt 0.

    Every peer computes the same order from the same view, and the load of leading spreads evenly over peers.
    """
    return sorted(set(trainers), key=lambda peer_id: (_score(run_id, fragment, version, peer_id), peer_id))


def next_contributors(run_id: str, fragment: int, version: int, trainers: Iterable[PeerId]) -> frozenset[PeerId]:
    """The trainers whose turn it is to contribute: the first `MAX_ROSTER` in rank, which each version draws anew.

    Views that differ in a few members draw nearly the same ones.
    """
    return frozenset(rank_leaders(run_id, fragment, version, trainers)[:MAX_ROSTER])


@lru_cache(maxsize=8192)
def _score(run_id: str, fragment: int, version: int, peer_id: PeerId) -> bytes:
    """Asked of every member with each offer and message that comes, in one version."""
    return hashlib.sha256(f"{run_id}|{fragment}|{version}|{peer_id}".encode()).digest()
