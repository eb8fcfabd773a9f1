"""Levels: as many keys as the swarm needs, agreed on by votes, and every record found in one turn of reading."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.host import PeerId
from dht.ground.store import LEVEL_0_KEYS, PeerKey
from dht.records import key_levels
from dht.records.key_levels import (
    MAX_LEVEL,
    MERGE_BELOW,
    SECONDS_PER_KEY,
    SPLIT_ABOVE,
    Levels,
    is_beacon,
    key_at,
    keys_for,
    level_for,
    may_stand,
    num_keys,
    peers_key,
    shard_of,
    turn_seconds,
)
from tests.kit.network import level_views
from tests.kit.network.level_views import LevelViews
from tests.kit.tiers import sampled

ME = PeerId("me")
ALL_LEVELS = range(MAX_LEVEL + 1)
names = st.binary(min_size=1, max_size=20).map(lambda data: PeerId(data.hex()))


def test_the_level_for_every_size_and_whatever_it_was_before() -> None:
    for before in ALL_LEVELS:
        found = [level_for(count, before) for count in range(40_000)]
        assert found == sorted(found)
        for count, level in enumerate(found):
            assert level == MAX_LEVEL or count <= SPLIT_ABOVE * num_keys(level)
            assert level == 0 or count >= MERGE_BELOW * num_keys(level)
    # Whoever has just changed stays there though the swarm shrinks or grows by a quarter.
    for level in range(MAX_LEVEL):
        most, least = SPLIT_ABOVE * num_keys(level), MERGE_BELOW * num_keys(level + 1)
        assert level_for(most + 1, level) == level + 1
        assert all(level_for(count, level + 1) == level + 1 for count in range(most * 3 // 4, most + 1))
        assert level_for(least - 1, level + 1) == level
        assert all(level_for(count, level) == level for count in range(least, least * 5 // 4 + 1))


def test_a_swarm_that_stays_below_the_first_limit_stays_at_level_0() -> None:
    assert all(level_for(count, 0) == 0 for count in range(SPLIT_ABOVE * len(LEVEL_0_KEYS) + 1))


@given(name=names, vote=st.sampled_from(ALL_LEVELS), level=st.integers(-2, MAX_LEVEL + 2))
def test_where_a_record_may_stand(name: PeerId, vote: int, level: int) -> None:
    keys = keys_for(name, vote)
    assert (level in {key.level for key in keys}) == may_stand(name, vote, level)
    assert all(key == key_at(name, key.level) and 0 <= key.shard < num_keys(key.level) for key in keys)
    assert len({peers_key("run", key) for key in keys}) == len(keys) <= 4
    assert key_at(name, vote) in keys


@given(name=names, level=st.integers(1, MAX_LEVEL))
def test_keys_nest(name: PeerId, level: int) -> None:
    assert key_at(name, level).shard // 2 == key_at(name, level - 1).shard
    assert is_beacon(name, level - 1) or not is_beacon(name, level)


def test_one_in_two_to_the_level_is_a_beacon_evenly_over_the_keys() -> None:
    many = [PeerId(f"peer {number}") for number in range(16_384)]
    for level in ALL_LEVELS:
        beacons = [name for name in many if is_beacon(name, level)]
        expected = len(many) / 2**level
        assert abs(len(beacons) - expected) <= 5 * math.sqrt(expected)
        assert len(beacons) / 4 * 0.5 <= min(sum(shard_of(name) == shard for name in beacons) for shard in range(4))


def settled_at(level: int, peer_id: PeerId | None = ME) -> Levels:
    """Levels of a peer whose view shows as many members as fit this level well, all of that vote."""
    found = Levels(peer_id)
    for _ in range(2):
        found.next_keys(5.0)
        found.note([level] * (40 * num_keys(level)))
    assert (found.read_level, found.vote) == (level, level)
    return found


@pytest.mark.parametrize("peer_id", [ME, None])
@pytest.mark.parametrize("look_seconds", [0.5, 2.0, 5.0, 30.0, 300.0])
def test_each_turn_reads_all_keys_once_and_in_time(look_seconds: float, peer_id: PeerId | None) -> None:
    for level in range(1, MAX_LEVEL + 1):
        found = settled_at(level, peer_id)
        own = [] if peer_id is None else [key_at(peer_id, level)]
        wanted = {*LEVEL_0_KEYS, *(PeerKey(level, shard) for shard in range(num_keys(level)))} - set(own)
        read: list[PeerKey] = []
        found._waiting.clear()
        num_looks = 0
        while len(read) < len(wanted):
            closely, briefly = found.next_keys(look_seconds)
            assert list(closely) == own
            assert 1 <= len(briefly) <= math.ceil(look_seconds / SECONDS_PER_KEY)
            read += briefly
            num_looks += 1
        assert len(read) == len(wanted)
        assert set(read) == wanted
        # Looks come after 0.8 to 1.2 times that; the last one may have little left to read.
        assert (num_looks - 1) * look_seconds <= turn_seconds(level)


def test_a_small_swarm_reads_the_four_keys_in_each_look_and_publishes_under_one() -> None:
    found = Levels(ME)
    for count in [*range(SPLIT_ABOVE * 4), *reversed(range(SPLIT_ABOVE * 4))]:
        assert found.next_keys(5.0) == (LEVEL_0_KEYS, [])
        assert not found.note([0] * count)
        assert found.publish_levels() == (0,)
        assert (found.vote, found.read_level) == (0, 0)


def test_a_newcomer_goes_where_the_sample_at_level_0_votes() -> None:
    for level in range(1, MAX_LEVEL + 1):
        found = Levels(ME)
        found.next_keys(5.0)
        assert found.note([level] * 40)
        assert (found.read_level, found.vote) == (level, level)
        assert found.publish_levels()[0] == level
        # Though it has read a few keys only, it does not take the swarm for a small one.
        found.next_keys(5.0)
        assert not found.note([level] * 60)
        assert found.vote == level


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


def test_who_reads_what_a_crowd_left_behind_looks_where_it_went_until_it_is_there() -> None:
    """It votes for that level itself, but the records that filled level 0 at the start vote for 0 until they expire."""
    found = Levels(ME)

    def explored_after(num_votes: int) -> list[PeerKey]:
        keys = []
        for _ in range(6):
            found.note([0] * 550 + [2] * num_votes)
            keys += found.next_keys(5.0)[1]
        assert (found.vote, found.read_level) == (2, 0)
        return sorted(keys)

    found.next_keys(5.0)
    everything = [PeerKey(2, shard) for shard in range(num_keys(2))]
    assert explored_after(20) == everything
    # Those who came first had few to find there; twice as many votes are worth another look.
    assert explored_after(30) == []
    assert explored_after(60) == everything
    found.note([0] * 550 + [2] * 400)
    assert found.read_level == 2


def test_a_neighbouring_level_is_published_under_long_before_it_is_read() -> None:
    found = settled_at(2)
    published_at = read_at = 0
    for share in range(1, 100):
        found.next_keys(5.0)
        found.note([2] * (10 * (100 - share)) + [3] * (10 * share))
        if 3 in found.publish_levels() and not published_at:
            published_at = share
        if found.read_level == 3 and not read_at:
            read_at = share
    assert 0 < published_at <= 7
    assert read_at >= 25


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
