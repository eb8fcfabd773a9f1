"""What members sign about a round, so that anybody can check later who took part. Pure.

A reducer signs each mean that it made: run, manifest, fragment, version, anchor, plan, range and result. It also signs
whose contributions are in it, with their sequences and tokens. The leader signs the whole commit. Where means are
audited, members sign each shard of their contributions, and auditors what they found. All are Ed25519 signatures (RFC
8032) of 32-byte digests behind a domain of their own. So none can pass for another kind of statement, another run or
another manifest. The keys are those inside the PeerIds.

Signing and verifying are injected: what is decided here depends on the arguments alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from averaging.wire.cell_messages import CellsCommit, SliceOrder, SlicePlan, SliceReport
from averaging.wire.checks import mask_of
from averaging.wire.frames import commit_digest_whole, encode
from averaging.wire.messages import (
    Accusation,
    AuditShare,
    CellRow,
    Commit,
    Contribution,
    Plan,
    Reduced,
    RosterEntry,
    ShardResult,
    SliceResult,
    TopCommit,
)
from dht.fields import pack
from dht.host import PeerId

SHARD_DOMAIN = b"murmuration shard result\0"
COMMIT_DOMAIN = b"murmuration commit\0"
CREDENTIAL_DOMAIN = b"murmuration cell reducer\0"
SLICE_DOMAIN = b"murmuration slice result\0"
CONTRIBUTION_DOMAIN = b"murmuration contribution\0"
ACCUSATION_DOMAIN = b"murmuration accusation\0"
LEADER_DOMAINS: dict[type, bytes] = {
    Commit: COMMIT_DOMAIN,
    SlicePlan: b"murmuration plan of slices\0",
    TopCommit: b"murmuration commit of cells\0",
}
LedMessage = Commit | SlicePlan | TopCommit
OfSlices = TypeVar("OfSlices", SlicePlan, TopCommit)

Sign = Callable[[bytes], bytes]
"""message -> signature of this peer, `averaging.wire.messages.SIGNATURE_BYTES` long."""
Verify = Callable[[PeerId, bytes, bytes], bool]
"""(whose, message, signature) -> whether it is theirs; never raises."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a signature is for: one run under one manifest."""

    run_id: str
    manifest_hash: bytes


class Seen(Protocol):
    """Port: digests of statements whose signatures were checked before; `dht.records.signed_records.VerifiedRecords` is
    one."""

    def seen(self, digest: bytes) -> bool: ...
    def add(self, digest: bytes) -> None: ...


def _digest(fields: list[Any]) -> bytes:
    return hashlib.sha256(pack(fields)).digest()


def _statement(domain: bytes, scope: Scope, *fields: Any) -> bytes:
    return domain + _digest([scope.run_id, scope.manifest_hash, *fields])


def roster_digest(roster: Sequence[RosterEntry]) -> bytes:
    """32 bytes that stand for all members of a round and what they contributed."""
    return _digest([[e.peer_id, e.tokens, e.steps, e.base_version, e.sequence, e.num_rounds] for e in roster])


def shard_statement(scope: Scope, round_: Plan | Commit, leader: PeerId, members: bytes, shard: ShardResult) -> bytes:
    """What the reducer of a shard signs; `members` is the `roster_digest` of the round."""
    return _statement(
        *(SHARD_DOMAIN, scope),
        *(round_.fragment, round_.version, round_.attempt, leader, round_.anchor_digest, members),
        *(shard.start, shard.end, shard.digest, mask_of(shard.included)),
    )


def leader_statement(scope: Scope, message: LedMessage) -> bytes:
    """What a leader signs: every field of a commit or of a plan of slices, others' signatures too: nobody can change
    those."""
    whole = hashlib.sha256(encode(replace(message, signature=b""))).digest()
    return _statement(LEADER_DOMAINS[type(message)], scope, whole)


