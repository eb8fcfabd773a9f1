"""The messages of the round protocol, as values; `frames.py` frames them.

docs/contributor/protocol.md describes each field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar

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
from dht.host import PeerId
from dht.records.lineages import MAX_LINEAGE_TOKENS, MAX_VERSION

MAX_ROSTER = 256
"""Members of one round; larger swarms average in cells."""
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
HISTORY_COMMITS = 3
"""Commits (and their result shards, an eighth of the fragment each) kept for members that missed a few rounds. A
member that missed more fetches the fragment, which is then the smaller download."""
MAX_COMMIT_TOKENS = MAX_ROSTER * MAX_TOKENS
"""Of one commit, and of all cells of a round on two levels."""
MAX_ATTEMPT = 10_000
"""At one version; who gets there goes on with this number."""
MAX_NUM_ROUNDS = 100
"""Nobody is a newcomer for longer, and one byte of a roster entry holds it."""
MAX_CELLS = 256
"""Of one round."""
MAX_SLICES = 256
"""So that the commit of a full round still fits its header (`checks.MAX_HEADER_BYTES`)."""
MAX_CELL_NAME = 60
"""Characters: `site ` and a site, or `DEPTH/NUMBER`."""
MAX_CELL_ROSTER = 128
"""Members of one cell: so that its part and the commit of all cells fit one header."""
PART_DIGEST_BYTES = 32

# -------------------------------------------------------------------- types of fields, each with the check of its value

FragmentNumber = Annotated[int, fragment]
Version = Annotated[int, integer(0, MAX_VERSION)]
Attempt = Annotated[int, integer(0, MAX_ATTEMPT)]
Tokens = Annotated[int, integer(1, MAX_TOKENS)]
Steps = Annotated[int, integer(1, MAX_STEPS)]
NumRounds = Annotated[int, integer(0, MAX_NUM_ROUNDS)]
Value = Annotated[int, integer(0, 2**40)]
Member = Annotated[int, integer(0, MAX_ROSTER - 1)]
Members = Annotated[tuple[int, ...], members(MAX_ROSTER)]
Shard = Annotated[int, integer(0, MAX_SHARDS - 1)]
Peer = Annotated[PeerId, peer_id]
PeerOrNobody = Annotated[PeerId, or_void(peer_id, "")]
Digest = Annotated[bytes, octets("a digest", DIGEST_BYTES)]
DigestOrVoid = Annotated[bytes, or_void(octets("a digest", DIGEST_BYTES), b"")]
Signature = Annotated[bytes, octets("a signature", SIGNATURE_BYTES)]
SignatureOrVoid = Annotated[bytes, or_void(octets("a signature", SIGNATURE_BYTES), b"")]
Seconds = Annotated[float, number(86_400)]
Cell = Annotated[int, integer(0, MAX_CELLS - 1)]
CellTokens = Annotated[int, integer(0, MAX_CELL_ROSTER * MAX_TOKENS)]
Weight = Annotated[float, number(1e30)]
_CELL_NAME = f"the name of a cell, at most {MAX_CELL_NAME} printable characters"


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
class RosterEntry:
    """One contribution of a round, as its weight needs it."""

    peer_id: Peer
    tokens: Tokens
    steps: Steps
    base_version: Version
    sequence: Version
    num_rounds: NumRounds = 0


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
    num_rounds: NumRounds = 0


@dataclass(frozen=True, slots=True)
class Wait(OfAttempt):
    """Leader to member: offer received; the round starts when `quorum` offers and a grace window are in."""

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
    """Leader to members: who takes part, who reduces what, and until when."""

    KIND: ClassVar[str] = "plan"
    anchor_digest: Digest
    roster: Roster
    shards: Annotated[tuple[ShardPlan, ...], rows(structure(ShardPlan), MAX_SHARDS)]
    contribution_deadline_seconds: Seconds
    commit_deadline_seconds: Seconds

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


@dataclass(frozen=True, slots=True)
class CellRow:
    """What a round knows of one cell: its leader, the digest of its part, and sums over the members that are in it.

    `weight` is the sum of their weights before normalising. `fresh_tokens` counts those within the staleness limit.
    `rho_tokens` and `late_tokens` are sums of tokens times staleness factor, and of tokens times staleness.
    """

    name: Annotated[str, text(1, MAX_CELL_NAME, _CELL_NAME)]
    leader: Peer
    digest: Annotated[bytes, octets("a digest", PART_DIGEST_BYTES)]
    num_members: Annotated[int, integer(1, MAX_CELL_ROSTER)]
    tokens: CellTokens
    weight: Weight
    fresh_tokens: CellTokens
    rho_tokens: Weight
    late_tokens: Annotated[int, integer(0, 2**60)]


CELL_ROW = structure(CellRow, "the nine fields of a cell")
CellRows = Annotated[tuple[CellRow, ...], rows(CELL_ROW, MAX_CELLS)]


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What became of a slice: the digest of its encoded mean (empty: void), and the cells that are in it.

    The owner signs this.
    """

    start: Value
    end: Value
    cell: Cell
    owner: PeerOrNobody
    digest: DigestOrVoid
    included: Members
    signature: SignatureOrVoid = b""


