"""The messages of the round protocol, as values; `frames.py` frames them.

docs/contributor/protocol.md describes each field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

from dht.host import PeerId

MAX_ROSTER = 256
"""Members of one round; larger swarms average in cells."""
MAX_SHARDS = 512
"""So that the commit of a full roster still fits its header (`checks.MAX_HEADER_BYTES`)."""
DIGEST_BYTES = 16
"""Of a digest in a round message."""
SIGNATURE_BYTES = 64
"""Of an Ed25519 signature; `averaging/signing/notary.py` says what is signed."""
MAX_TOKENS = 2**40
"""Of one contribution: at ten million tokens/s a day's work. How much less counts from whom, `averaging/trust/guard.py`
knows."""
MAX_STEPS = 2**28
"""Of one contribution: three days of inner steps of a millisecond."""
KEPT_COMMITS = 16
"""Commits alone are small; they tell a peer that changes its lineage what became of its work there."""
HISTORY_COMMITS = 3
"""Commits (and their result shards, an eighth of the fragment each) kept for members that missed a few rounds. A
member that missed more fetches the fragment, which is then the smaller download."""
MAX_COMMIT_TOKENS = MAX_ROSTER * MAX_TOKENS
"""Of one commit, and of all cells of a round on two levels."""
MAX_NUM_ROUNDS = 100
"""Nobody is a newcomer for longer, and one byte of a roster entry holds it."""


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One contribution of a round, as its weight needs it."""

    peer_id: PeerId
    tokens: int
    steps: int
    base_version: int
    sequence: int
    num_rounds: int = 0


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Values [start, end) of the fragment are averaged by roster member number `reducer`."""

    start: int
    end: int
    reducer: int

    def result(self, digest: bytes = b"", included: tuple[int, ...] = (), signature: bytes = b"") -> ShardResult:
        """What became of it; void by default."""
        return ShardResult(self.start, self.end, self.reducer, digest, included, signature)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of a shard: the digest of the encoded mean (empty: void) and which roster members are in it.

    The reducer signs this (a void shard has no signature).
    """

    start: int
    end: int
    reducer: int
    digest: bytes
    included: tuple[int, ...]
    signature: bytes = b""


class CommittedResult(Protocol):
    """Values [start, end) of a commit; without a digest they are void."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Offer:
    """Member to leader: I have work for this fragment at this version, computed on this anchor."""

    KIND: ClassVar[str] = "offer"
    fragment: int
    version: int
    attempt: int
    anchor_digest: bytes
    base_version: int
    tokens: int
    steps: int
    sequence: int
    upload_bits_per_second: float
    reachable: bool
    num_rounds: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Leader to member: offer received; the round starts when `quorum` offers and a grace window are in."""

    KIND: ClassVar[str] = "wait"
    fragment: int
    version: int
    attempt: int
    num_offers: int
    quorum: int


@dataclass(frozen=True, slots=True)
class Redirect:
    """I do not lead this round; `leader` does."""

    KIND: ClassVar[str] = "redirect"
    fragment: int
    version: int
    leader: PeerId


@dataclass(frozen=True, slots=True)
class Plan:
    """Leader to members: who takes part, who reduces what, and until when."""

    KIND: ClassVar[str] = "plan"
    fragment: int
    version: int
    attempt: int
    anchor_digest: bytes
    roster: tuple[RosterEntry, ...]
    shards: tuple[ShardPlan, ...]
    contribution_deadline_seconds: float
    commit_deadline_seconds: float

    def reducer_of(self, shard: int) -> PeerId:
        """The reducer of a shard."""
        return self.roster[self.shards[shard].reducer].peer_id


@dataclass(frozen=True, slots=True)
class Reduced:
    """Reducer to leader: this shard's mean is ready, from these roster members, and I sign that it is so."""

    KIND: ClassVar[str] = "reduced"
    fragment: int
    version: int
    attempt: int
    shard: int
    digest: bytes
    included: tuple[int, ...]
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Leader to members: this attempt failed; offer to the next in rank."""

    KIND: ClassVar[str] = "abandon"
    fragment: int
    version: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class CellRow:
    """What a round knows of one cell: its leader, the digest of its part, and sums over the members that are in it.

    `weight` is the sum of their weights before normalising. `fresh_tokens` counts those within the staleness limit.
    `rho_tokens` and `late_tokens` are sums of tokens times staleness factor, and of tokens times staleness.
    """

    name: str
    leader: PeerId
    digest: bytes
    num_members: int
    tokens: int
    weight: float
    fresh_tokens: int
    rho_tokens: float
    late_tokens: int


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What became of a slice: the digest of its encoded mean (empty: void), and the cells that are in it.

    The owner signs this.
    """

    start: int
    end: int
    cell: int
    owner: PeerId
    digest: bytes
    included: tuple[int, ...]
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class CellLevel:
    """What the messages between cells have in common; `cell_messages.py` has them."""

    KIND: ClassVar[str] = ""
    fragment: int
    version: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TopCommit(CellLevel):
    """Closes a two-level round for all cells; signed by the top leader. `previous` is as in `Commit`."""

    KIND: ClassVar[str] = "upper"
    leader: PeerId
    anchor_digest: bytes
    cells: tuple[CellRow, ...]
    slices: tuple[SliceResult, ...]
    previous: bytes = b""
    signature: bytes = b""

    @property
    def tokens(self) -> int:
        """Tokens of the cells that are in at least one slice."""
        included = {index for result in self.slices for index in result.included}
        return sum(self.cells[index].tokens for index in included)

    @property
    def bare(self) -> TopCommit:
        """Without any signature: what its digest is of."""
        return replace(self, slices=tuple(replace(one, signature=b"") for one in self.slices), signature=b"")