def cells_digest(cells: Sequence[CellRow]) -> bytes:
    """32 bytes that stand for all cells of a round and what they bring."""
    return _digest([[getattr(row, name) for name in CellRow.__slots__] for row in cells])


def credential_statement(
    scope: Scope, fragment: int, version: int, part_digest: bytes, reducer: PeerId, run: tuple[int, int]
) -> bytes:
    """What a cell's leader signs for a reducer: it made the cell's mean of values [run), in the part of that digest."""
    return _statement(CREDENTIAL_DOMAIN, scope, fragment, version, part_digest, reducer, *run)


def slice_statement(
    scope: Scope, round_: SlicePlan | SliceOrder | TopCommit, leader: PeerId, cells: bytes, one: SliceResult
) -> bytes:
    """What the owner of a slice signs; `cells` is the `cells_digest` of the round."""
    return _statement(
        *(SLICE_DOMAIN, scope),
        *(round_.fragment, round_.version, round_.attempt, leader, round_.anchor_digest, cells),
        *(one.start, one.end, one.digest, mask_of(one.included)),
    )


def contribution_statement(scope: Scope, sent: Contribution | AuditShare, digest: bytes) -> bytes:
    """What a member signs about one shard of its contribution; `digest` is that of the payload.

    Nothing of the plan is in it: a member that signs two payloads for the same values of one version has two faces.
    """
    place = sent.fragment, sent.version, sent.sequence, sent.start, sent.end
    return _statement(CONTRIBUTION_DOMAIN, scope, *place, sent.tokens, digest)


def accusation_statement(scope: Scope, said: Accusation) -> bytes:
    """What an auditor signs."""
    return _statement(ACCUSATION_DOMAIN, scope, said.fragment, said.version, said.shard, said.digest)


class Checker:
    """Checks what others signed.

    Args:
        verified: statements known to be good. None checks each time; the peers of a simulation share theirs.
    """

    def __init__(self, scope: Scope, verify: Verify, verified: Seen | None = None) -> None:
        self.scope = scope
        self._verify = verify
        self._verified = verified

    def is_reducers(self, plan: Plan, leader: PeerId, reducer: PeerId, report: Reduced) -> bool:
        """Whether a report of this plan is signed by the shard's reducer."""
        result = plan.shards[report.shard].result(report.digest, report.included)
        statement = shard_statement(self.scope, plan, leader, roster_digest(plan.roster), result)
        return self._holds(reducer, statement, report.signature)

    def is_leaders(self, commit: Commit) -> bool:
        """Whether the leader whom a commit names has signed it; of a two-level round, both leaders."""
        return all(self.is_signed(statement) for statement in commit.signed)

    def is_signed(self, message: LedMessage) -> bool:
        """Whether the leader whom a plan or commit names has signed it."""
        return self._holds(message.leader, leader_statement(self.scope, message), message.signature)

    def objection(self, commit: Commit) -> str:
        """Why a commit is no proof of anything; empty when its leader and all its reducers have signed it."""
        if not self.is_leaders(commit):
            return f"the commit of version {commit.version} of fragment {commit.fragment} is not signed by its leader"
        members = roster_digest(commit.roster)
        for shard in commit.shards:
            if not shard.digest:
                continue
            reducer = commit.roster[shard.reducer].peer_id
            statement = shard_statement(self.scope, commit, commit.leader, members, shard)
            if not self._holds(reducer, statement, shard.signature):
                return (
                    f"in the commit of version {commit.version} of fragment {commit.fragment}, the mean of values "
                    f"[{shard.start}, {shard.end}) is not signed by its reducer {reducer}"
                )
        return self._upper_objection(commit) if isinstance(commit, CellsCommit) else ""

    def is_owners(self, plan: SlicePlan, leader: PeerId, report: SliceReport) -> bool:
        """Whether a report of this plan is signed by the slice's owner."""
        row = plan.slices[report.slice]
        result = row.result(report.digest, report.included)
        statement = slice_statement(self.scope, plan, leader, cells_digest(plan.cells), result)
        return self._holds(row.owner, statement, report.signature)

    def is_reducer_of(
        self, row: CellRow, fragment: int, version: int, reducer: PeerId, run: tuple[int, int], credential: bytes
    ) -> bool:
        """Whether a cell's leader says that `reducer` made its mean of values [run)."""
        statement = credential_statement(self.scope, fragment, version, row.digest, reducer, run)
        return self._holds(row.leader, statement, credential)

    def _upper_objection(self, commit: CellsCommit) -> str:
        upper = commit.upper
        if commit_digest_whole(commit.plain) != upper.cells[commit.cell].digest:
            return f"the part of cell {upper.cells[commit.cell].name!r} is not the one that its round has averaged"
        cells = cells_digest(upper.cells)
        for one in upper.slices:
            statement = slice_statement(self.scope, upper, upper.leader, cells, one)
            if one.digest and not self._holds(one.owner, statement, one.signature):
                return (
                    f"in the commit of version {upper.version} of fragment {upper.fragment}, the mean of values "
                    f"[{one.start}, {one.end}) is not signed by its owner {one.owner}"
                )
        return ""

    def is_contributors(self, member: PeerId, sent: Contribution | AuditShare, digest: bytes) -> bool:
        """Whether a member has signed this shard of its contribution, with a payload of this digest."""
        return self._holds(member, contribution_statement(self.scope, sent, digest), sent.signature)

    def is_accusers(self, auditor: PeerId, said: Accusation) -> bool:
        """Whether an accusation is signed by who made it."""
        return self._holds(auditor, accusation_statement(self.scope, said), said.signature)

    def _holds(self, peer_id: PeerId, statement: bytes, signature: bytes) -> bool:
        if self._verified is None:
            return self._verify(peer_id, statement, signature)
        digest = hashlib.sha256(peer_id.encode() + statement + signature).digest()
        if self._verified.seen(digest):
            return True
        holds = self._verify(peer_id, statement, signature)
        if holds:
            self._verified.add(digest)
        return holds