@dataclass(frozen=True, slots=True)
class CellLevel(OfAttempt):
    """A message between cells; `cell_messages.py` has the others."""


@dataclass(frozen=True, slots=True)
class TopCommit(CellLevel):
    """Closes a two-level round for all cells; signed by the top leader. `previous` is as in `Commit`."""

    KIND: ClassVar[str] = "upper"
    leader: Peer
    anchor_digest: Digest
    cells: CellRows
    slices: Annotated[tuple[SliceResult, ...], rows(structure(SliceResult), MAX_SLICES)]
    previous: DigestOrVoid = b""
    signature: Signature = b""

    @property
    def tokens(self) -> int:
        """Tokens of the cells that are in at least one slice."""
        included = {index for result in self.slices for index in result.included}
        return sum(self.cells[index].tokens for index in included)

    @property
    def bare(self) -> TopCommit:
        """Without any signature: what its digest is of."""
        return replace(self, slices=tuple(replace(one, signature=b"") for one in self.slices), signature=b"")


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
        sums = zip(self.roster, self.num_values_averaged, strict=True)
        return -(-sum(entry.tokens * num_values for entry, num_values in sums) // self.num_values)

    @property
    def tokens_averaged(self) -> tuple[int, ...]:
        """The same of each roster member."""
        sums = zip(self.roster, self.num_values_averaged, strict=True)
        return tuple(-(-entry.tokens * num_values // self.num_values) for entry, num_values in sums)

    @property
    def num_values(self) -> int:
        """Of the fragment."""
        return self.shards[-1].end if self.shards else 1

    @property
    def num_values_averaged(self) -> tuple[int, ...]:
        """Of each roster member, how many values of the results its work is in."""
        counts = [0] * len(self.roster)
        for index, result in enumerate(self.results):
            for member in self.members_in(index):
                counts[member] += result.end - result.start
        return tuple(counts)

    @property
    def included(self) -> list[int]:
        """Roster members that are in at least one shard, in order."""
        return sorted({index for shard in self.shards for index in shard.included})

    @property
    def plain(self) -> Commit:
        """The same fields as a flat round's commit, which is what its leader signed."""
        return Commit(**fields_of_commit(self))

    @property
    def bare(self) -> Commit:
        shards = tuple(replace(shard, signature=b"") for shard in self.shards)
        return replace(self.plain, shards=shards, signature=b"")

    @property
    def signed(self) -> tuple[Commit | TopCommit, ...]:
        """What leaders have signed in it, first what closed the round for everybody."""
        return (self.plain,)

    @property
    def closing(self) -> Commit | TopCommit:
        """What closed the round for everybody: its leader, the commit before it, and the digest that names it."""
        return self.signed[0]

    @property
    def cells(self) -> tuple[CellRow, ...]:
        """The cells of a two-level round."""
        return ()

    @property
    def names_everyone(self) -> bool:
        """Whether all members with work in it are in its roster: not in a two-level round, of whose other cells it has
        only sums."""
        return True

    @property
    def num_members(self) -> int:
        """Members with work in it, in all cells."""
        return len(self.included)

    @property
    def results(self) -> Sequence[ShardResult | SliceResult]:
        """What is applied, in the order of the values; in a two-level round the slices, and not the cell's shards."""
        return self.shards

    def members_in(self, index: int) -> tuple[int, ...]:
        """Roster members whose work is in result `index`."""
        return self.shards[index].included

    def cells_in(self, index: int) -> tuple[CellRow, ...]:
        """Cells whose work is in result `index`, in a two-level round."""
        return ()

    def holder(self, index: int) -> PeerId:
        """The member that sends result `index` to the others."""
        return self.roster[self.shards[index].reducer].peer_id

    def makers(self, index: int) -> tuple[PeerId, ...]:
        """The other members that made result `index`."""
        return ()


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
class Accusation(Message):
    """Auditor to everybody: the mean of this shard is not that of its contributions; see for yourselves.

    `digest` is that of the commit; `signature` is the auditor's.
    """

    KIND: ClassVar[str] = "accusation"
    shard: Shard
    digest: Digest
    signature: Signature


@dataclass(frozen=True, slots=True)
class SignedInput:
    """Digest of the contribution that a roster member sent to a reducer, and the member's signature."""

    member: Member
    digest: Digest
    signature: Signature


@dataclass(frozen=True, slots=True)
class Defence(Message):
    """Accused reducer to everybody: these are the contributions that I combined, as their senders signed them."""

    KIND: ClassVar[str] = "defence"
    shard: Shard
    inputs: Annotated[tuple[SignedInput, ...], rows(structure(SignedInput), MAX_ROSTER)]


def next_attempt(attempt: int) -> int:
    """The number of the attempt after this one, which everybody takes."""
    return min(attempt + 1, MAX_ATTEMPT)


def fields_of_commit(commit: Commit) -> dict[str, Any]:
    """What every kind of commit has."""
    return {field.name: getattr(commit, field.name) for field in fields(Commit)}


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
    included = (result for index, result in enumerate(commit.results) if own[0] in commit.members_in(index))
    return own[1].sequence, tuple((result.start, result.end) for result in included)
