"""Which member passes a message on to which others, so that nobody sends to all of a large round. Pure.

The members of a round form one tree for each sender, which everybody derives from the roster. Plan and commit name all
members, so their bytes grow with the square of a round: a leader sends them to `FAN_OUT` members, which pass them on.
Up to `DIRECT` members get them from the leader itself: a second hop takes longer than they do.

A mean is smaller the more reducers there are, so a reducer sends its own to each member of its site, and to one member
of each other site, which passes it on there.

Reducers pass things on before others do: their lines are fast enough, and they can be reached. Members without work in
the round form households, one for each reducer. It passes the commit on to its household, and each result to one of it,
which passes that on to the others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from averaging.wire.messages import Commit, Plan
from dht.ground.host import PeerId

DIRECT = 64
"""Members to which a leader sends its plan and commit itself: 1 MB for 64. A second hop of both takes a third of a
second; of 256 members, sending 17 MB takes longer."""
FAN_OUT = 8
"""Members that one passes a message on to where there are more."""


class PassingOn:
    """The trees over the members of one round.

    Args:
        members: each sender is one of them.
        passers: those of them that pass messages on before others do.
        fan_out: to how many members one passes a message on at its site, and from site to site.
        sites: the site of each member, empty when it has none; by default nobody has one.
    """

    def __init__(
        self, members: Sequence[PeerId], passers: Collection[PeerId], fan_out: int, sites: Sequence[str] = ()
    ) -> None:
        self._fan_out = fan_out
        self._site_of = dict(zip(members, sites or [""] * len(members), strict=True))
        self._sites: dict[str, list[PeerId]] = {}
        for peer_id, site in sorted(self._site_of.items(), key=lambda item: (item[0] not in passers, item[0])):
            self._sites.setdefault(site, []).append(peer_id)
        self._num_passers = Counter(site for peer_id, site in self._site_of.items() if peer_id in passers)
        self._place = {peer_id: index for index, peer_id in enumerate(sorted(self._site_of))}

    def children(self, sender: PeerId, me: PeerId) -> tuple[PeerId, ...]:
        """The members to which `me` sends a message of `sender`, which every member gets once."""
        if sender not in self._site_of or me not in self._site_of:
            return ()
        heads, site = self._heads(sender), self._site_from(sender, self._site_of[me])
        inside = self._children(site, me)
        return (*self._children(heads, me), *inside) if me == site[0] else inside

    def parent(self, sender: PeerId, me: PeerId) -> PeerId | None:
        """The member that sends a message of `sender` to `me`; None for the sender and for no members."""
        if me == sender or sender not in self._site_of or me not in self._site_of:
            return None
        heads, site = self._heads(sender), self._site_from(sender, self._site_of[me])
        order = heads if me == site[0] else site
        return order[(order.index(me) - 1) // self._fan_out]

    def _children(self, order: Sequence[PeerId], me: PeerId) -> tuple[PeerId, ...]:
        place = order.index(me)
        return tuple(order[self._fan_out * place + 1 : self._fan_out * (place + 1) + 1])

    def _heads(self, sender: PeerId) -> list[PeerId]:
        """The first member of each site, beginning with that of the sender."""
        names = sorted(self._sites)
        first = names.index(self._site_of[sender])
        return [self._site_from(sender, name)[0] for name in names[first:] + names[:first]]

    def _site_from(self, sender: PeerId, site: str) -> list[PeerId]:
        """Members of a site, beginning with the sender, or with another one that passes on for each sender."""
        members = self._sites[site]
        if self._site_of[sender] == site:
            first = members.index(sender)
        else:
            first = self._place[sender] % (self._num_passers[site] or len(members))
        return [members[first], *members[:first], *members[first + 1 :]]


def reducers_of(round_: Plan | Commit) -> tuple[PeerId, ...]:
    """The members that average shards of a round, in order."""
    return tuple(sorted({round_.roster[shard.reducer].peer_id for shard in round_.shards}))


def next_from(leader: PeerId, round_: Plan | Commit, me: PeerId) -> tuple[PeerId, ...]:
    """The members to which `me` passes a plan or commit on; its leader may have no work in it."""
    members = sorted({leader, *(entry.peer_id for entry in round_.roster)})
    return PassingOn(members, reducers_of(round_), FAN_OUT).children(leader, me)


passing_on = lru_cache(64)(PassingOn)
"""The same, made once for the same members: asked about for each mean that arrives."""


@lru_cache(8192)
def _hash_of(peer_id: PeerId) -> int:
    return int.from_bytes(hashlib.sha256(b"household " + peer_id.encode()).digest()[:8], "big")


def passer_of(peer_id: PeerId, commit: Commit) -> PeerId:
    """The reducer in whose household a peer is that has no work in the round."""
    reducers = reducers_of(commit)
    return reducers[_hash_of(peer_id) % len(reducers)]


def household(reducer: PeerId, commit: Commit, known: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Those of the known peers without work in a round to which a reducer passes its commit and results on."""
    reducers, roster = reducers_of(commit), {entry.peer_id for entry in commit.roster}
    if reducer not in reducers:
        return ()
    place = reducers.index(reducer)
    theirs = {peer_id for peer_id in known if _hash_of(peer_id) % len(reducers) == place}
    return tuple(sorted(theirs - roster))
