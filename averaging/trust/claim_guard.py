"""One peer's defence against bad input: counts it, excludes its senders, and reports this in plain words.

A claim of tokens is checked by this peer's own records. Work on anchor version b began after b existed, so it contains
at most `3 * speed * (now - arrival of b here + one learned round)` tokens. If that arrival is unknown, the arrival of
an earlier version, which can only allow more, or the typical time of that many versions takes its place. After this
process slept, the time since before the sleep counts. Equal version numbers of two lineages mean nothing, so only
claims about this peer's lineage are judged.

The speed is the fastest that the peer recently announced in its signed record, up to a thousand medians. A peer without
an announcement counts as the slowest (`believed_speeds.py`); larger claims wait, without blame, until its record
arrives. A peer may also have worked faster than it ever announced (a processor became free), and its next announcement
takes time. So its first claims that moderately exceed the speed are refused without blame, until a newer announcement
must have arrived here. Commits are judged more mildly than offers, because the leader may have had a record that has
not arrived here. Every peer accepts work that an honest peer accepted; no peer accepts work that is impossible.
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
"""Versions follow each other about once per interval between two own sends; much faster ones were waiting elsewhere."""
COMMIT_MARGIN = 2.0
MOST_DOUBTED = 8.0
"""Up to this factor beyond the possible work, a machine may have become free or warm; a larger claim is a lie at
once."""
MAX_DOUBTED = 1024
LONGEST_PAUSE_SECONDS = 40 * 86_400.0
"""Longest assumed age of work in a commit whose base arrived at an unknown time: a whole run that slept."""
ASSUMED_PACES = 4.0
"""Rounds of this peer that each version before this peer's start is assumed to have taken."""
FIRST_ASSUMED_SECONDS = 600.0
"""Assumed seconds for all these versions while this peer does not know its rounds' duration."""
FIRST_RETRY_SECONDS = 1.0
"""Pause before a commit that could not be applied is tried again; each further pause is twice as long."""
LONGEST_RETRY_SECONDS = 60.0
MAX_FAILED = 4096
"""Failed commits that are remembered; each is signed by its leader."""
_LEFT_OUT = "left out by this peer for a while, because too much of its input was refused"


@dataclass(frozen=True, slots=True)
class GuardPorts:
    """The outside world of a guard.

    Attributes:
        report: called for each refusal.
        on_exclusion: called when a peer begins to be excluded.
        speed_of: returns the tokens per second that a peer (or this one) recently announced, 0 if unknown.
        known_speeds: returns the speeds of all other live trainers.
        news_seconds: returns the seconds until a peer's newer announcement is known here.
    """

    clock: Callable[[], float]
    report: Callable[[PeerRefused], None]
    on_exclusion: Callable[[], None] = lambda: None
    speed_of: Callable[[PeerId], float] = lambda peer_id: 0.0
    known_speeds: Callable[[], Sequence[float]] = tuple
    news_seconds: Callable[[], float] = lambda: 0.0


