"""Commits as the history gets them, without keys: a raw commit is JSON, and its check reads it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from dashboard.facts import CommitCredit, MemberCredit
from dashboard.history.history import History
from dashboard.observe.state import DashboardState, Look, fold
from dht.errors import PeerFault
from tests.kit.dashboard.records import NOW, PEERS, empty_state, record_of


def raw_commit(
    fragment: int,
    version: int,
    members: Sequence[tuple[str, float, float, bool]],
    *,
    at: float | None = None,
    leader: str = "",
) -> bytes:
    """`members`: (PeerId, witnessed, reported, included)."""
    return json.dumps([fragment, version, leader or members[0][0], at, list(members)]).encode()


def check_raw(raw: bytes) -> CommitCredit:
    """The credit of a raw commit.

    Raises:
        PeerFault: it is not one.
    """
    try:
        fragment, version, leader, at, members = json.loads(raw)
    except ValueError as error:
        raise PeerFault("", "sent a commit that is no JSON") from error
    rows = tuple(
        MemberCredit(peer_id, round(1000 * witnessed), round(1000 * reported), is_included)
        for peer_id, witnessed, reported, is_included in members
    )
    tokens = round(sum(row.milli_reported for row in rows if row.is_included) / 1000)
    return CommitCredit(fragment, version, leader, tokens, hashlib.sha256(raw).digest(), rows, 0, 2, at)


def usual_commit(version: int, peers: Sequence[str], *, fragment: int = 0, tokens: float = 100.0) -> bytes:
    """All of `peers` are in it and witnessed by each other, a minute after the version before it."""
    members = [(peer_id, tokens + index, tokens + index, True) for index, peer_id in enumerate(peers)]
    return raw_commit(fragment, version, members, at=NOW + 60 * version)


IDS = [identity.peer_id for identity in PEERS]


def feed(history: History, versions: Sequence[int], *, now: float = NOW, num_looks: int = 3) -> DashboardState:
    """Some looks at the first two peers, and commits of all four."""
    state = empty_state(now)
    for index in range(num_looks):
        at = now + 2 * index
        records = [record_of(identity, sequence=index + 1, now=at) for identity in PEERS[:2]]
        state = fold(state, Look(now=at, num_members=3, records=records))
        history.look(state)
    for version in versions:
        raw = usual_commit(version, IDS)
        history.add_commit(raw, check_raw(raw), now)
    return state
