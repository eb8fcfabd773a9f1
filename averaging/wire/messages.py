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
"""Limit with which the commit of a full roster still fits its header (`field_checks.MAX_HEADER_BYTES`)."""
DIGEST_BYTES = 16
"""Length of a digest in a round message."""
SIGNATURE_BYTES = 64
"""Length of an Ed25519 signature; `averaging/signing/round_signatures.py` defines the signed statements."""
MAX_TOKENS = 2**40
"""Most tokens of one contribution: a day's work at ten million tokens/s. `averaging/trust/claim_guard.py` applies
tighter limits for each peer."""
MAX_STEPS = 2**28
"""Most inner steps of one contribution: three days of steps of a millisecond."""
KEPT_COMMITS = 16
"""Commits are small. A peer that changes its lineage uses them to find out which of its work was committed."""
HISTORY_COMMITS = 2
"""Rounds of each fragment whose results, and own contributions for auditors, stay in memory. A member whose connection
broke during one round needs that round, and the round that closed before the member asked. A member that was away for
longer fetches the fragment. Each round costs an eighth of a float32 copy of the model, and another eighth in audited
runs."""
MAX_PARTS = 8
"""Most ranges of values with different work in one contribution. A line that carries a quarter of the shards each round
has four."""
MAX_ATTEMPT = 10_000
"""Highest attempt at one version; later attempts keep this number."""
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
    """Fields with which each message begins."""

    KIND: ClassVar[str] = ""
    fragment: FragmentNumber
    version: Version


@dataclass(frozen=True, slots=True)
class OfAttempt(Message):
    """A message of one attempt at a round."""

    attempt: Attempt

    @property
    def place(self) -> tuple[int, int, int]:
        """Fragment, version and attempt, which all messages of one attempt share."""
        return self.fragment, self.version, self.attempt


@dataclass(frozen=True, slots=True)
class WorkPart:
    """Work of a contribution on the values from the previous part's end to `end`; zero tokens mean no work.

    The work began on `base_version` or later, and took `steps` inner steps.
    """

    end: Value
    tokens: Annotated[int, integer(0, MAX_TOKENS)]
    steps: Annotated[int, integer(0, MAX_STEPS)]
    base_version: Version


Parts = Annotated[tuple[WorkPart, ...], rows(structure(WorkPart), MAX_PARTS)]


