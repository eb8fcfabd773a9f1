"""Who is asked about a heavier anchor."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from dht.host import PeerId
from peer.repairing import Repairs

BEHIND = [PeerId(f"peer-{number:03}") for number in range(0, 100, 2)]
AHEAD = [PeerId(f"peer-{number:03}") for number in range(1, 100, 2)]


def record(peer_id: PeerId, tokens: int) -> SimpleNamespace:
    digest = b"ahead..." if tokens else b"behind.."
    return SimpleNamespace(
        peer_id=peer_id, state="training", versions=(tokens,), digests=(digest,), lineage_tokens=(tokens,)
    )


def repairs_of(me: PeerId, members: list[SimpleNamespace]) -> Repairs:
    fragment = SimpleNamespace(
        index=0,
        had=lambda version, digest: (version, digest) == (0, b"behind.."),
        state=SimpleNamespace(version=0, digest=b"behind..", lineage_tokens=0),
    )
    exchange = SimpleNamespace(me=me, fragments=[fragment])
    heads = {(record.versions[0], record.digests[0]) for record in members}
    return Repairs(exchange, None, SimpleNamespace(members=lambda: members, heads=lambda fragment: heads), None)


def asked_by(me: PeerId, ahead: list[PeerId]) -> PeerId | None:
    others = sorted({*BEHIND, *ahead} - {me})
    members = [record(peer_id, 5 if peer_id in ahead else 0) for peer_id in others]
    return repairs_of(me, members).behind().get(0)


def test_those_behind_do_not_all_ask_the_same_member() -> None:
    asked = Counter(asked_by(me, AHEAD) for me in BEHIND)

    assert asked == Counter(dict.fromkeys(AHEAD, 1))


@pytest.mark.parametrize("me", [BEHIND[0], BEHIND[20], BEHIND[-1]])
def test_the_only_member_ahead_is_asked_wherever_it_stands(me: PeerId) -> None:
    assert {asked_by(me, [one]) for one in AHEAD} == set(AHEAD)


def test_nobody_is_asked_where_nobody_is_ahead() -> None:
    assert asked_by(BEHIND[3], []) is None
