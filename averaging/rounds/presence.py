"""Which members count in rounds: those that have been there. Pure.

A record costs nothing, and one host publishes any number of them: it only says where to look. What costs work, and what
all peers of a lineage see alike, are contributions in signed commits. So quorum, leaders, patience and medians follow
from the *established* members: trainers with a contribution in the last `COUNTED_COMMITS` commits of a fragment, under
more than one leader. Otherwise one leader could bring any number of keys along, or keep everybody else out.

Members that have only opened a stream to this peer, or answered one, are *newcomers*. Their offers are taken as all
are, so that they are established a round or two later. Until then no quorum needs them. A round gives the last of those
time to offer that introduced themselves or took part in one, as many as count: the first few that are established must
not stay among themselves. Newcomers lead only where no established member answers, and then they weigh no more than
`most_newcomers` together. Where nobody is established, as
in a run's first rounds or after a restart of everybody, all records count. If they are a flood, those alone count whose
work stands in a commit beside that of this peer; without any of them those that introduced themselves or took part in a
round with it, or else all that were met.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from averaging.wire.frames import once_per_commit
from averaging.wire.messages import KEPT_COMMITS, Commit
from dht.ground.bounds import Newest
from dht.ground.host import PeerId

COUNTED_COMMITS = KEPT_COMMITS
"""Rounds, and not seconds: a run may have one in half an hour. A member that vanished stops counting after them."""
FEWEST_LEADERS = 2
FLOOD_OF_MET = 4
"""Records for each member that worked beside this peer, or else was met, above which all others count nothing."""
FEWEST_RIVALS = 4
NEWCOMERS_SHARE = 0.25
"""Of the established members: together newcomers can weigh no more than so many of them."""
MAX_MET = 8192
"""Members that were met, 100 bytes each; the one that was met least recently is forgotten for another."""


def most_newcomers(num_established: int) -> int:
    """How many newcomers may count in the place of so many established members, none of which answers."""
    return max(1, math.floor(NEWCOMERS_SHARE * num_established))


@once_per_commit
def contributors(commit: Commit) -> frozenset[PeerId]:
    """The members whose work is in a commit."""
    return frozenset(commit.roster[index].peer_id for index in commit.included)


def established_in(commits: Sequence[Commit]) -> frozenset[PeerId]:
    """The members with work in some of these commits, under more than one leader."""
    pairs = {(peer_id, commit.leader) for commit in commits for peer_id in contributors(commit)}
    num_leaders = Counter(peer_id for peer_id, _ in pairs)
    return frozenset(peer_id for peer_id, num in num_leaders.items() if num >= FEWEST_LEADERS)


def beside(me: PeerId, commits: Sequence[Commit]) -> frozenset[PeerId]:
    """The other members whose work is in a commit together with that of `me`."""
    together = (contributors(commit) for commit in commits if me in contributors(commit))
    return frozenset().union(*together) - {me}


class CountedTrainers(NamedTuple):
    """The live trainers as rounds see them.

    Attributes:
        counted: those that make the quorum, are waited for, and lead.
        newcomers: those that were met and do not count yet.
        awaited: those that a round gives time to offer, and of whom a commit needs more than a quarter: those that
            count and newcomers that take part; where nobody is established yet, all with a record.
        num_known: how many count with those that do not answer now.
    """

    counted: tuple[PeerId, ...]
    newcomers: tuple[PeerId, ...]
    num_known: int
    awaited: tuple[PeerId, ...]


@dataclass
class MemberPresence:
    """What one peer knows about who has been there, in all fragments together."""

    me: PeerId
    _established: dict[int, frozenset[PeerId]] = field(default_factory=dict)
    _beside_me: dict[int, frozenset[PeerId]] = field(default_factory=dict)
    _in_fragments: Counter[PeerId] = field(default_factory=Counter)
    _met: Newest[PeerId, bool] = field(default_factory=lambda: Newest(MAX_MET))
    """Whether it took part, too: an answer costs a key less."""
    _have_worked: Newest[PeerId, None] = field(default_factory=lambda: Newest(MAX_MET))
    """Members that were established at any time since this process began."""

    def follow(self, fragment: int, commits: Iterable[Commit]) -> bool:
        """Take the commits that led to a fragment's anchor, the newest last; returns whether others count now."""
        newest = list(commits)[-COUNTED_COMMITS:]
        before = self._established.get(fragment, frozenset())
        after = established_in(newest)
        self._established[fragment] = after
        self._beside_me[fragment] = beside(self.me, newest)
        self._in_fragments.update(after - before)
        for peer_id in sorted(after - before):
            self._have_worked[peer_id] = None
            self._have_worked.move_to_end(peer_id)
        if newest and newest[-1].leader != self.me:
            self.take_part(newest[-1].leader)
        for peer_id in before - after:
            self._in_fragments[peer_id] -= 1
            if not self._in_fragments[peer_id]:
                del self._in_fragments[peer_id]
        return before != after

    def meet(self, peer_id: PeerId) -> bool:
        """A member opened a stream to this peer, or answered one; returns whether it is met for the first time."""
        is_new = peer_id not in self._met
        self._met.setdefault(peer_id, False)
        self._met.move_to_end(peer_id)
        return is_new

    def take_part(self, peer_id: PeerId) -> bool:
        """A member introduced itself, or sent what members of rounds send; returns whether it is the first time."""
        is_new = not self._met.get(peer_id, False)
        self._met[peer_id] = True
        self._met.move_to_end(peer_id)
        return is_new

    def has_worked(self, peer_id: PeerId) -> bool:
        """Whether a member was ever established here: the other side of a long split was, before."""
        return peer_id in self._have_worked

    def has_been_there(self, peer_id: PeerId) -> bool:
        """Whether more than a record is known of a member."""
        return peer_id in self._in_fragments or peer_id in self._met

    def counts(self, peer_id: PeerId) -> bool:
        """Whether a trainer counts if it is live: it is established, or nobody is and it was met."""
        return self.has_been_there(peer_id) and (not self._in_fragments or peer_id in self._in_fragments)

    def of_whom_a_quarter(self, commit: Commit, awaited: Sequence[PeerId]) -> Sequence[PeerId]:
        """The trainers of which a commit needs more than a quarter.

        Before anybody is established free keys may be most of them. Then a round that has this peer's work is followed.
        """
        is_own_first = not self._in_fragments and self.me in contributors(commit)
        return (self.me,) if is_own_first else awaited

    def are_strangers(self, commit: Commit) -> bool:
        """Whether a commit has no established member but this peer in it, though others are known here.

        Where nobody is established yet, members that introduced themselves or took part in a round are known.
        """
        known = self._in_fragments.keys() or {peer_id for peer_id, takes_part in self._met.items() if takes_part}
        others = known - {self.me}
        return bool(others) and others.isdisjoint(contributors(commit))

    def see(self, trainers: Collection[PeerId], silent: Collection[PeerId] = ()) -> CountedTrainers:
        """Which of the trainers with live records count.

        Args:
            trainers: those that are not suspected, this peer included if it trains.
            silent: those that do not answer now.
        """
        everyone = {*trainers, *silent}
        counted = self._counted(everyone)
        here = tuple(peer_id for peer_id in trainers if peer_id in counted)
        newcomers = tuple(peer_id for peer_id in trainers if peer_id not in counted and self.has_been_there(peer_id))
        is_open = counted == everyone and self._in_fragments.keys().isdisjoint(counted)
        awaited = tuple(trainers) if is_open else (*here, *self._rivals(newcomers, len(here)))
        return CountedTrainers(here, newcomers, len(counted), awaited)

    def _rivals(self, newcomers: Sequence[PeerId], num_counted: int) -> list[PeerId]:
        """The newcomers that took part last, as many as count at most: a few established must not stay among them."""
        unestablished = set(newcomers)
        taking_part = [peer_id for peer_id in reversed(self._met) if self._met[peer_id] and peer_id in unestablished]
        return sorted(taking_part[: max(FEWEST_RIVALS, num_counted)])

    def _coworkers(self) -> frozenset[PeerId]:
        return frozenset[PeerId]().union(*self._beside_me.values())

    def _counted(self, candidates: set[PeerId]) -> set[PeerId]:
        if established := candidates & self._in_fragments.keys():
            return established
        met = {peer_id for peer_id in candidates if peer_id in self._met}
        counted = {peer_id for peer_id in met if self._met[peer_id]} or met
        # Keys that answer and introduce themselves are as free; work beside one's own is not.
        if coworkers := candidates & self._coworkers():
            counted = coworkers
        # Only a flood of records is another matter than records of which some have not been met yet.
        is_flood = len(candidates) > FLOOD_OF_MET * (len(counted) + 1)
        return counted | (candidates & {self.me}) if counted and is_flood else candidates
