"""What one peer does about others that send bad input: counts, leaves out, and says so in plain words.

A claim of tokens is checked without trust in anybody's books. Work on anchor version b began after b existed. So it
holds at most `3 * speed * (now - time at which b came here + one learned round)` tokens. Where that time is not known,
an earlier version's is used, which can only allow more, or what such versions usually take. After this process slept,
it is the time since when it slept. Versions of two lineages have nothing but their numbers in common, so only claims
about this peer's lineage are judged.

The speed is the fastest that the peer announced lately in its signed record, up to a thousand median ones. A peer that
announced none is believed to be as fast as the slowest (`believed_speeds.py`). More than that waits, without blame,
until its record is here. Work may also have been done faster than was ever announced (a processor got free), and the
announcement takes its time. The first claims that are somewhat beyond it are refused without blame, until a newer
announcement must be known here. A commit is judged more kindly than an offer, because its leader may have had a record
that is on its way here. What an honest peer let in passes everywhere, and what nobody can have trained passes nowhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from averaging.outer.fragment_schedule import MOST_OF_MEDIAN_SPEED
from averaging.outer.robust_mean import RefusedMember, ShardContribution
from averaging.rounds.presence import MemberPresence
from averaging.rounds.round_facts import PeerRefused
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import HEARTBEAT_SECONDS, Waits
from averaging.signing.commit_log import MAX_LOGGED_COMMITS
from averaging.trust.believed_speeds import BelievedSpeeds
from averaging.trust.exclusions import OFFENCE_TEXT, BlameBook, Offence, most_tokens
from averaging.trust.leader_trust import Leaders
from averaging.wire.frames import commit_digest
from averaging.wire.messages import Commit, Message, Offer, Plan, RosterEntry, VersionIs
from dht.ground.bounds import Newest, Pauses
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.ground.sleep_detection import Wakefulness

SUCCESSION_OF_PACE = 0.2
"""Versions follow each other about once in the time between two own sends; much faster ones were waiting elsewhere."""
COMMIT_MARGIN = 2.0
MOST_DOUBTED = 8.0
"""So many times more than a peer may have trained is a machine that got free or warm; beyond that is a lie at once."""
MAX_DOUBTED = 1024
LONGEST_PAUSE_SECONDS = 40 * 86_400.0
"""Work in a commit whose base came at a time that is not known here is not older: a whole run that slept."""
ASSUMED_PACES = 4.0
"""Times of a round of this peer that each version is assumed to have taken that came before this peer looked."""
FIRST_ASSUMED_SECONDS = 600.0
"""The same for all of them before this peer knows how long its rounds take."""
FIRST_RETRY_SECONDS = 1.0
"""Before a commit that could not be applied is tried again; twice as long each time."""
LONGEST_RETRY_SECONDS = 60.0
MAX_FAILED = 64
"""Of one version; each is signed by its leader."""
_LEFT_OUT = "left out here for a while, because too much of its input was refused"


@dataclass(frozen=True, slots=True)
class GuardPorts:
    """The outside world of a guard.

    Attributes:
        report: told of refusals.
        on_exclusion: called when a peer begins to be excluded.
        speed_of: tokens per second that a peer (or this one) announced lately, 0 when unknown.
        known_speeds: those of all other live trainers.
        news_seconds: how long it takes until a peer's newer announcement is known here.
    """

    clock: Callable[[], float]
    report: Callable[[PeerRefused], None]
    on_exclusion: Callable[[], None] = lambda: None
    speed_of: Callable[[PeerId], float] = lambda peer_id: 0.0
    known_speeds: Callable[[], Sequence[float]] = tuple
    news_seconds: Callable[[], float] = lambda: 0.0


class FailedCommits:
    """Commits of each fragment's present version that could not be applied here, and when the next try is due.

    The results of a committed round may be had by nobody that answers. Members at that version then show each other the
    commit. Each of them would try at once, again and again, instead of going for another round. What once could not be
    had may come back, with the line of its maker, so it is tried again after pauses.
    """

    def __init__(self) -> None:
        self._pauses: dict[int, tuple[int, Pauses[bytes]]] = {}
        """Fragment -> version, and the pauses of its commits by their digests."""

    def note(self, commit: Commit, now: float) -> None:
        version, pauses = self._pauses.get(commit.fragment, (None, None))
        if pauses is None or version != commit.version:
            pauses = Pauses(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, MAX_FAILED)
            self._pauses[commit.fragment] = commit.version, pauses
        pauses.begin(commit_digest(commit), now)

    def waits(self, commit: Commit, now: float) -> bool:
        """Whether it failed, and is not due again."""
        version, pauses = self._pauses.get(commit.fragment, (None, None))
        return pauses is not None and version == commit.version and pauses.holds(commit_digest(commit), now)


class Guard:
    """Refusals by one peer.

    Args:
        is_strict: whether strangers take part (see `Leaders`).
    """

    def __init__(self, me: PeerId, staleness_limit: int, ports: GuardPorts, *, is_strict: bool = False) -> None:
        self.book = BlameBook()
        self.presence = MemberPresence(me)
        self.leaders = Leaders(me, is_strict)
        self.failed_commits = FailedCommits()
        self._me = me
        # Work of the staleness limit, one version of delay, and a commit or two that were on the way meanwhile.
        self._num_remembered = staleness_limit + 3
        self._oldest_base = staleness_limit + 2
        self._ports = ports
        self._clock = ports.clock
        self._report = ports.report
        self._came_at: dict[int, dict[int, float]] = {}
        self._last: dict[int, tuple[int, float]] = {}
        self._believed = BelievedSpeeds()
        self._wakefulness = Wakefulness()
        self._doubted: Newest[PeerId, tuple[float, float]] = Newest(MAX_DOUBTED)
        """Peer -> (first, last) time of claims beyond what it announced."""

    def awake(self) -> None:
        """This process runs; called several times a second, so that its sleep is noticed."""
        self._wakefulness.note(self._clock())

    def blame(self, peer_id: PeerId, offence: Offence, what: str, evidence: Hashable = None) -> None:
        """Count an offence of a remote, report it, and leave the remote out when it keeps doing it."""
        if peer_id == self._me:
            return
        verdict = self.book.add(peer_id, offence, self._clock(), evidence)
        counts = tuple(sorted(self.book.counts(peer_id).items()))
        if verdict.is_new:
            self._report(PeerRefused(peer_id, what, counts=counts))
        if verdict.excluded_seconds:
            seconds = verdict.excluded_seconds
            history = ", ".join(f"{OFFENCE_TEXT[offence]} {count}x" for offence, count in counts)
            reason = f"left out of rounds here for {seconds:.0f} s, because it {history}"
            self._report(PeerRefused(peer_id, reason, seconds, counts))
            self._ports.on_exclusion()

    def excluded(self, peer_ids: Sequence[PeerId]) -> set[PeerId]:
        now = self._clock()
        return self.book.excluded(now).intersection(peer_ids)

    def advanced(self, fragment: int, version: int, timing: Waits, *, is_adopted: bool = False) -> None:
        """The anchor of a fragment is at `version` now; `is_adopted`: it may be of another lineage than before."""
        now, came_at = self._clock(), self._came_at.setdefault(fragment, {})
        self.leaders.advanced(fragment, version, now, is_adopted=is_adopted)
        last_version, last_at = self._last.get(fragment, (-1, now))
        self._last[fragment] = (version, now)
        # What was fetched, or made up for in quick succession, came to the others at an unknown time before.
        pace = timing.own_pace.seconds
        if is_adopted or version != last_version + 1:
            came_at.clear()
        elif pace is None or now - last_at < SUCCESSION_OF_PACE * pace:
            came_at.pop(last_version, None)
        else:
            came_at[version] = self._wakefulness.since(now)
        # Chains of signed commits are held against the time of the anchor that they leave, which may be long ago.
        for old in sorted(came_at)[: -max(self._num_remembered, MAX_LOGGED_COMMITS)]:
            del came_at[old]

    def objection(self, sender: PeerId, message: Message, machine: RoundMachine) -> str:
        """Why a message is not taken; empty when it is. What can be told without knowing the lineage is blamed.

        The offers of an excluded peer are refused, and its anchors are no reason to repair. A commit in which nobody
        else is takes nobody along, from any sender. Offers for past versions are heard, because their answer is what
        helps a peer that is behind.

        Raises:
            PeerFault: the sender shows a commit as a leader's that this has not signed.
        """
        if isinstance(message, Offer) and message.version >= machine.version:
            if self.excluded([sender]):
                return _LEFT_OUT
            return self._work_of_the_future(message.fragment, message.version, _entry(sender, message))
        if isinstance(message, VersionIs) and self.excluded([sender]):
            return _LEFT_OUT
        if isinstance(message, Commit):
            members = {message.roster[index].peer_id for index in message.included}
            if members and members == self.excluded(sorted(members)):
                return _LEFT_OUT
            if message.anchor_digest == machine.anchor_of(message.version):
                if self.failed_commits.waits(message, self._clock()):
                    return "it could not be applied, and is tried again later"
                return self._forged_weight(sender, message, machine.timing) or self._of_few(sender, message, machine)
        return ""

    def claim_objection(self, sender: PeerId, offer: Offer, timing: Waits) -> str:
        """Why an offer for the current version on the anchor that is here is not taken; a false claim is blamed."""
        if sender == self._me:
            return ""
        return self._false_claim(offer.fragment, offer.version, _entry(sender, offer), timing)

    def doubts(self, sender: PeerId, offer: Offer, timing: Waits) -> bool:
        """Whether an offer that nothing proves false has to wait: more is claimed than is believed without a record."""
        entry = _entry(sender, offer)
        return sender != self._me and any(
            claim.tokens > self._most_tokens(offer.fragment, claim, timing) for claim in _claims(entry)
        )

    def check_leader(self, sender: PeerId, commit: Commit, machine: RoundMachine) -> None:
        """Refuse a commit that could be followed here and that its leader has not signed.

        Raises:
            PeerFault: the sender of such a commit broke the protocol, since everybody checks first.
        """
        is_new = commit.version <= machine.version and machine.known_commit(commit.version) != commit
        if sender != self._me and is_new and not machine.notary.is_leaders(commit):
            raise PeerFault(
                sender,
                f"sent a commit of version {commit.version} of fragment {commit.fragment} that its leader "
                f"{commit.leader} has not signed; expected a signed one",
            )

    def gives_up(self, sender: PeerId, commit: Commit, machine: RoundMachine) -> bool:
        """Whether a commit that is not followed comes from the leader that has this peer's offer: it will not do.

        Raises:
            PeerFault: the sender shows a commit as that leader's that this has not signed.
        """
        is_leaders = self.leaders.is_strict and commit.leader == machine.leader != self._me
        if not is_leaders or commit.version != machine.version:
            return False
        self.check_leader(sender, commit, machine)
        return True

    def unsigned(self, commit: Commit, what: str) -> None:
        """A commit that its leader signed lacks a reducer's signature: the leader had to check them all."""
        self.blame(commit.leader, "unsigned", what, (commit.fragment, commit.version, "signatures"))

    def chain_objection(self, commits: Sequence[Commit], timing: Waits) -> str:
        """Why a chain of commits that leaves an anchor of this lineage counts nothing; empty when it is believed.

        A member in it can have trained no more since that anchor was here than its speed allows, in all commits
        together. Otherwise a thousand rounds that nobody made would outweigh its own. Among strangers nobody is
        believed to be more than some times as fast as the median. Nothing is known of anchors that were fetched.
        """
        seconds = self._seconds_since(commits[0].fragment, commits[0].version, timing) if commits else None
        if seconds is None:
            return ""
        claimed: Counter[PeerId] = Counter()
        for commit in commits:
            for entry, tokens in zip(commit.roster, commit.tokens_averaged, strict=True):
                claimed[entry.peer_id] += tokens
        speeds = self._speeds()
        most_speed = MOST_OF_MEDIAN_SPEED * speeds.usual if self.leaders.is_strict else math.inf
        for peer_id, tokens in sorted(claimed.items()):
            speed = min(speeds.possible(self._ports.speed_of(peer_id)), most_speed)
            most = COMMIT_MARGIN * most_tokens(speed, seconds)
            if tokens > most:
                return (
                    f"its commits from version {commits[0].version} on hold {tokens} tokens of {peer_id[-8:]}, which "
                    f"can have trained {most:.0f} at most since that version was here"
                )
        return ""

    def usable(self, plan: Plan, leader: PeerId, members: Sequence[int], timing: Waits) -> tuple[int, ...]:
        """Those roster members whose contributions are reduced here.

        Of all claims in a roster only the leader's own is known to be its author's.
        """
        excluded = self.excluded([entry.peer_id for entry in plan.roster]) - {self._me}
        kept = []
        for member in members:
            entry = plan.roster[member]
            is_false = entry.peer_id == leader != self._me and self._false_claim(
                plan.fragment, plan.version, entry, timing
            )
            if entry.peer_id not in excluded and not is_false:
                kept.append(member)
        return tuple(kept)

    def believable(
        self, plan: Plan, contributions: Sequence[ShardContribution], timing: Waits
    ) -> list[ShardContribution]:
        """Those of contributions that fit the plan whose tokens would not make a commit be refused here."""
        roster = plan.roster
        return [
            one
            for one in contributions
            if roster[one[0]].peer_id == self._me
            or all(
                claim.tokens <= self._most_in_commit(plan.fragment, claim, timing) for claim in _claims(roster[one[0]])
            )
        ]

    def refused(self, plan: Plan, refusals: Sequence[RefusedMember]) -> None:
        """The reduction left out contributions through their senders' fault."""
        for refusal in refusals:
            entry = plan.roster[refusal.member]
            what = f"its contribution to fragment {plan.fragment} {_TEXT[refusal.offence]} ({refusal.what})"
            self.blame(entry.peer_id, refusal.offence, what, (plan.fragment, entry.sequence))

    def misfits(self, plan: Plan, arrived: Sequence[int], fitting: Sequence[int]) -> None:
        """Contributions that arrived for this round but are not the planned ones."""
        for member in sorted(set(arrived) - set(fitting)):
            entry = plan.roster[member]
            what = f"its contribution to fragment {plan.fragment} is not the one in the plan"
            self.blame(entry.peer_id, "misfit", what, (plan.fragment, entry.sequence))

    def closed(self, commit: Commit, leader: PeerId | None, offered_at: float, timing: Waits) -> None:
        """A commit was applied; `leader` had this peer's offer since `offered_at`."""
        waited = self._clock() - offered_at
        what = self.leaders.closed(commit, leader, waited, 2 * _slack_seconds(timing))
        if what:
            self._left_out(commit, what)

    def _of_few(self, sender: PeerId, commit: Commit, machine: RoundMachine) -> str:
        if not self.leaders.is_strict:
            return ""
        mine = machine.known_commit(commit.version)
        if mine == commit:
            return ""
        if mine is not None:
            self._compare_histories(mine, commit, machine)
        now = self._clock()
        trainers = self.presence.of_whom_a_quarter(commit, machine.awaited or machine.trainers)
        is_of_strangers = self.presence.are_strangers(commit)
        what = self.leaders.objection(commit, trainers, mine, machine.timing, now, is_of_strangers=is_of_strangers)
        if not what or mine is not None:
            return what
        before = machine.known_commit(commit.version - 1)
        is_hasty = self.leaders.is_hasty(commit, before, trainers, now)
        # Who has just woken up knows neither who is there nor for how long the others have waited.
        is_blamed = is_hasty and self._wakefulness.since(now) == now
        if is_blamed or machine.leader == commit.leader:
            # Anybody can put a leader's name on a commit; most of those that are not followed need no such check.
            self.check_leader(sender, commit, machine)
        if is_blamed:
            self.blame(commit.leader, "hasty", what, (commit.version, "hasty"))
        if machine.leader == commit.leader:
            self._left_out(commit, self.leaders.ignored(commit.leader))
        return what

    def _compare_histories(self, mine: Commit, other: Commit, machine: RoundMachine) -> None:
        """A leader closes an attempt once. (A restarted process may do so again, but with nobody beside it.)"""
        are_of_one_round = (mine.leader, mine.attempt) == (other.leader, other.attempt)
        if not are_of_one_round or commit_digest(mine) == commit_digest(other):
            return
        if min(len(mine.included), len(other.included)) > 1 and machine.notary.is_leaders(other):
            what = f"signed two commits of version {mine.version} of fragment {mine.fragment}"
            self.blame(mine.leader, "two_faced", what, (mine.fragment, mine.version, "commits"))

    def _left_out(self, commit: Commit, what: str) -> None:
        """A leader closed a round without this peer, which had offered to it."""
        seconds = self.leaders.judge(commit.leader, self._clock())
        if seconds:
            what = f"asked last to lead for {seconds:.0f} s, because it {what}"
            self.blame(commit.leader, "partial", what, (commit.fragment, commit.version, "partial"))

    def _forged_weight(self, sender: PeerId, commit: Commit, timing: Waits) -> str:
        """Tokens in a commit that its members cannot have trained: neither applied nor compared with another commit.

        Otherwise a leader alone could outweigh everybody by a number. Only who is in it counts. Its maker is named, no
        more: a leader that does not know a peer's speed or when its base came cannot tell.
        """
        for entry in (commit.roster[index] for index in commit.included):
            for claim in _claims(entry):
                most = self._most_in_commit(commit.fragment, claim, timing)
                if commit.version - claim.base_version > self._oldest_base:
                    # Nobody remembers when so old a base came, and no honest reducer takes such work.
                    most = 0.0
                if claim.tokens > most:
                    return self._overweight(sender, commit, f"{claim.tokens} tokens of one peer", most)
        return ""

    def _overweight(self, sender: PeerId, commit: Commit, what: str, most: float) -> str:
        what = (
            f"made a commit of version {commit.version} of fragment {commit.fragment} with {what}, "
            f"which can have trained {most:.0f} at most"
        )
        if sender == commit.leader:
            self.blame(sender, "overweight", what, (commit.fragment, commit.version, "commit"))
        return what

    def _speeds(self) -> BelievedSpeeds:
        self._believed.note(self._ports.known_speeds, self._ports.speed_of(self._me), self._clock())
        return self._believed

    def _most_tokens(self, fragment: int, claim: RosterEntry, timing: Waits) -> float:
        """More than this is not believed to be behind a contribution that is offered."""
        seconds = self._seconds_since(fragment, claim.base_version, timing)
        if seconds is None:
            pace = timing.own_pace.seconds
            seconds = FIRST_ASSUMED_SECONDS if pace is None else ASSUMED_PACES * self._num_remembered * pace
            seconds += self._clock() - self._last.get(fragment, (0, self._clock()))[1]
        return most_tokens(self._speeds().believed(self._ports.speed_of(claim.peer_id)), seconds)

    def _most_in_commit(self, fragment: int, claim: RosterEntry, timing: Waits) -> float:
        """The same of one that others have let in: twice the margin, and whom they know may be unknown here."""
        seconds = self._seconds_since(fragment, claim.base_version, timing)
        seconds = LONGEST_PAUSE_SECONDS if seconds is None else seconds
        return COMMIT_MARGIN * most_tokens(self._speeds().possible(self._ports.speed_of(claim.peer_id)), seconds)

    def _seconds_since(self, fragment: int, base_version: int, timing: Waits) -> float | None:
        """For how long there can have been work on a version; None when it is not known when that came."""
        came_at = self._came_at.get(fragment, {})
        known = max((known for known in came_at if known <= base_version), default=None)
        return None if known is None else self._clock() - came_at[known] + _slack_seconds(timing)

    def _false_claim(self, fragment: int, version: int, entry: RosterEntry, timing: Waits) -> str:
        """Only what the announced speed and a known time disprove is false; whom nothing is known of is not blamed.

        Work that differs between values is judged where it does, by the base that it has there.
        """
        found = (self._false_part(fragment, version, claim, timing) for claim in _claims(entry))
        return next((what for what in found if what), "")

    def _false_part(self, fragment: int, version: int, claim: RosterEntry, timing: Waits) -> str:
        seconds = self._seconds_since(fragment, claim.base_version, timing)
        announced = self._ports.speed_of(claim.peer_id)
        if announced <= 0 or seconds is None or claim.tokens <= (most := most_tokens(announced, seconds)):
            return self._work_of_the_future(fragment, version, claim)
        what = (
            f"claims {claim.tokens} tokens for fragment {fragment}; at its {self._ports.speed_of(claim.peer_id):.0f} "
            f"tokens/s it can have trained at most {most:.0f} since version {claim.base_version} came here"
        )
        is_honest = claim.tokens <= MOST_DOUBTED * most and self._may_be_faster(claim.peer_id)
        return what if is_honest else self._implausible(fragment, claim, what)

    def _may_be_faster(self, peer_id: PeerId) -> bool:
        """Whether its claims went beyond its speed so lately that a newer announcement may not be known here."""
        now, news_seconds = self._clock(), self._ports.news_seconds()
        first, last = self._doubted.pop(peer_id, (now, now))
        if now - last > 2 * news_seconds:
            first = now
        self._doubted[peer_id] = (first, now)
        return now - first < news_seconds

    def _work_of_the_future(self, fragment: int, version: int, claim: RosterEntry) -> str:
        newest = max(part.base_version for part in _claims(claim))
        if newest <= version:
            return ""
        what = f"claims work on version {newest} for version {version} of fragment {fragment}"
        return self._implausible(fragment, claim, what)

    def _implausible(self, fragment: int, claim: RosterEntry, what: str) -> str:
        self.blame(claim.peer_id, "implausible", what, (fragment, claim.sequence, "claim"))
        return what


_TEXT = {"undecodable": "holds values that are no numbers", "beyond_norm": "is far larger than the others'"}


def _slack_seconds(timing: Waits) -> float:
    """How much earlier than here a version may have come to another peer: one round, as learned."""
    return timing.mean.seconds + HEARTBEAT_SECONDS


def _entry(sender: PeerId, offer: Offer) -> RosterEntry:
    return RosterEntry(sender, offer.tokens, offer.steps, offer.base_version, offer.sequence, parts=offer.parts)


def _claims(entry: RosterEntry) -> Sequence[RosterEntry]:
    """A contribution as one for each range of values in which it holds other work."""
    if not entry.parts:
        return [entry]
    return [
        replace(entry, tokens=part.tokens, steps=part.steps, base_version=part.base_version, parts=())
        for part in entry.parts
        if part.tokens
    ]