class Guard:
    """Refusals and exclusions by one peer.

    Args:
        is_strict: whether strangers take part (see `Leaders`).
    """

    def __init__(self, me: PeerId, staleness_limit: int, ports: GuardPorts, *, is_strict: bool = False) -> None:
        self.book = BlameBook()
        self.presence = MemberPresence(me)
        self.leaders = Leaders(me, is_strict)
        self._failed = Pauses[bytes](FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, MAX_FAILED)
        """By digest: commits that could not be applied here."""
        self._me = me
        # Work at the staleness limit, one version of delay, and a commit or two that were in flight meanwhile.
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
        """Peer -> (first, last) time of claims beyond its announced speed."""

    def awake(self) -> None:
        """Note that this process is running. Called several times a second, so that a sleep is noticed."""
        self._wakefulness.note(self._clock())

    def blame(self, peer_id: PeerId, offence: Offence, what: str, evidence: Hashable = None) -> None:
        """Count and report an offence of a remote, and exclude the remote after repeated offences."""
        if peer_id == self._me:
            return
        seconds = self.book.add(peer_id, offence, self._clock(), evidence)
        if seconds is None:
            return
        counts = tuple(sorted(self.book.counts(peer_id).items()))
        self._report(PeerRefused(peer_id, what, counts=counts))
        if seconds:
            history = ", ".join(f"{OFFENCE_TEXT[offence]} {count}x" for offence, count in counts)
            reason = f"left out of this peer's rounds for {seconds:.0f} s, because it {history}"
            self._report(PeerRefused(peer_id, reason, seconds, counts))
            self._ports.on_exclusion()

    def excluded(self, peer_ids: Sequence[PeerId]) -> set[PeerId]:
        now = self._clock()
        return self.book.excluded(now).intersection(peer_ids)

    def advanced(self, fragment: int, version: int, timing: Waits, *, is_adopted: bool = False) -> None:
        """Note that a fragment's anchor is at `version` now; `is_adopted`: it may belong to another lineage than
        before.
        """
        now, came_at = self._clock(), self._came_at.setdefault(fragment, {})
        self.leaders.advanced(fragment, version, now, is_adopted=is_adopted)
        last_version, last_at = self._last.get(fragment, (-1, now))
        self._last[fragment] = (version, now)
        # Versions that were fetched, or caught up in quick succession, reached other peers at an unknown earlier time.
        pace = timing.own_pace.seconds
        if is_adopted or version != last_version + 1:
            came_at.clear()
        elif pace is None or now - last_at < SUCCESSION_OF_PACE * pace:
            came_at.pop(last_version, None)
        else:
            came_at[version] = self._wakefulness.since(now)
        # Chains of signed commits are compared with the arrival of their first anchor, which may be long ago.
        for old in sorted(came_at)[: -max(self._num_remembered, MAX_LOGGED_COMMITS)]:
            del came_at[old]

    def objection(self, sender: PeerId, message: Message, machine: RoundMachine) -> str:
        """Return why a message is refused; empty if it is accepted. Faults that show without knowledge of the lineage
        are blamed.

        Offers of an excluded peer are refused, and its anchors do not cause repairs. A commit that contains only
        excluded peers is refused from any sender. Offers for past versions are accepted, because the answer helps a
        peer that is behind.

        Raises:
            PeerFault: the sender sent a commit that the named leader has not signed.
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
                if self._failed.holds(commit_digest(message), self._clock()):
                    return "it could not be applied; this peer retries later"
                return self._forged_weight(sender, message, machine.timing) or self._of_few(sender, message, machine)
        return ""

    def claim_objection(self, sender: PeerId, offer: Offer, timing: Waits) -> str:
        """Return why an offer for the current version on the present anchor is refused. A false claim is blamed."""
        if sender == self._me:
            return ""
        return self._false_claim(offer.fragment, offer.version, _entry(sender, offer), timing)

    def doubts(self, sender: PeerId, offer: Offer, timing: Waits) -> bool:
        """Return whether an offer must wait although nothing disproves it: it claims more than is believed without a
        record.
        """
        entry = _entry(sender, offer)
        return sender != self._me and any(
            claim.tokens > self._most_tokens(offer.fragment, claim, timing) for claim in _claims(entry)
        )

    def check_leader(self, sender: PeerId, commit: Commit, machine: RoundMachine) -> None:
        """Refuse a commit that could be followed here if its leader has not signed it.

        Raises:
            PeerFault: the commit is not signed. Its sender broke the protocol, since all peers check commits before
                sending them.
        """
        is_new = commit.version <= machine.version and machine.known_commit(commit.version) != commit
        if sender != self._me and is_new and not machine.notary.is_leaders(commit):
            raise PeerFault(
                sender,
                f"sent a commit of version {commit.version} of fragment {commit.fragment} that its leader "
                f"{commit.leader} has not signed; expected a signed one",
            )

    def gives_up(self, sender: PeerId, commit: Commit, machine: RoundMachine) -> bool:
        """Return whether this peer must give up its leader: that leader closed the round with a commit that is not
        followed here.

        Raises:
            PeerFault: the sender sent a commit that the named leader has not signed.
        """
        is_leaders = self.leaders.is_strict and commit.leader == machine.leader != self._me
        if not is_leaders or commit.version != machine.version:
            return False
        self.check_leader(sender, commit, machine)
        return True

    def not_applied(self, commit: Commit) -> None:
        """Refuse a commit that could not be applied for a while, which doubles each time.

        Perhaps no responding peer has the results of a committed round. Members at that version then send each other
        the commit, and each would try to apply it again and again instead of starting another round. The results may
        come back with their reducer's line, so the commit is tried again after the pause.
        """
        self._failed.begin(commit_digest(commit), self._clock())

    def unsigned(self, commit: Commit, what: str) -> None:
        """Blame the leader of a commit that lacks a reducer's signature: the leader had to check all of them."""
        self.blame(commit.leader, "unsigned", what, (commit.fragment, commit.version, "signatures"))

    def chain_objection(self, commits: Sequence[Commit], timing: Waits) -> str:
        """Return why a chain of commits from an anchor of this lineage is not believed; empty if it is.

        In all commits together, a member can have trained no more since that anchor arrived here than its speed allows.
        Otherwise a thousand invented rounds would outweigh this peer's lineage. Among strangers, no member is believed
        to be more than a few times as fast as the median. Chains from anchors with unknown arrival are believed.
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
                    f"its commits from version {commits[0].version} on contain {tokens} tokens of {peer_id[-8:]}, "
                    f"which can have trained at most {most:.0f} since this peer received that version"
                )
        return ""

    def follows(self, commits: Sequence[Commit], machine: RoundMachine) -> bool:
        """Return whether this peer would follow each of these commits, of which the first is on its own anchor."""
        return not any(self._objection_to_few(commit, None, machine) for commit in commits)

    def usable(self, plan: Plan, leader: PeerId, members: Sequence[int], timing: Waits) -> tuple[int, ...]:
        """Return the roster members whose contributions this peer reduces.

        Of all claims in a roster, only the leader's own certainly comes from the member itself.
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
        """Return the contributions whose tokens would not make this peer refuse the commit."""
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
        """Blame the senders of contributions that the reduction refused."""
        for refusal in refusals:
            entry = plan.roster[refusal.member]
            what = f"its contribution to fragment {plan.fragment} {_TEXT[refusal.offence]} ({refusal.what})"
            self.blame(entry.peer_id, refusal.offence, what, (plan.fragment, entry.sequence))

    def misfits(self, plan: Plan, arrived: Sequence[int], fitting: Sequence[int]) -> None:
        """Blame the senders of contributions that arrived for this round but do not match the plan."""
        for member in sorted(set(arrived) - set(fitting)):
            entry = plan.roster[member]
            what = f"its contribution to fragment {plan.fragment} differs from the plan"
            self.blame(entry.peer_id, "misfit", what, (plan.fragment, entry.sequence))

    def closed(self, commit: Commit, leader: PeerId | None, offered_at: float, timing: Waits) -> None:
        """Judge the leader after a commit was applied; `leader` had this peer's offer since `offered_at`."""
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
        what = self._objection_to_few(commit, mine, machine)
        if not what or mine is not None:
            return what
        now, before = self._clock(), machine.known_commit(commit.version - 1)
        is_hasty = self.leaders.is_hasty(commit, before, self._of_whom_a_quarter(commit, machine), now)
        # A peer that has just woken up has no information about present members and past waits.
        is_blamed = is_hasty and self._wakefulness.since(now) == now
        if is_blamed or machine.leader == commit.leader:
            # Anyone can put a leader's name on a commit; most commits that are not followed need no such check.
            self.check_leader(sender, commit, machine)
        if is_blamed:
            self.blame(commit.leader, "hasty", what, (commit.version, "hasty"))
        if machine.leader == commit.leader:
            self._left_out(commit, self.leaders.ignored(commit.leader))
        return what

    def _objection_to_few(self, commit: Commit, mine: Commit | None, machine: RoundMachine) -> str:
        return self.leaders.objection(
            commit,
            self._of_whom_a_quarter(commit, machine),
            mine,
            machine.timing,
            self._clock(),
            is_of_strangers=self.presence.are_strangers(commit),
            is_first=not self.presence.knows_workers,
        )

    def _of_whom_a_quarter(self, commit: Commit, machine: RoundMachine) -> Sequence[PeerId]:
        return self.presence.of_whom_a_quarter(commit, machine.awaited or machine.trainers, machine.followers)

    def _compare_histories(self, mine: Commit, other: Commit, machine: RoundMachine) -> None:
        """Blame a leader that closed one attempt with two commits. (A restarted process may do so, but only for rounds
        without other members.)
        """
        are_of_one_round = (mine.leader, mine.attempt) == (other.leader, other.attempt)
        if not are_of_one_round or commit_digest(mine) == commit_digest(other):
            return
        if min(len(mine.included), len(other.included)) > 1 and machine.notary.is_leaders(other):
            what = f"signed two commits of version {mine.version} of fragment {mine.fragment}"
            self.blame(mine.leader, "two_faced", what, (mine.fragment, mine.version, "commits"))

    def _left_out(self, commit: Commit, what: str) -> None:
        """Blame a leader that repeatedly closed rounds without this peer, which had offered to it."""
        seconds = self.leaders.judge(commit.leader, self._clock())
        if seconds:
            what = f"placed last in the order of leaders for {seconds:.0f} s, because it {what}"
            self.blame(commit.leader, "partial", what, (commit.fragment, commit.version, "partial"))

    def _forged_weight(self, sender: PeerId, commit: Commit, timing: Waits) -> str:
        """Return why the tokens in a commit are impossible for its members; the commit is then neither applied nor
        compared.

        Otherwise a leader alone could outweigh all others with a number. Only included members count. The leader is
        reported but not excluded, because it may not know a peer's speed or the arrival of its base.
        """
        for entry in (commit.roster[index] for index in commit.included):
            for claim in _claims(entry):
                most = self._most_in_commit(commit.fragment, claim, timing)
                if commit.version - claim.base_version > self._oldest_base:
                    # The arrival of so old a base is forgotten everywhere, and honest reducers refuse work on it.
                    most = 0.0
                if claim.tokens > most:
                    return self._overweight(sender, commit, f"{claim.tokens} tokens of one peer", most)
        return ""

    def _overweight(self, sender: PeerId, commit: Commit, what: str, most: float) -> str:
        what = (
            f"made a commit of version {commit.version} of fragment {commit.fragment} with {what}, which can have "
            f"trained at most {most:.0f}"
        )
        if sender == commit.leader:
            self.blame(sender, "overweight", what, (commit.fragment, commit.version, "commit"))
        return what

    def _speeds(self) -> BelievedSpeeds:
        self._believed.note(self._ports.known_speeds, self._ports.speed_of(self._me), self._clock())
        return self._believed

    def _most_tokens(self, fragment: int, claim: RosterEntry, timing: Waits) -> float:
        """Return the most tokens that an offered contribution is believed to contain."""
        seconds = self._seconds_since(fragment, claim.base_version, timing)
        if seconds is None:
            pace = timing.own_pace.seconds
            seconds = FIRST_ASSUMED_SECONDS if pace is None else ASSUMED_PACES * self._num_remembered * pace
            seconds += self._clock() - self._last.get(fragment, (0, self._clock()))[1]
        return most_tokens(self._speeds().believed(self._ports.speed_of(claim.peer_id)), seconds)

    def _most_in_commit(self, fragment: int, claim: RosterEntry, timing: Waits) -> float:
        """Return the most tokens that a contribution in a commit is believed to contain: twice the margin of
        `_most_tokens`, since the reducers that accepted it may know a speed that is unknown here.
        """
        seconds = self._seconds_since(fragment, claim.base_version, timing)
        seconds = LONGEST_PAUSE_SECONDS if seconds is None else seconds
        return COMMIT_MARGIN * most_tokens(self._speeds().possible(self._ports.speed_of(claim.peer_id)), seconds)

    def _seconds_since(self, fragment: int, base_version: int, timing: Waits) -> float | None:
        """Return for how long work on a version can have existed; None if the arrival of that version is unknown."""
        came_at = self._came_at.get(fragment, {})
        known = max((known for known in came_at if known <= base_version), default=None)
        return None if known is None else self._clock() - came_at[known] + _slack_seconds(timing)

    def _false_claim(self, fragment: int, version: int, entry: RosterEntry, timing: Waits) -> str:
        """Return why a claim is false: the announced speed and a known arrival must disprove it. A peer without an
        announced speed is not blamed.

        Work that differs between ranges of values is judged in each range, by its base there.
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
            f"tokens/s it can have trained at most {most:.0f} since version {claim.base_version} arrived here"
        )
        is_honest = claim.tokens <= MOST_DOUBTED * most and self._may_be_faster(claim.peer_id)
        return what if is_honest else self._implausible(fragment, claim, what)

    def _may_be_faster(self, peer_id: PeerId) -> bool:
        """Return whether the peer's claims exceeded its speed only so recently that a newer announcement may not have
        arrived here.
        """
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


_TEXT = {"undecodable": "holds values that are not numbers", "beyond_norm": "is far larger than the others'"}


def _slack_seconds(timing: Waits) -> float:
    """Return how much earlier a version may have reached another peer: one learned round."""
    return timing.mean.seconds + HEARTBEAT_SECONDS


def _entry(sender: PeerId, offer: Offer) -> RosterEntry:
    return RosterEntry(sender, offer.tokens, offer.steps, offer.base_version, offer.sequence, parts=offer.parts)


def _claims(entry: RosterEntry) -> Sequence[RosterEntry]:
    """Return a contribution as separate ones for each range of values with different work."""
    if not entry.parts:
        return [entry]
    return [
        replace(entry, tokens=part.tokens, steps=part.steps, base_version=part.base_version, parts=())
        for part in entry.parts
        if part.tokens
    ]
