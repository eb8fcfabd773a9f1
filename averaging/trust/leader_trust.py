"""Which commits of others are followed in a run among strangers, and which leaders left this peer out. Pure.

A commit moves the anchors of all, and by its form alone a round of one friend is as good as a round of everybody. So
where strangers take part (`is_strict`: the run has a robust combination), a commit

- must have more than a quarter of the trainers that count (`presence.py`) in it, as they are seen here. One without is
  followed only after a time in which the others could have closed a better one. A swarm may really have become that
  small;
- is not followed at all if it has no established member in it but this peer, which knows others. Its keys are free;
- must not name this peer as a contributor when it sent nothing for that plan;
- never replaces an earlier one that more members were in.

A leader that heard an offer and closed the round without it may have had its reasons once. Counted are rounds whose
plan came long after the offer, or never. A leader that does so again and again is passed over here for a growing time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from averaging.rounds.waits import LAST_INTERVALS, QUIET_SECONDS, Waits
from averaging.wire.messages import MAX_ROSTER, Commit, own_entry
from dht.ground.bounds import Newest, Pauses
from dht.ground.host import PeerId

HOSTILE_SHARE = 0.25
"""Of the trainers: so many together close no round that is followed. Honest rounds of slow and distant peers have been
seen with three of eight."""
HASTY_SECONDS = 4.0
"""An honest leader waits longer for its quorum, and it cannot have begun before the version was there."""
IGNORED_IN_A_ROW = 3
"""One offer in five comes too late for its round; three in a row with one leader are no chance, at one in a hundred."""
FIRST_PASSED_OVER_SECONDS = 120.0
LONGEST_PASSED_OVER_SECONDS = 3600.0
MAX_LEADERS = 1024


@dataclass
class Leaders:
    """What one peer remembers about leaders."""

    me: PeerId
    is_strict: bool = False
    _since: dict[int, tuple[int, float]] = field(default_factory=dict)
    _sent: dict[int, dict[tuple[int, int, PeerId], float]] = field(default_factory=dict)
    """Per fragment, the plans (version, attempt, leader) that own work was sent for, and when."""
    _began_at: dict[int, int] = field(default_factory=dict)
    """Per fragment the version that this process began with; an earlier process may have sent work to its plans."""
    _num_ignored: Newest[PeerId, int] = field(default_factory=lambda: Newest(MAX_LEADERS))
    """Rounds in a row that a leader closed without this peer's offer."""
    _passed_over: Pauses[PeerId] = field(
        default_factory=lambda: Pauses(FIRST_PASSED_OVER_SECONDS, LONGEST_PASSED_OVER_SECONDS, MAX_LEADERS)
    )

    def advanced(self, fragment: int, version: int, now: float, *, is_adopted: bool = False) -> None:
        """The anchor of a fragment is at `version` since now; `is_adopted`: it was fetched."""
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
    ) -> str:
        """Why a commit of another leader on this peer's lineage is not followed now; empty when it is.

        Args:
            trainers: those that count, as they are seen here.
            mine: the commit of that version that was applied here.
            is_of_strangers: no other member in it has been there before (`MemberPresence.are_strangers`).
        """
        if not self.is_strict or commit.leader == self.me:
            return ""
        if mine is not None:
            count = len(commit.included)
            is_smaller = 2 * count <= len(mine.included)
            return f"it has {count} members, the one that counts here more than twice as many" * is_smaller
        present = _members(commit)
        if (
            self.me in present
            and commit.version > self._began_at.setdefault(commit.fragment, commit.version)
            and (commit.version, commit.attempt, commit.leader) not in self._sent.get(commit.fragment, ())
        ):
            what = "it names this peer, which sent nothing for that plan"
            return what if is_of_strangers else self._in_time(commit, what, timing, now)
        live = {*trainers, self.me}
        fewest, count = _fewest(live), len(present & live)
        if count >= fewest:
            return ""
        what = f"it has {count} of {len(live)} live trainers in it; expected {fewest}"
        if is_of_strangers and self.me not in present:
            return f"its commit of version {commit.version} of fragment {commit.fragment} is not followed: {what}"
        return self._in_time(commit, what, timing, now)

    def _in_time(self, commit: Commit, what: str, timing: Waits, now: float) -> str:
        version, since = self._since.setdefault(commit.fragment, (commit.version, now))
        # A leader waits for its quorum for less, and its commit comes again with each question of those who refused it.
        patience = LAST_INTERVALS * (timing.interval_seconds or QUIET_SECONDS)
        if version == commit.version and now - since < patience:
            return f"its commit of version {commit.version} of fragment {commit.fragment} is not followed yet: {what}"
        return ""

    def is_hasty(self, commit: Commit, before: Commit | None, trainers: Sequence[PeerId], now: float) -> bool:
        """Whether nobody can have waited for a quorum since its version began anywhere.

        When the version came here proves nothing. A peer that was cut off, or did not follow at once, or fetched the
        anchor, hears of it late. The rounds of the others then look as if they had taken no time. Own work in the
        commit that led to the version does: it cannot have been there before that work was sent. A leader that planned
        with a quorum has waited: reducers may leave out whose input is bad.

        Args:
            before: the commit that led to the version of `commit`; None when it is not known here.
            trainers: those that count, as they are seen here.
        """
        if before is None or self.me not in _members(before):
            return False
        sent_at = self._sent.get(commit.fragment, {}).get((before.version, before.attempt, before.leader), -math.inf)
        live = {*trainers, self.me}
        planned = live.intersection(entry.peer_id for entry in commit.roster)
        is_next = before.version == commit.version - 1
        return is_next and now - sent_at < HASTY_SECONDS and len(planned) < _fewest(live)

    def closed(self, commit: Commit, offered_to: PeerId | None, waited_seconds: float, round_seconds: float) -> str:
        """A commit was applied; returns what its leader did to this peer, or nothing.

        Args:
            offered_to: who had this peer's offer for the version; None: nobody.
            waited_seconds: from the offer to the commit.
            round_seconds: that such a round takes after its plan.
        """
        if not self.is_strict or offered_to != commit.leader or offered_to == self.me:
            return ""
        if own_entry(commit.roster, self.me) is not None:
            self._num_ignored.pop(commit.leader, None)
            return ""
        if waited_seconds <= round_seconds:
            return ""  # the plan may have been made before
        return self.ignored(commit.leader)

    def ignored(self, leader: PeerId) -> str:
        """A leader closed a round without this peer's offer; says how often by now."""
        number = self._num_ignored.pop(leader, 0) + 1
        self._num_ignored[leader] = number
        return f"left this peer out of {number} rounds in a row that it led"

    def judge(self, leader: PeerId, now: float) -> float:
        """For how long a leader is passed over from now on because of what `closed` counted; 0: not at all."""
        if self._num_ignored.get(leader, 0) < IGNORED_IN_A_ROW:
            return 0.0
        del self._num_ignored[leader]
        return self._passed_over.begin(leader, now)

    def passed_over(self, now: float) -> set[PeerId]:
        return self._passed_over.held(now)


def _fewest(live: Collection[PeerId]) -> int:
    num_contributors = min(len(live), MAX_ROSTER)
    return min(num_contributors, math.floor(HOSTILE_SHARE * num_contributors) + 1)


def _members(commit: Commit) -> set[PeerId]:
    return {commit.roster[index].peer_id for index in commit.included}
