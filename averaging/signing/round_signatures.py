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

from averaging.wire.cell_messages import CellsCommit, SliceOrder, SlicePlan
from averaging.wire.field_checks import mask_of
from averaging.wire.frames import commit_digest_whole, encode
from averaging.wire.messages import (
    Accusation,
    AuditShare,
    CellRow,
    Commit,
    Contribution,
    Plan,
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
Averaged = Plan | Commit | SlicePlan | SliceOrder | TopCommit
Mean = ShardResult | SliceResult

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
    """Port: digests of statements whose signatures were checked before, as in `dht.records.signature_cache`."""

    def seen(self, digest: bytes) -> bool: ...
    def add(self, digest: bytes) -> None: ...


def _digest(fields: list[Any]) -> bytes:
    return hashlib.sha256(pack(fields)).digest()


def _statement(domain: bytes, scope: Scope, *fields: Any) -> bytes:
    return domain + _digest([scope.run_id, scope.manifest_hash, *fields])


def rows_digest(rows: Sequence[RosterEntry | CellRow]) -> bytes:
    """32 bytes that stand for all members of a round, or for all its cells, and what they bring."""
    return _digest([[getattr(row, name) for name in type(row).__slots__] for row in rows])


def mean_statement(scope: Scope, round_: Averaged, leader: PeerId, mean: Mean, rows: bytes = b"") -> bytes:
    """What the maker of a shard's or a slice's mean signs; `rows` is the round's `rows_digest`, where it is known."""
    if not rows:
        rows = rows_digest(round_.roster if isinstance(round_, Plan | Commit) else round_.cells)
    return _statement(
        *(SHARD_DOMAIN if isinstance(mean, ShardResult) else SLICE_DOMAIN, scope),
        *(round_.fragment, round_.version, round_.attempt, leader, round_.anchor_digest, rows),
        *(mean.start, mean.end, mean.digest, mask_of(mean.included)),
    )


def leader_statement(scope: Scope, message: LedMessage) -> bytes:
    """What a leader signs: every field of a commit or of a plan of slices, others' signatures too: nobody can change
    those."""
    whole = hashlib.sha256(encode(replace(message, signature=b""))).digest()
    return _statement(LEADER_DOMAINS[type(message)], scope, whole)


def credential_statement(
    scope: Scope, fragment: int, version: int, part_digest: bytes, reducer: PeerId, run: tuple[int, int]
) -> bytes:
    """What a cell's leader signs for a reducer: it made the cell's mean of values [run), in the part of that digest."""
    return _statement(CREDENTIAL_DOMAIN, scope, fragment, version, part_digest, reducer, *run)


def contribution_statement(scope: Scope, sent: Contribution | AuditShare, digest: bytes) -> bytes:
    """What a member signs about one shard of its contribution; `digest` is that of the payload.

    Nothing of the plan is in it: a member that signs two payloads for the same values of one version has two faces.
    """
    place = sent.fragment, sent.version, sent.sequence, sent.start, sent.end
    return _statement(CONTRIBUTION_DOMAIN, scope, *place, sent.tokens, digest)


def accusation_statement(scope: Scope, said: Accusation) -> bytes:
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

    def is_makers(self, maker: PeerId, round_: Averaged, leader: PeerId, mean: Mean, rows: bytes = b"") -> bool:
        """Whether who made a mean of this round has signed it; `rows` as in `mean_statement`."""
        return self._holds(maker, mean_statement(self.scope, round_, leader, mean, rows), mean.signature)

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
        made = [("reducer", commit.roster[shard.reducer].peer_id, shard) for shard in commit.shards]
        unsigned = self._unsigned(commit, made, rows_digest(commit.roster))
        return unsigned or (self._upper_objection(commit) if isinstance(commit, CellsCommit) else "")

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
        return self._unsigned(upper, [("owner", one.owner, one) for one in upper.slices], rows_digest(upper.cells))

    def _unsigned(self, commit: Commit | TopCommit, made: Sequence[tuple[str, PeerId, Mean]], rows: bytes) -> str:
        for role, maker, mean in made:
            if mean.digest and not self.is_makers(maker, commit, commit.leader, mean, rows):
                return (
                    f"in the commit of version {commit.version} of fragment {commit.fragment}, the mean of values "
                    f"[{mean.start}, {mean.end}) is not signed by its {role} {maker}"
                )
        return ""

    def is_contributors(self, member: PeerId, sent: Contribution | AuditShare, digest: bytes) -> bool:
        """Whether a member has signed this shard of its contribution, with a payload of this digest."""
        return self._holds(member, contribution_statement(self.scope, sent, digest), sent.signature)

    def is_accusers(self, auditor: PeerId, said: Accusation) -> bool:
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

    def sign_result(self, round_: Averaged, leader: PeerId, mean: Mean) -> bytes:
        return self._sign(mean_statement(self.scope, round_, leader, mean))

    def sign_commit(self, commit: Commit) -> Commit:
        return replace(commit, signature=self._sign(leader_statement(self.scope, commit.plain)))

    def sign_slices(self, message: OfSlices) -> OfSlices:
        """A plan of slices, or the commit of all cells, with its top leader's signature."""
        return replace(message, signature=self._sign(leader_statement(self.scope, message)))

    def sign_credential(
        self, fragment: int, version: int, part_digest: bytes, reducer: PeerId, run: tuple[int, int]
    ) -> bytes:
        """A cell leader's word for one of its reducers."""
        return self._sign(credential_statement(self.scope, fragment, version, part_digest, reducer, run))

    def sign_contribution(self, sent: Contribution | AuditShare, digest: bytes) -> bytes:
        return self._sign(contribution_statement(self.scope, sent, digest))

    def sign_accusation(self, said: Accusation) -> bytes:
        return self._sign(accusation_statement(self.scope, said))
