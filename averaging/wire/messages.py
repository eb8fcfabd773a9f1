"""The messages of the round protocol, as values; `frames.py` frames them.

docs/contributor/protocol.md describes each field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Protocol

from averaging.wire.field_checks import (
    boolean,
    fragment,
    integer,
    members,
    number,
    octets,
    or_void,
    peer_id,
    rows,
    structure,
    text,
)
from dht.ground.host import PeerId
from dht.records.lineages import MAX_LINEAGE_TOKENS, MAX_VERSION

MAX_ROSTER = 256
"""Members of one round."""
MAX_SHARDS = 512
"""So that the commit of a full roster still fits its header (`checks.MAX_HEADER_BYTES`)."""
DIGEST_BYTES = 16
"""Of a digest in a round message."""
SIGNATURE_BYTES = 64
"""Of an Ed25519 signature; `averaging/signing/round_signatures.py` says what is signed."""
MAX_TOKENS = 2**40
"""Of one contribution: at ten million tokens/s a day's work. `averaging/trust/claim_guard.py` knows how much less
counts from whom."""
MAX_STEPS = 2**28
"""Of one contribution: three days of inner steps of a millisecond."""
KEPT_COMMITS = 16
"""Commits alone are small; they tell a peer that changes its lineage what became of its work there."""
HISTORY_COMMITS = 2
"""Rounds of each fragment whose results, and own contributions for auditors, stay in memory. A member whose connection
broke during one round needs that round and the one that closed before it asked. A member that was away for longer
fetches the fragment. Each round costs an eighth of a float32 copy of the model, and another one where means are
audited."""
MAX_PARTS = 8
"""Ranges of values whose work one contribution tells apart. A line that brings a quarter of the shards each round has
four."""
MAX_ATTEMPT = 10_000
"""At one version; who gets there goes on with this number."""
# -------------------------------------------------------------------- types of fields, each with the check of its value

FragmentNumber = Annotated[int, fragment]
Version = Annotated[int, integer(0, MAX_VERSION)]
Attempt = Annotated[int, integer(0, MAX_ATTEMPT)]
Tokens = Annotated[int, integer(1, MAX_TOKENS)]
Steps = Annotated[int, integer(1, MAX_STEPS)]
Value = Annotated[int, integer(0, 2**40)]
Member = Annotated[int, integer(0, MAX_ROSTER - 1)]
Members = Annotated[tuple[int, ...], members(MAX_ROSTER)]
Shard = Annotated[int, integer(0, MAX_SHARDS - 1)]
Peer = Annotated[PeerId, peer_id]
Digest = Annotated[bytes, octets("a digest", DIGEST_BYTES)]
DigestOrVoid = Annotated[bytes, or_void(octets("a digest", DIGEST_BYTES), b"")]
Signature = Annotated[bytes, octets("a signature", SIGNATURE_BYTES)]
SignatureOrVoid = Annotated[bytes, or_void(octets("a signature", SIGNATURE_BYTES), b"")]
Seconds = Annotated[float, number(86_400)]


@dataclass(frozen=True, slots=True)
class Message:
    """What every message begins with."""

    KIND: ClassVar[str] = ""
    fragment: FragmentNumber
    version: Version


@dataclass(frozen=True, slots=True)
class OfAttempt(Message):
    """A message of one attempt at a round."""

    attempt: Attempt

    @property
    def place(self) -> tuple[int, int, int]:
        """Fragment, version and attempt, as messages of the same attempt begin."""
        return self.fragment, self.version, self.attempt


@dataclass(frozen=True, slots=True)
class WorkPart:
    """What a contribution holds of the values before `end` that no part before it has; no tokens: no work.

    The work began on `base_version` or later, and took `steps` inner steps.
    """

    end: Value
    tokens: Annotated[int, integer(0, MAX_TOKENS)]
    steps: Annotated[int, integer(0, MAX_STEPS)]
    base_version: Version


Parts = Annotated[tuple[WorkPart, ...], rows(structure(WorkPart), MAX_PARTS)]


class Work(Protocol):
    """Work on a fragment: the mean of the tokens over its values, the most steps and the oldest base.

    `parts` say more where it differs between values; empty: it is the same everywhere.
    """

    @property
    def tokens(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def base_version(self) -> int: ...
    @property
    def parts(self) -> tuple[WorkPart, ...]: ...


def parts_within(work: Work, start: int, end: int) -> Iterator[tuple[int, WorkPart]]:
    """The work on values [start, end): how many values, and what it holds of them."""
    if not work.parts:
        yield end - start, WorkPart(end, work.tokens, work.steps, work.base_version)
        return
    begin = 0
    for part in work.parts:
        num_values = min(end, part.end) - max(start, begin)
        if num_values > 0:
            yield num_values, part
        begin = part.end


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One contribution of a round, as its weight needs it; see `Work`."""

    peer_id: Peer
    tokens: Tokens
    steps: Steps
    base_version: Version
    sequence: Version
    parts: Parts = ()

    def token_values(self, start: int, end: int) -> int:
        """Tokens times values of the work on values [start, end)."""
        return sum(num_values * part.tokens for num_values, part in parts_within(self, start, end))