class Notary(Checker):
    """Signs what this peer reduced and led, too."""

    def __init__(self, scope: Scope, sign: Sign, verify: Verify, verified: Seen | None = None) -> None:
        super().__init__(scope, verify, verified)
        self._sign = sign

    def sign_result(self, plan: Plan, leader: PeerId, shard: ShardResult) -> bytes:
        """The reducer's signature under its own mean."""
        return self._sign(shard_statement(self.scope, plan, leader, roster_digest(plan.roster), shard))

    def sign_commit(self, commit: Commit) -> Commit:
        """The commit with its leader's signature."""
        return replace(commit, signature=self._sign(leader_statement(self.scope, commit.plain)))

    def sign_slices(self, message: OfSlices) -> OfSlices:
        """A plan of slices, or the commit of all cells, with its top leader's signature."""
        return replace(message, signature=self._sign(leader_statement(self.scope, message)))

    def sign_slice(self, plan: SlicePlan | SliceOrder, leader: PeerId, result: SliceResult) -> bytes:
        """The owner's signature under the mean of a slice."""
        return self._sign(slice_statement(self.scope, plan, leader, cells_digest(plan.cells), result))

    def sign_credential(
        self, fragment: int, version: int, part_digest: bytes, reducer: PeerId, run: tuple[int, int]
    ) -> bytes:
        """A cell leader's word for one of its reducers."""
        return self._sign(credential_statement(self.scope, fragment, version, part_digest, reducer, run))

    def sign_contribution(self, sent: Contribution | AuditShare, digest: bytes) -> bytes:
        """This member's signature under one shard of its own contribution."""
        return self._sign(contribution_statement(self.scope, sent, digest))

    def sign_accusation(self, said: Accusation) -> bytes:
        """This auditor's signature."""
        return self._sign(accusation_statement(self.scope, said))
