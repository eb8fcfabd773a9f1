"""The order in which trainers may lead a round, and which of many contribute. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable
from functools import lru_cache

from averaging.wire.messages import MAX_ROSTER
from dht.ground.host import PeerId

USUAL_TURN = MAX_ROSTER - 32
"""Average number of trainers in one turn: hashes spread unevenly, and one turn in fifty exceeds a roster."""


def rank_leaders(run_id: str, fragment: int, version: int, trainers: Iterable[PeerId]) -> list[PeerId]:
    """Return live trainers in the order in which they may lead the round: rendezvous hashing; the first leads attempt
    0.

    All peers with the same view compute the same order, and leading is spread evenly over peers.
    """
    return sorted(set(trainers), key=lambda peer_id: (_score(run_id, fragment, version, peer_id), peer_id))


def num_turns(num_trainers: int) -> int:
    """Return the number of versions from one contribution of a trainer to the next."""
    return 1 if num_trainers <= MAX_ROSTER else math.ceil(num_trainers / USUAL_TURN)


def next_contributors(run_id: str, fragment: int, version: int, trainers: Collection[PeerId]) -> frozenset[PeerId]:
    """Return the trainers whose turn it is to contribute: all up to `MAX_ROSTER`, otherwise one of `num_turns` groups
    by hash.

    If a group exceeds the roster, the first in rank contribute. Views that differ in a few members give nearly the same
    result.
    """
    turns = num_turns(len(trainers))
    own = [peer_id for peer_id in trainers if turns == 1 or (_place_of(peer_id) + version) % turns == 0]
    return frozenset(rank_leaders(run_id, fragment, version, own)[:MAX_ROSTER])


@lru_cache(maxsize=8192)
def _place_of(peer_id: PeerId) -> int:
    return int.from_bytes(hashlib.sha256(b"turn " + peer_id.encode()).digest()[:8], "big")


@lru_cache(maxsize=8192)
def _score(run_id: str, fragment: int, version: int, peer_id: PeerId) -> bytes:
    """Return a member's rank score. Cached because each message needs the scores of all members at one version."""
    return hashlib.sha256(f"{run_id}|{fragment}|{version}|{peer_id}".encode()).digest()
