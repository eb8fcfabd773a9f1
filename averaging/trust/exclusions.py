"""Offences by sender, and the exclusions that follow. Pure: time is an argument.

Only evidence that comes from a remote itself counts towards its exclusion: bytes on its authenticated streams, claims
in its own offers, and its signatures. Requests from this peer that the remote left unanswered count too. An offence
that a third peer can cause (for example, a leader that sends members different plans) is only counted and shown.
Otherwise one liar could make honest peers exclude each other.
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
"""Offences of a remote.

- malformed: a frame, hello or payload that violates the protocol;
- undecodable: values that are not numbers;
- beyond_norm: work far longer than the group's;
- implausible: more tokens than its speed allows, or work on a future version;
- misfit: a contribution with another sequence or shard than the plan's, or a mean signed for another plan;
- overweight: a commit with impossible tokens, although its leader may have been unable to detect them;
- unsigned: a commit signed by its leader that contains means without their reducers' signatures;
- wrong_mean: a mean that does not match the contributions in it;
- two_faced: signed two contradictory statements;
- evasive: did not show an auditor its share, or the signed inputs of its mean;
- hasty: closed a round without the quorum, or with members that took no part in it;
- partial: as a leader, excluded members that had offered in time.
"""

OFFENCE_TEXT: dict[Offence, str] = {
    "malformed": "broke the protocol",
    "undecodable": "sent values that are not numbers",
    "beyond_norm": "sent work that was far too large",
    "implausible": "claimed work that it cannot have done",
    "misfit": "sent a different shard than planned",
    "overweight": "made a commit with forged tokens",
    "unsigned": "made a commit that its reducers have not signed",
    "wrong_mean": "signed a wrong mean",
    "two_faced": "signed two contradictory messages",
    "evasive": "did not answer an audit",
    "hasty": "closed rounds without the other members",
    "partial": "left members out as a leader",
}
UNPROVEN: frozenset[Offence] = frozenset({"misfit", "overweight", "partial"})
CONVICTING: frozenset[Offence] = frozenset({"wrong_mean", "two_faced"})
"""Signatures prove these offences: one is enough, and is forgotten later."""

STRIKES = 3
"""One offence may be a flipped bit or a diverged model; the third in a row is a habit."""
FIRST_SECONDS = 60.0
"""A few rounds, so that a peer restarted with better software soon returns."""
LONGEST_SECONDS = 3600.0
FIRST_CONVICTED_SECONDS = 1800.0
"""A wrong mean changes all anchors, and software that computes wrong means by mistake also needs its owner's
attention."""
LONGEST_CONVICTED_SECONDS = 86_400.0
FORGIVEN_SECONDS = 600.0
"""Time without offences after which all are forgotten, or twice the last exclusion if that is longer."""
MAX_REMEMBERED_PEERS = 1024
MAX_EVIDENCE = 64
"""For each peer: all shards of one contribution are one offence, and at most this many contributions are under way at
once."""

TOKENS_MARGIN = 3.0
"""An announced speed is smoothed and may be one announcement old; machines are shared and throttle."""


@dataclass
class _Record:
    last_at: float
    counts: Counter[Offence] = field(default_factory=Counter)
    evidence: deque[Hashable] = field(default_factory=lambda: deque(maxlen=MAX_EVIDENCE))
    strikes: int = 0


@dataclass
class BlameBook:
    """Offences of each peer. Three that count exclude a peer for a time that doubles until it behaves."""

    _records: dict[PeerId, _Record] = field(default_factory=dict)
    _exclusions: Pauses[PeerId] = field(
        default_factory=lambda: Pauses(FIRST_SECONDS, LONGEST_SECONDS, MAX_REMEMBERED_PEERS)
    )

    def add(self, peer_id: PeerId, offence: Offence, now: float, evidence: Hashable = None) -> float | None:
        """Count an offence. Return the seconds of the exclusion that begins with it, 0.0 if none does.

        Equal `evidence` (not None) means the same offence, which counts once; the result is then None.
        """
        self._forgive(peer_id, now)
        record = self._records.get(peer_id)
        if record is None:
            if len(self._records) >= MAX_REMEMBERED_PEERS:
                del self._records[min(self._records, key=lambda other: (self._records[other].last_at, other))]
            record = self._records[peer_id] = _Record(now)
        if evidence is not None and evidence in record.evidence:
            return None
        record.evidence.append(evidence)
        record.counts[offence] += 1
        record.last_at = max(record.last_at, now)
        if offence in UNPROVEN or self._exclusions.holds(peer_id, now):
            return 0.0
        is_convicted = offence in CONVICTING
        record.strikes += STRIKES if is_convicted else 1
        if record.strikes < STRIKES:
            return 0.0
        record.strikes = 0
        if is_convicted:
            bounds = FIRST_CONVICTED_SECONDS, LONGEST_CONVICTED_SECONDS
            return self._exclusions.begin(peer_id, now, first_seconds=bounds[0], longest_seconds=bounds[1])
        return self._exclusions.begin(peer_id, now)

    def excluded(self, now: float) -> set[PeerId]:
        return self._exclusions.held(now)

    def counts(self, peer_id: PeerId) -> dict[Offence, int]:
        """Return the peer's offences since it was last forgiven."""
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
    """Return the most tokens that can have been trained in `seconds` at this speed."""
    return TOKENS_MARGIN * tokens_per_second * seconds
