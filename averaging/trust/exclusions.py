"""Refusals by sender, and the exclusions that follow. Pure: time is an argument.

Only what a remote proves against itself counts towards its exclusion: bytes on its own authenticated streams, claims in
its own offers, what it signed. So does what it did not answer to this very peer. What a third peer can bring about (a
leader that tells members different plans) is counted and shown, no more. Otherwise one liar could make honest peers
exclude each other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from dht.ground.bounds import Pauses
from dht.ground.host import PeerId

Offence = Literal[
    "malformed",
    "undecodable",
    "beyond_norm",
    "implausible",
    "misfit",
    "overweight",
    "unsigned",
    "wrong_mean",
    "two_faced",
    "evasive",
    "hasty",
    "partial",
]
"""What a remote can be blamed for.

- malformed: a frame, hello or payload against the protocol;
- undecodable: values that are no numbers;
- beyond_norm: far longer than the group's;
- implausible: more tokens than its speed allows, or work on a version of the future;
- misfit: a contribution of another sequence or shard than the plan's, or a mean signed for another plan;
- overweight: a commit with tokens that nobody can have trained, made by a leader that may have had no way to tell;
- unsigned: a commit signed by its leader with means in it that their reducers have not signed;
- wrong_mean: a mean that is not that of the contributions in it;
- two_faced: signed two things of which only one can be true;
- evasive: did not show an auditor what it had sent, or whose signed work its mean is made of;
- hasty: closed a round without the quorum, or with members that took no part in it;
- partial: as a leader, left out members that had offered in time.
"""

OFFENCE_TEXT: dict[Offence, str] = {
    "malformed": "broke the protocol",
    "undecodable": "sent values that are no numbers",
    "beyond_norm": "sent work far too large",
    "implausible": "claimed work that it cannot have done",
    "misfit": "sent another shard than planned",
    "overweight": "made a commit with forged tokens in it",
    "unsigned": "made a commit that its reducers have not signed",
    "wrong_mean": "signed a wrong mean",
    "two_faced": "signed two contradicting things",
    "evasive": "did not answer an audit",
    "hasty": "closed rounds without the others",
    "partial": "left out members as a leader",
}
UNPROVEN: frozenset[Offence] = frozenset({"misfit", "overweight", "partial"})
CONVICTING: frozenset[Offence] = frozenset({"wrong_mean", "two_faced"})
"""Both signatures are there: one is enough, and it takes longer until it is forgotten."""

STRIKES = 3
"""One refusal may be a flipped bit or a diverged model; the third in a row is a habit."""
FIRST_SECONDS = 60.0
"""As long as a few rounds; a peer that was restarted with better software is soon back."""
LONGEST_SECONDS = 3600.0
FIRST_CONVICTED_SECONDS = 1800.0
"""A wrong mean moves everybody's anchor; software that computes wrong ones by mistake needs its owner's hand too."""
LONGEST_CONVICTED_SECONDS = 86_400.0
FORGIVEN_SECONDS = 600.0
"""Quiet time after which all is forgotten; twice the last exclusion when that is longer."""
MAX_REMEMBERED_PEERS = 1024
MAX_EVIDENCE = 64
"""Per peer: shards of one contribution are one offence, and at most so many contributions are under way at once."""

TOKENS_MARGIN = 3.0
"""A peer's announced speed is a smoothed one, up to an announcement old; machines are shared and throttle."""


@dataclass
class _Record:
    last_at: float
    counts: Counter[Offence] = field(default_factory=Counter)
    evidence: deque[Hashable] = field(default_factory=lambda: deque(maxlen=MAX_EVIDENCE))
    strikes: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from an offence: nothing new (the same evidence again), a note, or an exclusion."""

    is_new: bool
    excluded_seconds: float = 0.0


@dataclass
class BlameBook:
    """Offences per peer; three that count leave a peer out for a time that doubles until it behaves."""

    _records: dict[PeerId, _Record] = field(default_factory=dict)
    _exclusions: Pauses[PeerId] = field(
        default_factory=lambda: Pauses(FIRST_SECONDS, LONGEST_SECONDS, MAX_REMEMBERED_PEERS)
    )

    def add(self, peer_id: PeerId, offence: Offence, now: float, evidence: Hashable = None) -> Verdict:
        """Count an offence. Equal `evidence` (not None) is the same offence seen again and counts once."""
        self._forgive(peer_id, now)
        record = self._records.get(peer_id)
        if record is None:
            if len(self._records) >= MAX_REMEMBERED_PEERS:
                del self._records[min(self._records, key=lambda other: (self._records[other].last_at, other))]
            record = self._records[peer_id] = _Record(now)
        if evidence is not None and evidence in record.evidence:
            return Verdict(False)
        record.evidence.append(evidence)
        record.counts[offence] += 1
        record.last_at = max(record.last_at, now)
        if offence in UNPROVEN or self._exclusions.holds(peer_id, now):
            return Verdict(True)
        is_convicted = offence in CONVICTING
        record.strikes += STRIKES if is_convicted else 1
        if record.strikes < STRIKES:
            return Verdict(True)
        record.strikes = 0
        seconds = (
            self._exclusions.begin(
                peer_id, now, first_seconds=FIRST_CONVICTED_SECONDS, longest_seconds=LONGEST_CONVICTED_SECONDS
            )
            if is_convicted
            else self._exclusions.begin(peer_id, now)
        )
        return Verdict(True, seconds)

    def excluded(self, now: float) -> set[PeerId]:
        return self._exclusions.held(now)

    def counts(self, peer_id: PeerId) -> dict[Offence, int]:
        """Its offences since it was last forgiven."""
        record = self._records.get(peer_id)
        return dict(record.counts) if record is not None else {}

    def _forgive(self, peer_id: PeerId, now: float) -> None:
        record = self._records.get(peer_id)
        if record is not None:
            quiet_since = max(record.last_at, self._exclusions.until(peer_id))
            if now - quiet_since >= max(FORGIVEN_SECONDS, 2 * self._exclusions.seconds(peer_id)):
                del self._records[peer_id]
                self._exclusions.forgive(peer_id)


def most_tokens(tokens_per_second: float, seconds: float) -> float:
    """More tokens than this cannot have been trained in `seconds` at this speed."""
    return TOKENS_MARGIN * tokens_per_second * seconds