class Work(Protocol):
    """Work on a fragment: mean tokens over its values, most steps and oldest base.

    `parts` describe work that differs between values; empty: it is the same for all values.
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
    """Yield (number of values, part) of the work on values [start, end)."""
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
    """One contribution of a round, with the numbers that determine its weight; see `Work`."""

    peer_id: Peer
    tokens: Tokens
    steps: Steps
    base_version: Version
    sequence: Version
    parts: Parts = ()

    def token_values(self, start: int, end: int) -> int:
        """Return tokens times values of the work on values [start, end)."""
        return sum(num_values * part.tokens for num_values, part in parts_within(self, start, end))


Roster = Annotated[tuple[RosterEntry, ...], rows(structure(RosterEntry), MAX_ROSTER)]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Values [start, end) of the fragment are averaged by roster member number `reducer`."""

    start: Value
    end: Value
    reducer: Member

    def result(self, digest: bytes = b"", included: tuple[int, ...] = (), signature: bytes = b"") -> ShardResult:
        """Return the result of this shard; void by default."""
        return ShardResult(self.start, self.end, self.reducer, digest, included, signature)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Result of a shard: the digest of the encoded mean (empty: void) and the roster members in it.

    The reducer signs it (a void shard has no signature).
    """

    start: Value
    end: Value
    reducer: Member
    digest: DigestOrVoid
    included: Members
    signature: SignatureOrVoid = b""


@dataclass(frozen=True, slots=True)
class Offer(OfAttempt):
    """Member to leader: offers work on this fragment at this version, computed on this anchor."""

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
    """Leader to member: confirms an offer. The round starts after `quorum` offers and a grace window.

    `quorum` is 0 once members pass the plan on: a member without the plan offers again and gets it.
    """

    KIND: ClassVar[str] = "wait"
    num_offers: Annotated[int, integer(0, MAX_ROSTER)]
    quorum: Annotated[int, integer(0, 2**20)]


@dataclass(frozen=True, slots=True)
class Redirect(Message):
    """Redirects a member: `leader` leads this round, not the sender."""

    KIND: ClassVar[str] = "redirect"
    leader: Peer


@dataclass(frozen=True, slots=True)
class Plan(OfAttempt):
    """Leader to members: the roster, the reducer of each shard, and the deadlines. Signed if members pass the
    plan on.
    """

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
    """Reducer to leader: reports a shard's mean and the roster members in it, with the reducer's signature."""

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
        """The averaged work in tokens of whole contributions, rounded up: the weight of this commit in a fork.

        A member counts with the share of the values that include its work: the rest returns and counts next time.
        """
        return -(-sum(self.token_values) // self.num_values)

    @property
    def tokens_averaged(self) -> tuple[int, ...]:
        """The averaged tokens of each roster member."""
        return tuple(-(-token_values // self.num_values) for token_values in self.token_values)

    @property
    def token_values(self) -> list[int]:
        """For each roster member, the sum of its tokens over the averaged values."""
        found = [0] * len(self.roster)
        for result in self.shards:
            for member in result.included:
                found[member] += self.roster[member].token_values(result.start, result.end)
        return found

    @property
    def num_values(self) -> int:
        """Number of values of the fragment."""
        return self.shards[-1].end if self.shards else 1

    @property
    def included(self) -> list[int]:
        """Roster members that are in at least one shard, sorted."""
        return sorted({index for shard in self.shards for index in shard.included})

    @property
    def bare(self) -> Commit:
        """The commit without any signature, which its digest covers."""
        shards = tuple(replace(shard, signature=b"") for shard in self.shards)
        return replace(self, shards=shards, signature=b"")

    def holder(self, index: int) -> PeerId:
        """Return the member that sends result `index` to the others."""
        return self.roster[self.shards[index].reducer].peer_id


@dataclass(frozen=True, slots=True)
class CommitRequest(Message):
    """Requests the commit of `version` of this fragment."""

    KIND: ClassVar[str] = "commit_request"


@dataclass(frozen=True, slots=True)
class VersionIs(Message):
    """Announces the sender's anchor of this fragment: version, digest and committed tokens."""

    KIND: ClassVar[str] = "version_is"
    anchor_digest: Digest
    lineage_tokens: Annotated[int, integer(0, MAX_LINEAGE_TOKENS)]


@dataclass(frozen=True, slots=True)
class ResultRequest(Message):
    """Requests the result of this shard of the round at `version`."""

    KIND: ClassVar[str] = "result_request"
    shard: Shard
    digest: Digest


@dataclass(frozen=True, slots=True)
class Contribution(OfAttempt):
    """Member to reducer: the encoded outer gradient of one shard; the payload is the encoded blocks.

    Signed in runs with audits (`averaging/exchange/audit.py`); otherwise the signature is empty.
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
    """Auditor to member: requests the member's contribution to values [start, end) of `version`."""

    KIND: ClassVar[str] = "audit_request"
    start: Value
    end: Value


@dataclass(frozen=True, slots=True)
class AuditShare(Message):
    """Member to auditor: the requested contribution, with the same signature as before; the payload is the encoded
    blocks.
    """

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
    """Reducer to auditor: the contributions in its mean of these values, with their senders' signatures."""

    KIND: ClassVar[str] = "audit_inputs"
    start: Value
    end: Value
    inputs: Annotated[tuple[SignedInput, ...], rows(structure(SignedInput), MAX_ROSTER)]


def next_attempt(attempt: int) -> int:
    """Return the number of the next attempt."""
    return min(attempt + 1, MAX_ATTEMPT)


def own_entry(roster: Sequence[RosterEntry], peer_id: PeerId) -> tuple[int, RosterEntry] | None:
    """Return (number in the roster, entry) of a peer; None if the roster does not contain it."""
    for index, entry in enumerate(roster):
        if entry.peer_id == peer_id:
            return index, entry
    return None


def own_ranges(commit: Commit, peer_id: PeerId) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return (sequence of a peer's contribution in a commit or -1, ranges of values that include it)."""
    own = own_entry(commit.roster, peer_id)
    if own is None:
        return -1, ()
    return own[1].sequence, tuple((shard.start, shard.end) for shard in commit.shards if own[0] in shard.included)