@dataclass(frozen=True, slots=True)
class Commit:
    """Closes a round: takes the fragment's anchor from `version` to `version + 1`. Signed by its leader.

    `previous` is the digest of the commit that led to `version`; empty when the leader does not know it.
    """

    KIND: ClassVar[str] = "commit"
    fragment: int
    version: int
    attempt: int
    leader: PeerId
    anchor_digest: bytes
    roster: tuple[RosterEntry, ...]
    shards: tuple[ShardResult, ...]
    previous: bytes = b""
    signature: bytes = b""

    @property
    def tokens(self) -> int:
        """Tokens of the members that are in at least one shard: the weight of this commit in a fork."""
        included = {index for shard in self.shards for index in shard.included}
        return sum(self.roster[index].tokens for index in included)

    @property
    def plain(self) -> Commit:
        """The same fields as a flat round's commit, which is what its leader signed."""
        return Commit(**fields_of_commit(self))

    @property
    def bare(self) -> Commit:
        """Without any signature: what its digest is of."""
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
        return len({index for shard in self.shards for index in shard.included})

    @property
    def results(self) -> Sequence[CommittedResult]:
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
class CommitRequest:
    """Please send the commit that left `version` of this fragment."""

    KIND: ClassVar[str] = "commit_request"
    fragment: int
    version: int


@dataclass(frozen=True, slots=True)
class VersionIs:
    """My anchor of this fragment: its version, digest and the tokens committed into it."""

    KIND: ClassVar[str] = "version_is"
    fragment: int
    version: int
    anchor_digest: bytes
    lineage_tokens: int


@dataclass(frozen=True, slots=True)
class ResultRequest:
    """Please send the result of this shard of the round that left `version`."""

    KIND: ClassVar[str] = "result_request"
    fragment: int
    version: int
    shard: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Contribution:
    """Member to reducer: the encoded outer gradient of one shard; the payload is the encoded blocks.

    Signed where means are audited (`averaging/exchange/audit.py`), empty elsewhere.
    """

    KIND: ClassVar[str] = "contribution"
    fragment: int
    version: int
    attempt: int
    leader: PeerId
    shard: int
    sequence: int
    start: int
    end: int
    tokens: int
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Result:
    """Reducer (or any holder) to member: the encoded mean of one shard; the payload is the encoded blocks."""

    KIND: ClassVar[str] = "result"
    fragment: int
    version: int
    shard: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """Auditor to member: please show me what you sent to the reducer of values [start, end) of `version`."""

    KIND: ClassVar[str] = "audit_request"
    fragment: int
    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AuditShare:
    """Member to auditor: this is it, signed as it was then; the payload is the encoded blocks."""

    KIND: ClassVar[str] = "audit_share"
    fragment: int
    version: int
    sequence: int
    start: int
    end: int
    tokens: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Accusation:
    """Auditor to everybody: the mean of this shard is not that of its contributions; see for yourselves.

    `digest` is that of the commit; `signature` is the auditor's.
    """

    KIND: ClassVar[str] = "accusation"
    fragment: int
    version: int
    shard: int
    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class SignedInput:
    """Digest of the contribution that a roster member sent to a reducer, and the member's signature."""

    member: int
    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Defence:
    """Accused reducer to everybody: these are the contributions that I combined, as their senders signed them."""

    KIND: ClassVar[str] = "defence"
    fragment: int
    version: int
    shard: int
    inputs: tuple[SignedInput, ...]


Message = (
    Offer
    | Wait
    | Redirect
    | Plan
    | Reduced
    | Abandon
    | Commit
    | CommitRequest
    | VersionIs
    | ResultRequest
    | Contribution
    | Result
    | CellLevel
    | AuditRequest
    | AuditShare
    | Accusation
    | Defence
)


def fields_of_commit(commit: Commit) -> dict[str, Any]:
    """What every kind of commit has."""
    return {field.name: getattr(commit, field.name) for field in fields(Commit)}


def own_entry(roster: Sequence[RosterEntry], peer_id: PeerId) -> tuple[int, RosterEntry] | None:
    """(index, entry) of a peer in a roster, or None."""
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