Roster = Annotated[tuple[RosterEntry, ...], rows(structure(RosterEntry), MAX_ROSTER)]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Values [start, end) of the fragment are averaged by roster member number `reducer`."""

    start: Value
    end: Value
    reducer: Member

    def result(self, digest: bytes = b"", included: tuple[int, ...] = (), signature: bytes = b"") -> ShardResult:
        """What became of it; void by default."""
        return ShardResult(self.start, self.end, self.reducer, digest, included, signature)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of a shard: the digest of the encoded mean (empty: void) and which roster members are in it.

    The reducer signs this (a void shard has no signature).
    """

    start: Value
    end: Value
    reducer: Member
    digest: DigestOrVoid
    included: Members
    signature: SignatureOrVoid = b""


@dataclass(frozen=True, slots=True)
class Offer(OfAttempt):
    """Member to leader: I have work for this fragment at this version, computed on this anchor."""

    KIND: ClassVar[str] = "offer"
    anchor_digest: Digest
    base_version: Version
    tokens: Tokens
    steps: Steps
    sequence: Version
    upload_bits_per_second: Annotated[float, number(1e15)]
    reachable: Annotated[bool, boolean]
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class Wait(OfAttempt):
    """Leader to member: offer received; the round starts when `quorum` offers and a grace window are in.

    `quorum` is 0 once members pass the plan on: a member without it offers again and gets it.
    """

    KIND: ClassVar[str] = "wait"
    num_offers: Annotated[int, integer(0, MAX_ROSTER)]
    quorum: Annotated[int, integer(0, 2**20)]


@dataclass(frozen=True, slots=True)
class Redirect(Message):
    """I do not lead this round; `leader` does."""

    KIND: ClassVar[str] = "redirect"
    leader: Peer


@dataclass(frozen=True, slots=True)
class Plan(OfAttempt):
    """Leader to members: who takes part, who reduces what, and until when. Signed where members pass it on."""

    KIND: ClassVar[str] = "plan"
    anchor_digest: Digest
    roster: Roster
    shards: Annotated[tuple[ShardPlan, ...], rows(structure(ShardPlan), MAX_SHARDS)]
    contribution_deadline_seconds: Seconds
    commit_deadline_seconds: Seconds
    signature: SignatureOrVoid = b""

    def reducer_of(self, shard: int) -> PeerId:
        return self.roster[self.shards[shard].reducer].peer_id


@dataclass(frozen=True, slots=True)
class Reduced(OfAttempt):
    """Reducer to leader: this shard's mean is ready, from these roster members, and I sign that it is so."""

    KIND: ClassVar[str] = "reduced"
    shard: Shard
    digest: Digest
    included: Members
    signature: Signature = b""


