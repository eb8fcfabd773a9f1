"""Commits as the history gets them, without keys: a raw commit is JSON, and its check reads it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from averaging.signing.commit_credit import MachineShare
from dashboard.credit.credited_members import CommitCredit
from dashboard.history.history import History
from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.listed_peers import Look
from dht.ground.errors import PeerFault
from tests.kit.dashboard.records import NOW, PEERS, empty_state, record_of


def raw_commit(
    fragment: int,
    version: int,
    members: Sequence[tuple[str, float, bool]],
    leader: str = "",
) -> bytes:
    """`members`: (PeerId, tokens, whether others witnessed them)."""
    return json.dumps([fragment, version, leader or members[0][0], list(members)]).encode()


def check_raw(raw: bytes) -> CommitCredit:
    """The credit of a raw commit.

    Raises:
        PeerFault: it is not one.
    """
    try:
        fragment, version, leader, members = json.loads(raw)
    except ValueError as error:
        raise PeerFault("", "sent a commit that is not JSON") from error
    shares = tuple(
        MachineShare(peer_id, round(1000 * tokens), is_witnessed) for peer_id, tokens, is_witnessed in members
    )
    tokens = round(sum(share.milli_tokens for share in shares) / 1000)
    digest = hashlib.sha256(raw).digest()
    return CommitCredit(fragment, version, digest, b"", leader, tokens, shares)


def usual_commit(version: int, peers: Sequence[str], *, fragment: int = 0, tokens: float = 100.0) -> bytes:
    """All of `peers` are in it and witnessed by each other."""
    members = [(peer_id, tokens + index, True) for index, peer_id in enumerate(peers)]
    return raw_commit(fragment, version, members)


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
