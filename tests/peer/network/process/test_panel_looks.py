"""Two peers that look at each other agree on who is first."""

from __future__ import annotations

import pytest

from dht.ground.host import PeerId
from dht.records.peer_record import PeerRecord
from peer.network.process.panel_looks import by_now, work_in
from peer.view.swarm_seen import SwarmWatch
from tests.kit.averages.credited_rounds import A, B, commit_of
from tests.kit.records import LIFE_SECONDS, NOW, make_record

ANNOUNCE_SECONDS = 10.0


def announced(peer_id: str, at: float, *, ahead: int, speed: float = 1000.0) -> PeerRecord:
    """Of a machine that has trained at this speed since `NOW - 100`, and `ahead` tokens more."""
    tokens = int(speed * (at - NOW + 100.0)) + ahead
    return make_record(peer_id, tokens=tokens, tokens_per_second=speed, expires_at=at + LIFE_SECONDS)


def seen_by_now(record: PeerRecord) -> PeerRecord:
    return by_now(record, NOW, LIFE_SECONDS, ANNOUNCE_SECONDS)


@pytest.mark.parametrize("age", [0.0, 3.0, 9.9])
def test_of_two_peers_one_is_first_on_both_panels(age: float) -> None:
    """Each knows its own work of this second and what the other announced: both said "rank 1 of 2"."""
    ranks = []
    for me, other, lead in (("a", "b", -2000), ("b", "a", 2000)):
        mine, theirs = announced(me, NOW, ahead=max(0, -lead)), announced(other, NOW - age, ahead=max(0, lead))
        seen = SwarmWatch(PeerId(me)).look([seen_by_now(theirs), mine], NOW)
        assert seen.own_row is not None
        ranks.append(seen.own_row.rank)
    assert ranks == [1, 2]


def test_work_since_is_reckoned_for_one_announcement_at_most() -> None:
    record = announced("a", NOW - 60.0, ahead=0)
    assert seen_by_now(record).tokens == record.tokens + 10_000
    ahead_of_its_clock = announced("a", NOW + 60.0, ahead=0)
    assert seen_by_now(ahead_of_its_clock) == ahead_of_its_clock
    longer = make_record(tokens=5, tokens_per_second=1000.0, expires_at=NOW + LIFE_SECONDS + 30.0, longer_seconds=30.0)
    assert seen_by_now(longer) == longer
    resting = make_record(tokens=5, tokens_per_second=1000.0, state="serving", expires_at=NOW)
    assert seen_by_now(resting) == resting


def test_work_is_what_was_averaged_of_members_in_signed_commits() -> None:
    commits = [commit_of(0, (A, B)), commit_of(1, (A, B), shards=((0, (0,)), (0, ())))]
    assert work_in(commits) == {A.peer_id: 150, B.peer_id: 100}
    assert work_in([]) == {}
