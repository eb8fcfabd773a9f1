"""Peers that publish and read as `dht.records.key_levels` says, over dictionaries with a limit; nothing else is
modelled."""

from __future__ import annotations

import random
from collections import Counter

from dht.ground.host import PeerId
from dht.ground.store import PeerKey
from dht.records.key_levels import Levels, key_at, may_stand, num_keys, turn_seconds

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
        self.num_refused = self.num_published = 0
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
            self.num_published += 1
            if peer.name in entries or len(entries) < MAX_ENTRIES:
                entries[peer.name] = (self.now + LIFE_SECONDS + longer, vote)
            else:
                self.num_refused += 1

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