@dataclass(frozen=True, slots=True)
class Abandon(OfAttempt):
    """Leader to members: this attempt failed; offer to the next in rank."""

    KIND: ClassVar[str] = "abandon"
    reason: Annotated[str, text(0, 200, "printable text of at most 200 characters")]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Commit(OfAttempt):
    """Closes a round: takes the fragment's anchor from `version` to `version + 1`. Signed by its leader.

    `previous` is the digest of the commit that led to `version`; empty when the leader does not know it.
    """

    KIND: ClassVar[str] = "commit"
    leader: Peer
    anchor_digest: Digest
    roster: Roster
    shards: Annotated[tuple[ShardResult, ...], rows(structure(ShardResult), MAX_SHARDS)]
    previous: DigestOrVoid = b""
    signature: Signature = b""

    @property
    def tokens(self) -> int:
        """What was averaged, in tokens of whole contributions, rounded up: the weight of this commit in a fork.

        A member counts with the share of the values that its work is in: the rest of it returns and counts next time.
        """
        return -(-sum(self.token_values) // self.num_values)

    @property
    def tokens_averaged(self) -> tuple[int, ...]:
        """The same of each roster member."""
        return tuple(-(-token_values // self.num_values) for token_values in self.token_values)

    @property
    def token_values(self) -> list[int]:
        """Of each roster member, the sum over averaged values of the tokens behind them."""
        found = [0] * len(self.roster)
        for result in self.shards:
            for member in result.included:
                found[member] += self.roster[member].token_values(result.start, result.end)
        return found

    @property
    def num_values(self) -> int:
        """Of the fragment."""
        return self.shards[-1].end if self.shards else 1

    @property
    def included(self) -> list[int]:
        """Roster members that are in at least one shard, in order."""
        return sorted({index for shard in self.shards for index in shard.included})

    @property
    def bare(self) -> Commit:
        """Without any signature: what its digest is of."""
        shards = tuple(replace(shard, signature=b"") for shard in self.shards)
        return replace(self, shards=shards, signature=b"")

    def holder(self, index: int) -> PeerId:
        """The member that sends result `index` to the others."""
        return self.roster[self.shards[index].reducer].peer_id


@dataclass(frozen=True, slots=True)
class CommitRequest(Message):
    """Please send the commit that left `version` of this fragment."""

    KIND: ClassVar[str] = "commit_request"


@dataclass(frozen=True, slots=True)
class VersionIs(Message):
    """My anchor of this fragment: its version, digest and the tokens committed into it."""

    KIND: ClassVar[str] = "version_is"
    anchor_digest: Digest
    lineage_tokens: Annotated[int, integer(0, MAX_LINEAGE_TOKENS)]


@dataclass(frozen=True, slots=True)
class ResultRequest(Message):
    """Please send the result of this shard of the round that left `version`."""

    KIND: ClassVar[str] = "result_request"
    shard: Shard
    digest: Digest


@dataclass(frozen=True, slots=True)
class Contribution(OfAttempt):
    """Member to reducer: the encoded outer gradient of one shard; the payload is the encoded blocks.

    Signed where means are audited (`averaging/exchange/audit.py`), empty elsewhere.
    """

    KIND: ClassVar[str] = "contribution"
    leader: Peer
    shard: Shard
    sequence: Version
    start: Value
    end: Value
    tokens: Tokens
    signature: SignatureOrVoid = b""


@dataclass(frozen=True, slots=True)
class Result(Message):
    """Reducer (or any holder) to member: the encoded mean of one shard; the payload is the encoded blocks."""

    KIND: ClassVar[str] = "result"
    shard: Shard
    start: Value
    end: Value


@dataclass(frozen=True, slots=True)
class AuditRequest(Message):
    """Auditor to member: please show me what you sent to the reducer of values [start, end) of `version`."""

    KIND: ClassVar[str] = "audit_request"
    start: Value
    end: Value


@dataclass(frozen=True, slots=True)
class AuditShare(Message):
    """Member to auditor: this is it, signed as it was then; the payload is the encoded blocks."""

    KIND: ClassVar[str] = "audit_share"
    sequence: Version
    start: Value
    end: Value
    tokens: Tokens
    signature: Signature


@dataclass(frozen=True, slots=True)
class SignedInput:
    """Digest of the contribution that a roster member sent to a reducer, and the member's signature."""

    member: Member
    digest: Digest
    signature: Signature


@dataclass(frozen=True, slots=True)
class AuditInputs(Message):
    """Reducer to auditor: the contributions that are in my mean of these values, as their senders signed them."""

    KIND: ClassVar[str] = "audit_inputs"
    start: Value
    end: Value
    inputs: Annotated[tuple[SignedInput, ...], rows(structure(SignedInput), MAX_ROSTER)]


def next_attempt(attempt: int) -> int:
    """The number of the attempt after this one, which everybody takes."""
    return min(attempt + 1, MAX_ATTEMPT)


def own_entry(roster: Sequence[RosterEntry], peer_id: PeerId) -> tuple[int, RosterEntry] | None:
    for index, entry in enumerate(roster):
        if entry.peer_id == peer_id:
            return index, entry
    return None


def own_ranges(commit: Commit, peer_id: PeerId) -> tuple[int, tuple[tuple[int, int], ...]]:
    """(sequence of a peer's contribution in a commit or -1, the ranges of values in which it was included)."""
    own = own_entry(commit.roster, peer_id)
    if own is None:
        return -1, ()
    return own[1].sequence, tuple((shard.start, shard.end) for shard in commit.shards if own[0] in shard.included)
