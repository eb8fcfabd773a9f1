"""Levels: as many keys as the swarm needs, agreed on by votes, and every record found in one turn of reading."""

from __future__ import annotations

import random
from collections import Counter
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
    SPLIT_ABOVE,
    Levels,
    key_at,
    keys_for,
    may_stand,
    num_keys,
    peers_key,
    turn_seconds,
)
from tests.kit.tiers import sampled

LOOK_SECONDS = 5.0
LIFE_SECONDS = 98.0
MAX_ENTRIES = 128


class LevelPeer:
    """One peer: what it reads next and whom it has read of, with vote and expiry."""

    def __init__(self, name: PeerId) -> None:
        self.name = name
        self.levels = Levels(name)
        self.view: dict[PeerId, tuple[float, int]] = {}
        self.votes_cast: list[int] = []
        self.longer = (0.0, 0.0)

    def num_seen(self, now: float) -> int:
        return sum(expires_at > now for expires_at, _ in self.view.values())


class LevelViews:
    """Steps of one look each; every peer announces itself at every other step."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.peers: dict[PeerId, LevelPeer] = {}
        self.side_of: dict[PeerId, int] = {}
        self.keys: dict[tuple[int, PeerKey], dict[PeerId, tuple[float, int]]] = {}
        self.most_keys_read = 0
        self._num_made = 0

    def add(self, count: int, side: int = 0) -> list[PeerId]:
        names = [PeerId(f"peer {self._num_made + number}") for number in range(count)]
        self._num_made += count
        for name in names:
            self.peers[name] = LevelPeer(name)
            self.side_of[name] = side
        return names

    def remove(self, names: list[PeerId]) -> None:
        for name in names:
            del self.peers[name]

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            for key, entries in list(self.keys.items()):
                self.keys[key] = {name: entry for name, entry in entries.items() if entry[0] > self.now}
            order = list(self.peers.values())
            self.random.shuffle(order)
            for position, peer in enumerate(order):
                self._look(peer)
                if (position + round(self.now / LOOK_SECONDS)) % 2 or not peer.votes_cast:
                    self._announce(peer)

    def votes(self) -> Counter[int]:
        return Counter(peer.levels.vote for peer in self.peers.values())

    def least_seen(self) -> int:
        """Of the peers that are there, how many the peer that sees fewest sees; itself included."""
        return min(
            1 + sum(entry[0] > self.now and name in self.peers for name, entry in peer.view.items())
            for peer in self.peers.values()
        )

    def _announce(self, peer: LevelPeer) -> None:
        vote = peer.levels.vote
        peer.votes_cast.append(vote)
        longer = max(turn_seconds(vote), peer.longer[0] - (self.now - peer.longer[1]))
        peer.longer = (longer, self.now)
        for level in peer.levels.publish_levels():
            assert may_stand(peer.name, vote, level)
            entries = self.keys.setdefault((self.side_of[peer.name], key_at(peer.name, level)), {})
            if peer.name in entries or len(entries) < MAX_ENTRIES:
                entries[peer.name] = (self.now + LIFE_SECONDS + longer, vote)

    def _look(self, peer: LevelPeer) -> None:
        for _ in range(2):
            closely, briefly = peer.levels.next_keys(LOOK_SECONDS)
            keys = (*closely, *briefly)
            assert all(0 <= key.shard < num_keys(key.level) for key in keys)
            self.most_keys_read = max(self.most_keys_read, len(keys))
            for key in keys:
                for name, entry in self.keys.get((self.side_of[peer.name], key), {}).items():
                    if name != peer.name and entry[0] > peer.view.get(name, (0.0, 0))[0]:
                        peer.view[name] = entry
            peer.view = {name: entry for name, entry in peer.view.items() if entry[0] > self.now}
            if not peer.levels.note(vote for _, vote in peer.view.values()):
                return


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


@pytest.fixture
def small_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of everything, so that levels change in swarms of hundreds."""
    monkeypatch.setattr(key_levels, "SPLIT_ABOVE", SPLIT_ABOVE // 4)
    monkeypatch.setattr(key_levels, "MERGE_BELOW", MERGE_BELOW // 4)
    monkeypatch.setattr("tests.dht.records.test_key_levels.MAX_ENTRIES", MAX_ENTRIES // 4 + 16)


@pytest.mark.usefixtures("small_dictionaries")
def test_more_than_level_0_takes_that_start_together_all_find_each_other() -> None:
    """The four keys of level 0 take 192 entries here."""
    swarm = LevelViews()
    swarm.add(200)
    swarm.run(60.0)
    assert swarm.least_seen() == 200
    assert set(swarm.votes()) == {2}
    swarm.run(30.0)
    assert swarm.least_seen() == 200
    assert swarm.most_keys_read <= 9


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
