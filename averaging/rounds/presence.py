"""Which members count in rounds: those with past work or contact. Pure.

A record costs nothing, and one host can publish any number of them, so a record only shows where to look. Contributions
in signed commits cost work, and all peers of a lineage see the same ones. So quorum, leaders, patience and medians
depend on members with work under more than one leader. Otherwise one leader could bring any number of keys along, or
keep all other members out.

Members that have only opened a stream to this peer, or answered one, are *newcomers*. Their offers are accepted like
all others, so they become established a round or two later. Until then no quorum needs them. A round gives time to
offer to the newcomers that introduced themselves or took part most recently, as many as there are members that count:
otherwise the first few established members could stay among themselves. Newcomers lead only if no established member
answers, and together they then weigh no more than `most_newcomers`. If no member is established, as in a run's first
rounds or after a restart of all peers, all records count. If the records are a flood, only members with work in a
commit beside this peer's count; without such members, those that introduced themselves or took part in a round with
this peer; without those, all that were met.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from averaging.rounds.machine_events import View
from averaging.wire.frames import once_per_commit
from averaging.wire.messages import KEPT_COMMITS, Commit
from dht.ground.bounds import Newest
from dht.ground.host import PeerId

COUNTED_COMMITS = KEPT_COMMITS
"""Rounds, not seconds: a run may have one in half an hour. A member that disappeared stops counting after this many."""
FEWEST_LEADERS = 2
FLOOD_OF_MET = 4
"""Records for each member that worked beside this peer, or otherwise was met, above which the other records do not
count."""
FEWEST_RIVALS = 4
NEWCOMERS_SHARE = 0.25
"""Together newcomers weigh at most this share of the established members."""
MAX_MET = 8192
"""Members that were met, 100 bytes each. A new member displaces the one that was met least recently."""


def most_newcomers(num_established: int) -> int:
    """Return how many newcomers may count instead of `num_established` members, none of which answers."""
    return max(1, math.floor(NEWCOMERS_SHARE * num_established))


@once_per_commit
def contributors(commit: Commit) -> frozenset[PeerId]:
    """Return the members whose work is in a commit."""
    return frozenset(commit.roster[index].peer_id for index in commit.included)


def established_in(commits: Sequence[Commit]) -> frozenset[PeerId]:
    """Return the members with work in these commits under more than one leader."""
    pairs = {(peer_id, commit.leader) for commit in commits for peer_id in contributors(commit)}
    num_leaders = Counter(peer_id for peer_id, _ in pairs)
    return frozenset(peer_id for peer_id, num in num_leaders.items() if num >= FEWEST_LEADERS)


def beside(me: PeerId, commits: Sequence[Commit]) -> frozenset[PeerId]:
    """Return the other members whose work is in a commit together with that of `me`."""
    together = (contributors(commit) for commit in commits if me in contributors(commit))
    return frozenset().union(*together) - {me}


@dataclass
class MemberPresence:
    """One peer's knowledge of the past participation of members, in all fragments together."""

    me: PeerId
    _established: dict[int, frozenset[PeerId]] = field(default_factory=dict)
    _beside_me: dict[int, frozenset[PeerId]] = field(default_factory=dict)
    _in_fragments: Counter[PeerId] = field(default_factory=Counter)
    _met: Newest[PeerId, bool] = field(default_factory=lambda: Newest(MAX_MET))
    """By member: whether it also took part. Merely answering costs a key less."""
    _have_worked: Newest[PeerId, None] = field(default_factory=lambda: Newest(MAX_MET))
    """Members that were ever established since this process began."""

    def follow(self, fragment: int, commits: Iterable[Commit]) -> bool:
        """Process the commits that led to a fragment's anchor, the newest last. Return whether the members that count
        changed.
        """
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
        """Note that a member opened a stream to this peer, or answered one. Return whether this is the first time."""
        is_new = peer_id not in self._met
        self._met.setdefault(peer_id, False)
        self._met.move_to_end(peer_id)
        return is_new

    def take_part(self, peer_id: PeerId) -> bool:
        """Note that a member introduced itself, or sent a message that only members of rounds send. Return whether this
        is the first time.
        """
        is_new = not self._met.get(peer_id, False)
        self._met[peer_id] = True
        self._met.move_to_end(peer_id)
        return is_new

    @property
    def knows_workers(self) -> bool:
        """Whether any member is established here."""
        return bool(self._in_fragments)

    def has_worked(self, peer_id: PeerId) -> bool:
        """Return whether a member was ever established here, like the other side of a long split."""
        return peer_id in self._have_worked

    def has_been_there(self, peer_id: PeerId) -> bool:
        """Return whether more than a record is known of a member."""
        return peer_id in self._in_fragments or peer_id in self._met

    def counts(self, peer_id: PeerId) -> bool:
        """Return whether a live trainer counts: it is established, or this peer met it and no member is established."""
        return self.has_been_there(peer_id) and (not self._in_fragments or peer_id in self._in_fragments)

    def of_whom_a_quarter(
        self, commit: Commit, awaited: Sequence[PeerId], others: Sequence[PeerId]
    ) -> Sequence[PeerId]:
        """Return the trainers of which a commit needs more than a quarter.

        Before any member is established, most of them may be free keys. Then a round that contains this peer's work is
        followed. And one of the `others` counts, which are known, but still join or were not met yet: the first member
        that this peer meets may be a stranger that is alone in its round.
        """
        if self._in_fragments:
            return awaited
        return (self.me,) if self.me in contributors(commit) else (*awaited, *others[:1])

    def are_strangers(self, commit: Commit) -> bool:
        """Return whether a commit contains no established member except this peer, although others are known here.

        If no member is established, members that introduced themselves or took part in a round are known.
        """
        known = self._in_fragments.keys() or {peer_id for peer_id, takes_part in self._met.items() if takes_part}
        others = known - {self.me}
        return bool(others) and others.isdisjoint(contributors(commit))

    def see(self, trainers: Collection[PeerId], silent: Collection[PeerId] = ()) -> View:
        """Return which of the trainers with live records count, without followers.

        Args:
            trainers: trainers that are not suspected, including this peer if it trains.
            silent: trainers that do not answer now.
        """
        everyone = {*trainers, *silent}
        counted = self._counted(everyone)
        here = tuple(peer_id for peer_id in trainers if peer_id in counted)
        newcomers = tuple(peer_id for peer_id in trainers if peer_id not in counted and self.has_been_there(peer_id))
        is_open = counted == everyone and self._in_fragments.keys().isdisjoint(counted)
        awaited = tuple(trainers) if is_open else (*here, *self._rivals(newcomers, len(here)))
        return View(here, (), len(counted), newcomers, awaited)

    def _rivals(self, newcomers: Sequence[PeerId], num_counted: int) -> list[PeerId]:
        """Return the newcomers that took part last, at most as many as count: a few established members must not stay
        among themselves.
        """
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
        # Keys that answer and introduce themselves also cost nothing, unlike work beside this peer's.
        if coworkers := candidates & self._coworkers():
            counted = coworkers
        # A few records of members that were not met are normal; a flood of them is not.
        is_flood = len(candidates) > FLOOD_OF_MET * (len(counted) + 1)
        return counted | (candidates & {self.me}) if counted and is_flood else candidates
