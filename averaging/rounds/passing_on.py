"""Which member passes a message on to which others, so that nobody sends to all of a large round. Pure.

The members of a round form one tree for each sender, which everybody derives from the roster. Plan and commit name all
members, so their bytes grow with the square of a round: a leader sends them to `FAN_OUT` members, which pass them on.
Up to `DIRECT` members get them from the leader itself: a second hop takes longer than they do.

A mean is smaller the more reducers there are, so a reducer sends its own to each member of its site, and to one member
of each other site, which passes it on there.

Members without work in the round form households, one for each contributor. A contributor passes the commit on to its
household, and each result to one of it, which passes that on to the others.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache

from averaging.wire.messages import RosterEntry
from dht.host import PeerId

DIRECT = 64
"""Members to which a leader sends its plan and commit itself: 1 MB for 64. A second hop of both takes a third of a
second; of 256 members, sending 17 MB takes longer."""
FAN_OUT = 8
"""Members that one passes a message on to where there are more."""


class PassingOn:
    """The trees over the members of one round.

    Args:
        members: each sender is one of them.
        fan_out: to how many members one passes a message on at its site, and from site to site.
        sites: the site of each member, empty when it has none; by default nobody has one.
    """

    def __init__(self, members: Sequence[PeerId], fan_out: int, sites: Sequence[str] = ()) -> None:
        self._fan_out = fan_out
        self._site_of = dict(zip(members, sites or [""] * len(members), strict=True))
        self._sites: dict[str, list[PeerId]] = {}
        for peer_id, site in sorted(self._site_of.items()):
            self._sites.setdefault(site, []).append(peer_id)
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
        """Members of a site, beginning with the sender or another one for each sender."""
        members = self._sites[site]
        own = self._site_of[sender] == site
        start = bisect_left(members, sender) if own else self._place[sender] % len(members)
        return members[start:] + members[:start]


def next_from(leader: PeerId, roster: Sequence[RosterEntry], me: PeerId) -> tuple[PeerId, ...]:
    """The members to which `me` passes a plan or commit on; its leader may have no work in it."""
    return PassingOn(sorted({leader, *(entry.peer_id for entry in roster)}), FAN_OUT).children(leader, me)


passing_on = lru_cache(64)(PassingOn)
"""The same, made once for the same members: asked about for each mean that arrives."""


@lru_cache(8192)
def _hash_of(peer_id: PeerId) -> int:
    return int.from_bytes(hashlib.sha256(b"household " + peer_id.encode()).digest()[:8], "big")


def passer_of(peer_id: PeerId, contributors: Sequence[PeerId]) -> PeerId:
    """The contributor of a round in whose household a peer is that has no work in it."""
    return contributors[_hash_of(peer_id) % len(contributors)]


def household(member: PeerId, contributors: Sequence[PeerId], others: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """The peers without work in a round to which its contributor `member` passes it on; `others` are those known."""
    theirs = {peer_id for peer_id in others if passer_of(peer_id, contributors) == member}
    return tuple(sorted(theirs.difference(contributors)))
