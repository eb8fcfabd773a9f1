"""Levels: as many keys as the swarm needs, agreed on by votes, and every record found in one turn of reading."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.host import PeerId
from dht.ground.store import LEVEL_0_KEYS
from dht.records import key_levels
from dht.records.key_levels import (
    MAX_LEVEL,
    MERGE_BELOW,
    SPLIT_ABOVE,
    Levels,
    key_at,
    keys_for,
    may_stand,
    num_keys,
    peers_key,
    turn_seconds,
)
from tests.kit.network import level_views
from tests.kit.network.level_views import LevelViews
from tests.kit.tiers import sampled

ME = PeerId("me")
ALL_LEVELS = range(MAX_LEVEL + 1)
names = st.binary(min_size=1, max_size=20).map(lambda data: PeerId(data.hex()))


@given(name=names, vote=st.sampled_from(ALL_LEVELS), level=st.integers(-2, MAX_LEVEL + 2))
def test_where_a_record_may_stand(name: PeerId, vote: int, level: int) -> None:
    keys = keys_for(name, vote)
    assert (level in {key.level for key in keys}) == may_stand(name, vote, level)
    assert all(key == key_at(name, key.level) and 0 <= key.shard < num_keys(key.level) for key in keys)
    assert len({peers_key("run", key) for key in keys}) == len(keys) <= 4
    assert key_at(name, vote) in keys


def settled_at(level: int, peer_id: PeerId | None = ME) -> Levels:
    """Levels of a peer whose view shows as many members as fit this level well, all of that vote."""
    found = Levels(peer_id)
    for _ in range(2):
        found.next_keys(5.0)
        found.note([level] * (40 * num_keys(level)))
    assert (found.read_level, found.vote) == (level, level)
    return found


def test_keys_that_vote_for_much_are_not_believed_once_their_keys_were_read() -> None:
    found = Levels(ME)
    num_read = 0
    for _ in range(200):
        closely, briefly = found.next_keys(5.0)
        assert set(LEVEL_0_KEYS) <= set(closely)
        num_read += len(briefly)
        assert not found.note([0] * 50 + [MAX_LEVEL] * 30)
        assert found.publish_levels() == (0,)
    # It looked there once; twice as many votes are worth another look.
    assert num_read == num_keys(MAX_LEVEL)
    found.note([0] * 50 + [MAX_LEVEL] * 61)
    found = settled_at(1)
    found.note([1] * 320 + [MAX_LEVEL] * 40)
    assert found.read_level == 1


def test_five_hundred_and_sixty_that_start_together_all_find_each_other() -> None:
    """More than the 512 entries that the four keys of level 0 take."""
    swarm = LevelViews()
    swarm.add(560)
    swarm.run(60.0)
    assert swarm.votes() == {2: 560}
    assert swarm.least_seen() == 560
    swarm.run(30.0)
    assert swarm.least_seen() == 560
    assert swarm.most_keys_read <= 9


@pytest.fixture
def small_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of everything, so that levels change in swarms of hundreds."""
    monkeypatch.setattr(key_levels, "SPLIT_ABOVE", SPLIT_ABOVE // 4)
    monkeypatch.setattr(key_levels, "MERGE_BELOW", MERGE_BELOW // 4)
    monkeypatch.setattr(level_views, "MAX_ENTRIES", level_views.MAX_ENTRIES // 4 + 16)


@pytest.mark.usefixtures("small_dictionaries")
def test_a_swarm_that_grows_and_shrinks_sees_everybody_all_the_time() -> None:
    swarm = LevelViews()
    swarm.add(40)
    swarm.run(30.0)
    seen_levels = set(swarm.votes())
    for _ in range(16):
        newcomers = swarm.add(12)
        swarm.run(15.0)
        seen_levels |= set(swarm.votes())
        # Who came in these 15 s may still have some to read.
        old = [peer for name, peer in swarm.peers.items() if name not in newcomers]
        assert min(peer.num_seen(swarm.now) for peer in old) >= len(old) - 1 - 12
    swarm.run(turn_seconds(2))
    assert seen_levels >= {0, 1, 2}
    assert swarm.least_seen() == len(swarm.peers) == 232
    swarm.remove(list(swarm.peers)[:200])
    for _ in range(30):
        swarm.run(15.0)
        assert swarm.least_seen() == 32
    assert swarm.votes() == {0: 32}


@pytest.mark.usefixtures("small_dictionaries")
def test_a_swarm_at_the_limit_does_not_flap() -> None:
    swarm = LevelViews()
    swarm.add(60)
    swarm.run(30.0)
    for step in range(24):
        if step % 2:
            swarm.remove(swarm.random.sample(list(swarm.peers), 8))
        else:
            swarm.add(8)
        swarm.run(15.0)
        assert swarm.least_seen() >= len(swarm.peers) - 8
    for peer in swarm.peers.values():
        assert sum(before != after for before, after in pairwise(peer.votes_cast)) <= 2, peer.votes_cast


@pytest.mark.usefixtures("small_dictionaries")
@pytest.mark.parametrize(("num_here", "num_there"), sampled([(20, 150), (150, 150), (30, 280)], one_in=3))
def test_two_parts_with_different_levels_become_one(num_here: int, num_there: int) -> None:
    swarm = LevelViews()
    here = swarm.add(num_here, side=1)
    swarm.add(num_there, side=0)
    swarm.run(60.0)
    for name in here:
        swarm.side_of[name] = 0
    swarm.run(150.0)
    assert swarm.least_seen() == num_here + num_there
    assert len(swarm.votes()) == 1
