"""Trees along which members pass messages on, so that no peer sends to all members of a large round. Pure.

The members of a round form one tree for each sender, which all derive from the roster. Plan and commit list all
members, so sending them to all grows with the square of a round's size: a leader sends them to `FAN_OUT` members, which
pass them on. Up to `DIRECT` members get them from the leader itself, because a second hop would take longer.

A mean is smaller if there are more reducers, so a reducer sends its mean to each member of its site, and to one member
of each other site, which passes it on there.

Reducers are preferred for passing messages on: their lines are fast enough, and they are reachable. Peers without work
in the round form households, one for each reducer. The reducer passes the commit on to its household, and each result
to one peer in it, which passes it on to the others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from averaging.wire.messages import Commit, Plan
from dht.ground.host import PeerId

DIRECT = 64
"""Members to which a leader sends its plan and commit directly: 1 MB for 64. A second hop of both takes a third of a
second; for 256 members, sending 17 MB directly takes longer."""
FAN_OUT = 8
"""Members to which each member passes a message on in larger rounds."""


class PassingOn:
    """The trees over the members of one round.

    Args:
        members: all members, including each sender.
        passers: members that are preferred for passing messages on.
        fan_out: number of members to which one passes a message on, within its site and from site to site.
        sites: the site of each member, empty if it has none; by default none has one.
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
        """Return the members to which `me` sends a message of `sender`. Each member gets the message once."""
        if sender not in self._site_of or me not in self._site_of:
            return ()
        heads, site = self._heads(sender), self._site_from(sender, self._site_of[me])
        inside = self._children(site, me)
        return (*self._children(heads, me), *inside) if me == site[0] else inside

    def parent(self, sender: PeerId, me: PeerId) -> PeerId | None:
        """Return the member that sends a message of `sender` to `me`; None for the sender and for peers outside the
        round.
        """
        if me == sender or sender not in self._site_of or me not in self._site_of:
            return None
        heads, site = self._heads(sender), self._site_from(sender, self._site_of[me])
        order = heads if me == site[0] else site
        return order[(order.index(me) - 1) // self._fan_out]

    def _children(self, order: Sequence[PeerId], me: PeerId) -> tuple[PeerId, ...]:
        place = order.index(me)
        return tuple(order[self._fan_out * place + 1 : self._fan_out * (place + 1) + 1])

    def _heads(self, sender: PeerId) -> list[PeerId]:
        """Return the first member of each site, beginning with the sender's site."""
        names = sorted(self._sites)
        first = names.index(self._site_of[sender])
        return [self._site_from(sender, name)[0] for name in names[first:] + names[:first]]

    def _site_from(self, sender: PeerId, site: str) -> list[PeerId]:
        """Return the members of a site, beginning with the sender or, at other sites, with a member that depends on the
        sender.
        """
        members = self._sites[site]
        if self._site_of[sender] == site:
            first = members.index(sender)
        else:
            first = self._place[sender] % (self._num_passers[site] or len(members))
        return [members[first], *members[:first], *members[first + 1 :]]


def reducers_of(round_: Plan | Commit) -> tuple[PeerId, ...]:
    """Return the members that average shards of a round, sorted."""
    return tuple(sorted({round_.roster[shard.reducer].peer_id for shard in round_.shards}))


def next_from(leader: PeerId, round_: Plan | Commit, me: PeerId) -> tuple[PeerId, ...]:
    """Return the members to which `me` passes a plan or commit on. Its leader may have no work in it."""
    members = sorted({leader, *(entry.peer_id for entry in round_.roster)})
    return PassingOn(members, reducers_of(round_), FAN_OUT).children(leader, me)


passing_on = lru_cache(64)(PassingOn)
"""Cached `PassingOn`, needed for each arriving mean."""


@lru_cache(8192)
def _hash_of(peer_id: PeerId) -> int:
    return int.from_bytes(hashlib.sha256(b"household " + peer_id.encode()).digest()[:8], "big")


def passer_of(peer_id: PeerId, commit: Commit) -> PeerId:
    """Return the reducer whose household contains a peer without work in the round."""
    reducers = reducers_of(commit)
    return reducers[_hash_of(peer_id) % len(reducers)]


def household(reducer: PeerId, commit: Commit, known: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Return the known peers without work in a round to which a reducer passes its commit and results on."""
    reducers, roster = reducers_of(commit), {entry.peer_id for entry in commit.roster}
    if reducer not in reducers:
        return ()
    place = reducers.index(reducer)
    theirs = {peer_id for peer_id in known if _hash_of(peer_id) % len(reducers) == place}
    return tuple(sorted(theirs - roster))
