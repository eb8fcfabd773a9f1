"""Who is asked about a heavier anchor."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from averaging.rounds.presence import MemberPresence
from averaging.wire.messages import Commit
from dht.ground.host import PeerId
from peer.network.node.anchor_repairs import LAGGING_SECONDS, AnchorRepairs, _of_one_lineage
from tests.simulator.virtual_time import run_virtual

AHEAD = [PeerId(f"peer-{number:03}") for number in range(1, 100, 2)]


def record(peer_id: PeerId, tokens: int) -> SimpleNamespace:
    digest = b"ahead..." if tokens else b"behind.."
    return SimpleNamespace(
        peer_id=peer_id, state="training", versions=(tokens,), digests=(digest,), lineage_tokens=(tokens,)
    )


def repairs_of(me: PeerId, members: list[SimpleNamespace], asked: list[PeerId] | None = None) -> AnchorRepairs:
    fragment = SimpleNamespace(
        index=0,
        had=lambda version, digest: (version, digest) == (0, b"behind.."),
        state=SimpleNamespace(version=0, digest=b"behind..", lineage_tokens=0),
    )
    exchange = SimpleNamespace(
        me=me,
        fragments=[fragment],
        applying=SimpleNamespace(looked_into=lambda fragment, claimed_by: None),
        guard=SimpleNamespace(presence=MemberPresence(me)),
    )
    heads = {(record.versions[0], record.digests[0]) for record in members}
    repairs = AnchorRepairs(
        exchange, None, SimpleNamespace(members=lambda: members, heads=lambda fragment: heads), None, None
    )

    async def look(fragment: SimpleNamespace, peer_id: PeerId, reason: str) -> bool:
        if asked is not None:
            asked.append(peer_id)
        repairs._refuse((peer_id, 0))
        return False

    repairs._look = look  # type: ignore[assignment, method-assign]
    return repairs


def test_one_that_is_ahead_and_does_not_count_hides_nobody_else() -> None:
    """One alone went on to version 6, whose claim was refused; others are at 4, and were never asked."""
    me, alone, first, second = (PeerId(f"peer-{number}") for number in "2013")
    members = [record(alone, 6), record(first, 4), record(second, 4)]
    asked: list[PeerId] = []

    async def play() -> None:
        repairs = repairs_of(me, members, asked)
        assert repairs.behind() == {0: second}, "an anchor that two share is looked at first"
        await repairs.repair(0, alone, "it says so")
        assert asked == [alone, second]
        assert repairs.behind() == {}, "both were refused a moment ago"
        await asyncio.sleep(LAGGING_SECONDS)
        await repairs.repair(0, alone, "it says so")
        assert asked == [alone, second] * 2

    run_virtual(play())


def test_commits_of_two_sides_are_never_mixed() -> None:
    """A member that changed sides between two answers gave commits of the other: own work would be told wrong."""
    first, second, third = (Commit(0, version, 0, AHEAD[0], bytes(16), (), ()) for version in (3, 4, 5))
    other = replace(second, leader=AHEAD[1])
    assert _of_one_lineage((second, third), (first, second)) == {3: first, 4: second, 5: third}
    assert _of_one_lineage((second, third), (first, other)) is None
    assert _of_one_lineage((), (first, other)) == {3: first, 4: other}
