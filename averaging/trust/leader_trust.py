"""Choice of the commits to follow in a run among strangers, and detection of leaders that exclude this peer. Pure.

A commit changes the anchors of all members, and by its form a round of one friend is as valid as a round of all. So if
strangers take part (`is_strict`: the run has a robust combination), a commit

- must contain more than a quarter of the trainers that count (`presence.py`), as seen here, and two of three or more. A
  smaller commit is followed only after a time in which other members could have closed a better one, because a swarm
  may really have become that small;
- is not followed at all if it contains no established member except this peer, which knows others: its keys are free;
- must not list this peer as a contributor if it sent nothing for that plan;
- never replaces an earlier commit with more members.

A leader that got an offer and closed the round without it may have had reasons once. Rounds count if their plan came
long after the offer, or never. A leader that does so repeatedly is passed over here for a growing time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from averaging.rounds.waits import LAST_INTERVALS, Waits
from averaging.wire.messages import MAX_ROSTER, Commit, own_entry
from dht.ground.bounds import Newest, Pauses
from dht.ground.host import PeerId

HOSTILE_SHARE = 0.25
"""Share of the trainers that together cannot close a round that is followed. In measurements, honest rounds of slow and
distant peers had three of eight."""
HASTY_SECONDS = 4.0
"""An honest leader waits longer for its quorum, and cannot begin before the version exists."""
IGNORED_IN_A_ROW = 3
"""One offer in five is too late for its round; three in a row with one leader happen by chance once in a hundred."""
FIRST_PASSED_OVER_SECONDS = 120.0
LONGEST_PASSED_OVER_SECONDS = 3600.0
MAX_LEADERS = 1024


@dataclass
class Leaders:
    """One peer's memory of leaders."""

    me: PeerId
    is_strict: bool = False
    _since: dict[int, tuple[int, float]] = field(default_factory=dict)
    _sent: dict[int, dict[tuple[int, int, PeerId], float]] = field(default_factory=dict)
    """For each fragment, the plans (version, attempt, leader) for which own work was sent, and when."""
    _began_at: dict[int, int] = field(default_factory=dict)
    """For each fragment, the version with which this process began. An earlier process may have sent work for its
    plans."""
    _num_ignored: Newest[PeerId, int] = field(default_factory=lambda: Newest(MAX_LEADERS))
    """Consecutive rounds that a leader closed without this peer's offer."""
    _passed_over: Pauses[PeerId] = field(
        default_factory=lambda: Pauses(FIRST_PASSED_OVER_SECONDS, LONGEST_PASSED_OVER_SECONDS, MAX_LEADERS)
    )

    def advanced(self, fragment: int, version: int, now: float, *, is_adopted: bool = False) -> None:
        """Note that a fragment's anchor reached `version` now; `is_adopted`: it was fetched."""
        self._began_at.setdefault(fragment, version if is_adopted else version - 1)
        self._since[fragment] = (version, now)
        sent = self._sent.get(fragment, {})
        self._sent[fragment] = {plan: at for plan, at in sent.items() if plan[0] >= version - 1}

    def sent(self, fragment: int, version: int, attempt: int, leader: PeerId, now: float) -> None:
        self._sent.setdefault(fragment, {}).setdefault((version, attempt, leader), now)

    def objection(
        self,
        commit: Commit,
        trainers: Sequence[PeerId],
        mine: Commit | None,
        timing: Waits,
        now: float,
        *,
        is_of_strangers: bool = False,
        is_first: bool = False,
    ) -> str:
        """Return why another leader's commit on this peer's lineage is not followed now; empty if it is.

        Args:
            trainers: the trainers that count, as seen here.
            mine: the commit that this peer applied at that version.
            is_of_strangers: whether the commit contains no other known member (`MemberPresence.are_strangers`).
            is_first: whether no member is established here: leaders then wait for a quorum until the deadline.
        """
        if not self.is_strict or commit.leader == self.me:
            return ""
        if mine is not None:
            count = len(commit.included)
            is_smaller = 2 * count <= len(mine.included)
            return f"it has {count} members, the commit applied here at least twice as many" * is_smaller
        present = _members(commit)
        if (
            self.me in present
            and commit.version > self._began_at.setdefault(commit.fragment, commit.version)
            and (commit.version, commit.attempt, commit.leader) not in self._sent.get(commit.fragment, ())
        ):
            what = "it includes this peer, which sent nothing for that plan"
            return what if is_of_strangers else self._in_time(commit, what, timing, now, is_first)
        live = {*trainers, self.me}
        fewest, count = _fewest(live), len(present & live)
        if count >= fewest:
            return ""
        what = f"it includes {count} of {len(live)} live trainers; expected {fewest}"
        if is_of_strangers and self.me not in present:
            return f"its commit of version {commit.version} of fragment {commit.fragment} is not followed: {what}"
        return self._in_time(commit, what, timing, now, is_first)

    def _in_time(self, commit: Commit, what: str, timing: Waits, now: float, is_first: bool) -> str:
        version, since = self._since.setdefault(commit.fragment, (commit.version, now))
        # A leader waits no longer for its quorum, and each question of peers that refused its commit brings the commit
        # again.
        interval = timing.interval_seconds
        patience = timing.hard_seconds if is_first or interval is None else LAST_INTERVALS * interval
        if version <= commit.version and now - since < patience:
            return f"its commit of version {commit.version} of fragment {commit.fragment} is not followed yet: {what}"
        return ""

    def is_hasty(self, commit: Commit, before: Commit | None, trainers: Sequence[PeerId], now: float) -> bool:
        """Return whether no leader can have waited for a quorum since the version of `commit` began anywhere.

        The arrival of the version here proves nothing: a peer that was disconnected, did not follow at once, or fetched
        the anchor gets it late, and the rounds of others then seem to have taken no time. Own work in the previous
        commit does prove it: the version cannot have existed before that work was sent. A leader that planned with a
        quorum has waited, since reducers may leave out members with bad input.

        Args:
            before: the commit that led to the version of `commit`; None if unknown.
            trainers: the trainers that count, as seen here.
        """
        if before is None or self.me not in _members(before):
            return False
        sent_at = self._sent.get(commit.fragment, {}).get((before.version, before.attempt, before.leader), -math.inf)
        live = {*trainers, self.me}
        planned = live.intersection(entry.peer_id for entry in commit.roster)
        is_next = before.version == commit.version - 1
        return is_next and now - sent_at < HASTY_SECONDS and len(planned) < _fewest(live)

    def closed(self, commit: Commit, offered_to: PeerId | None, waited_seconds: float, round_seconds: float) -> str:
        """Judge the leader of an applied commit. Return the leader's offence against this peer, or an empty text.

        Args:
            offered_to: leader that had this peer's offer for the version; None: none.
            waited_seconds: seconds from the offer to the commit.
            round_seconds: seconds that such a round takes after its plan.
        """
        if not self.is_strict or offered_to != commit.leader or offered_to == self.me:
            return ""
        if own_entry(commit.roster, self.me) is not None:
            self._num_ignored.pop(commit.leader, None)
            return ""
        if waited_seconds <= round_seconds:
            return ""  # the plan may have been earlier than the offer
        return self.ignored(commit.leader)

    def ignored(self, leader: PeerId) -> str:
        """Count a round that a leader closed without this peer's offer. Return a text with the number so far."""
        number = self._num_ignored.pop(leader, 0) + 1
        self._num_ignored[leader] = number
        return f"left this peer out of {number} rounds in a row that it led"

    def judge(self, leader: PeerId, now: float) -> float:
        """Return the seconds for which a leader is passed over from now on because of ignored offers; 0: not at all."""
        if self._num_ignored.get(leader, 0) < IGNORED_IN_A_ROW:
            return 0.0
        del self._num_ignored[leader]
        return self._passed_over.begin(leader, now)

    def passed_over(self, now: float) -> set[PeerId]:
        return self._passed_over.held(now)


def _fewest(live: Collection[PeerId]) -> int:
    num_contributors = min(len(live), MAX_ROSTER)
    return max(math.floor(HOSTILE_SHARE * num_contributors) + 1, 2 if num_contributors > 2 else 1)


def _members(commit: Commit) -> set[PeerId]:
    return {commit.roster[index].peer_id for index in commit.included}
