"""Decide which DHT keys peer records are stored under, and which of those keys each lookup reads. Pure.

Each key holds a dictionary of limited size, and a lookup can read only a few keys. So the number of keys follows the
size of the swarm: at *level* L there are 4 * 2^L keys. The first bits of a hash of the PeerId select the key of a
record. Levels change so that a key has 24 to 64 records on average.

No peer decides the level. Each peer *votes* for one in its signed record, from the members in its view and with
hysteresis: small fluctuations in swarm size do not change the level. Peers with different votes find each other:

- a peer publishes under the level of its vote, and under a neighbouring level that some peers in its view vote for,
- it reads the level of its vote if a quarter votes for that level, and otherwise the most common level. So all peers
  publish under a level before any peer relies on it,
- one peer in 2^L, a *beacon*, also publishes at level 0, which is thus as full as level L. So a newcomer, which begins
  at level 0, gets a fair sample and its votes. All peers also read level 0 in turn,
- parts of a split swarm may meet again, levels apart. At first only beacons are visible. A peer that sees votes for a
  level that is not its neighbour reads that level's keys once, and moves there if most peers are there.

At level 0 each lookup reads all four keys. Above, it reads the peer's own key from several holders, and the others in
turn from one holder: the same number per second in a swarm of any size. A record lives longer by the time of a turn, so
that a view holds all peers.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from dht.ground.host import PeerId
from dht.ground.store import LEVEL_0_KEYS, NUM_PEER_SHARDS, PeerKey

MAX_LEVEL: Final = 6
"""256 keys: 16 000 peers at 64 records each, and 32 000 at the limit of a dictionary."""
SPLIT_ABOVE: Final = 64
"""Average records of a key; by chance one of 256 keys then has 100, and a dictionary holds 128."""
MERGE_BELOW: Final = 24
"""Merged keys then have 48 records, far from the next split."""
PUBLISH_SHARE: Final = 1 / 16
"""Share of the votes in a view for a neighbouring level: fewer are a handful of stragglers, which read the most common
level."""
READ_SHARE: Final = 1 / 4
"""Four times as much, because views differ, and a reader of a level relies on all peers publishing there."""
COMFORT: Final = 1.15
"""A peer follows the most common vote only if its own count is far enough from the limits that it will not turn
back."""
SECONDS_PER_KEY: Final = 1.25
"""Seconds between two keys that are read in turn. A lookup every 5 s reads four, about as many bytes as all keys of a
full level 0."""
TURN_SECONDS_PER_KEY: Final = 1.5
"""The same, including the time of the lookups."""


def num_keys(level: int) -> int:
    return NUM_PEER_SHARDS << level


def peers_key(run_id: str, key: PeerKey) -> str:
    """Return the DHT key of one part of the peer records: a dictionary from PeerId to record."""
    return f"{run_id}/peers/{key.level}/{key.shard}" if key.level else f"{run_id}/peers/{key.shard}"


@lru_cache(maxsize=8192)
def _hash_of(peer_id: PeerId) -> bytes:
    return hashlib.sha256(b"cell " + peer_id.encode()).digest()


def prefix_of(peer_id: PeerId, num_bits: int) -> int:
    """Return the first `num_bits` (at most 64) bits of a hash of a PeerId as a number. Parts of the swarm by hash are
    nested.
    """
    return int.from_bytes(_hash_of(peer_id)[:8], "big") >> (64 - num_bits)


def shard_of(peer_id: PeerId, num_shards: int = NUM_PEER_SHARDS) -> int:
    """Return the part that holds `peer_id`, by the first bits of its hash, evenly over `num_shards`."""
    return prefix_of(peer_id, 64) * num_shards >> 64


def key_at(peer_id: PeerId, level: int) -> PeerKey:
    return PeerKey(level, shard_of(peer_id, num_keys(level)))


def is_beacon(peer_id: PeerId, vote: int) -> bool:
    """Return whether a peer with this vote also publishes at level 0: one peer in 2^vote, by other bits of the hash."""
    return int.from_bytes(_hash_of(peer_id)[8:16], "big") >> (64 - vote) == 0


def may_stand(peer_id: PeerId, vote: int, level: int) -> bool:
    return 0 <= level <= MAX_LEVEL and (abs(level - vote) <= 1 or (level == 0 and is_beacon(peer_id, vote)))


def keys_for(peer_id: PeerId, vote: int) -> tuple[PeerKey, ...]:
    """Return all keys under which a record with this vote may be stored."""
    levels = sorted({0, vote - 1, vote, vote + 1})
    return tuple(key_at(peer_id, level) for level in levels if may_stand(peer_id, vote, level))


def level_for(num_members: int, level: int) -> int:
    """Return the level for `num_members` members, starting from `level`."""
    while level < MAX_LEVEL and num_members > SPLIT_ABOVE * num_keys(level):
        level += 1
    while level and num_members < MERGE_BELOW * num_keys(level):
        level -= 1
    return level


def turn_seconds(level: int) -> float:
    """Return the longest time until each key of a level has been read again; 0 if each lookup reads all keys."""
    return TURN_SECONDS_PER_KEY * (num_keys(level) + NUM_PEER_SHARDS) if level else 0.0


class Levels:
    """One peer's vote, and the keys that it publishes under and reads next. Call `note` after each lookup.

    Args:
        peer_id: None for an observer, which publishes no record.
    """

    def __init__(self, peer_id: PeerId | None = None) -> None:
        self._peer_id = peer_id
        self._votes: Counter[int] = Counter()
        self._waiting: deque[PeerKey] = deque()
        self._is_turn_over = False
        self._is_settled = False
        """Whether the view covers a whole turn, so that few members mean a small swarm."""
        self._explored: int | None = None
        self._unexplored: deque[PeerKey] = deque()
        self._disproved: dict[int, int] = {}
        """Levels whose keys held fewer records than their votes promised after all were read, and the number of those
        votes."""
        self.vote = 0
        self.read_level = 0

    def publish_levels(self) -> tuple[int, ...]:
        """Return the levels under which this peer's record is published, its vote first."""
        levels = [self.vote]
        for level in (self.vote - 1, self.vote + 1):
            if 0 <= level <= MAX_LEVEL and self._share(level) >= PUBLISH_SHARE:
                levels.append(level)
        if 0 not in levels and self._peer_id is not None and is_beacon(self._peer_id, self.vote):
            levels.append(0)
        return tuple(levels)

    def next_keys(self, look_seconds: float) -> tuple[Sequence[PeerKey], Sequence[PeerKey]]:
        """Return (keys to read from several holders, keys to read from one) for a lookup; the next one follows after
        `look_seconds`.
        """
        count = max(1, math.ceil(look_seconds / SECONDS_PER_KEY))
        exploring = [self._unexplored.popleft() for _ in range(min(count, len(self._unexplored)))]
        if not self.read_level:
            self._is_turn_over = True
            return LEVEL_0_KEYS, exploring
        own = () if self._peer_id is None else (key_at(self._peer_id, self.read_level),)
        if not self._waiting:
            self._begin_turn()
        briefly = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        self._is_turn_over = self._is_turn_over or not self._waiting
        return own, briefly + exploring

    def note(self, votes: Iterable[int] | Mapping[int, int]) -> bool:
        """Set the votes of all other live members in the view.

        Returns True if a different set of keys is read from now on.

        Args:
            votes: one vote for each member, or the number of votes for each level.
        """
        self._votes = Counter(votes)
        num_members = self._votes.total() + 1
        if self._is_settled:
            self._votes[self.vote] += 1
        read_level = self._level_to_read()
        has_changed = read_level != self.read_level
        if has_changed:
            # A peer that changes by its own vote has already read the swarm; a peer that follows others must first read
            # it.
            self._is_settled = self._is_settled and read_level == self.vote
            self.read_level = read_level
            self._is_turn_over = False
            self._waiting.clear()
        elif self._is_turn_over:
            self._is_settled = True
            if level_for(num_members, read_level) < read_level:
                self._disproved[read_level] = self._votes[read_level]
        self._explore()
        self.vote = self._next_vote(num_members)
        return has_changed

    def _level_to_read(self) -> int:
        commonest = max(self._votes, key=lambda level: (self._votes[level], -level), default=0)
        if self._is_settled and self._share(self.vote) >= READ_SHARE:
            has_explored = commonest == self._explored and not self._unexplored
            return commonest if has_explored and not self._is_disproved(commonest) else self.vote
        return commonest

    def _explore(self) -> None:
        """Read the keys of a level two or more away with votes: only the beacons of its members are visible here.

        Its members may be the other part of a split swarm, members that left a level which a sudden crowd had filled,
        or keys made to mislead. The records stored there decide.
        """
        if self._explored is not None and not self._unexplored:
            if self._explored != self.read_level:
                self._disproved[self._explored] = self._votes[self._explored]
            self._explored = None
        far = [level for level in self._votes if self._is_far(level) and not self._is_disproved(level)]
        if self._is_settled and self._explored is None and far:
            self._explored = max(far, key=lambda level: self._votes[level] << level)
            self._unexplored.extend(PeerKey(self._explored, shard) for shard in range(num_keys(self._explored)))

    def _is_far(self, level: int) -> bool:
        """Return whether a peer with this vote may be stored only where this peer neither publishes nor reads."""
        return level != self.read_level and max(abs(level - self.vote), abs(level - self.read_level)) > 1

    def _is_disproved(self, level: int) -> bool:
        return self._votes[level] <= 2 * self._disproved.get(level, 0)

    def _next_vote(self, num_members: int) -> int:
        if not self._is_settled:
            return max(self.read_level, level_for(num_members, self.read_level))
        read = self.read_level
        is_above_floor = not read or num_members >= COMFORT * MERGE_BELOW * num_keys(read)
        is_below_ceiling = read == MAX_LEVEL or COMFORT * num_members <= SPLIT_ABOVE * num_keys(read)
        return read if is_above_floor and is_below_ceiling else level_for(num_members, self.vote)

    def _share(self, level: int) -> float:
        return self._votes[level] / self._votes.total() if self._votes else 0.0

    def _begin_turn(self) -> None:
        count = num_keys(self.read_level)
        own = -1 if self._peer_id is None else key_at(self._peer_id, self.read_level).shard
        # Peers begin at different keys, so that they do not all read the same key at once.
        shards = [(own + step) % count for step in range(1, count + (own < 0))]
        self._waiting.extend((*LEVEL_0_KEYS, *(PeerKey(self.read_level, shard) for shard in shards)))
