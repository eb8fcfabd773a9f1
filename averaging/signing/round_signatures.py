"""Signatures of members about a round, so that anyone can check later who took part. Pure.

A reducer signs each of its means: run, manifest, fragment, version, anchor, plan, range, result, and the contributions
in it with their sequences and tokens. The leader signs the whole commit. In runs with audits, members sign each shard
of their contributions. All are Ed25519 signatures (RFC 8032) of 32-byte digests with a separate prefix for each kind of
statement, so none can pass for another kind of statement, another run or another manifest. The keys are those inside
the PeerIds.

Signing and verifying are injected, so the results here depend only on the arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from averaging.wire.field_checks import mask_of
from averaging.wire.frames import encode
from averaging.wire.messages import (
    AuditShare,
    Commit,
    Contribution,
    Plan,
    RosterEntry,
    ShardResult,
    WorkPart,
)
from dht.ground.fields import pack
from dht.ground.host import PeerId
from dht.records.signature_cache import VerifiedRecords

SHARD_DOMAIN = b"murmuration shard result\0"
COMMIT_DOMAIN = b"murmuration commit\0"
PLAN_DOMAIN = b"murmuration plan\0"
CONTRIBUTION_DOMAIN = b"murmuration contribution\0"

Sign = Callable[[bytes], bytes]
"""message -> signature of this peer, `averaging.wire.messages.SIGNATURE_BYTES` long."""
Verify = Callable[[PeerId, bytes, bytes], bool]
"""(signer, message, signature) -> whether the signature is valid; never raises."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Scope of a signature: one run under one manifest."""

    run_id: str
    manifest_hash: bytes


def _digest(fields: list[Any]) -> bytes:
    return hashlib.sha256(pack(fields)).digest()


def _statement(domain: bytes, scope: Scope, *fields: Any) -> bytes:
    return domain + _digest([scope.run_id, scope.manifest_hash, *fields])


def rows_digest(rows: Sequence[RosterEntry]) -> bytes:
    """Return a 32-byte digest of all members of a round and their contributions."""
    return _digest([_row_fields(row) for row in rows])


def _row_fields(row: RosterEntry | WorkPart) -> list[Any]:
    values = (getattr(row, name) for name in type(row).__slots__)
    return [[_row_fields(part) for part in value] if isinstance(value, tuple) else value for value in values]


def mean_statement(scope: Scope, round_: Plan | Commit, leader: PeerId, mean: ShardResult, rows: bytes = b"") -> bytes:
    """Return the statement that the reducer of a shard signs; `rows` is the round's `rows_digest`, if known."""
    rows = rows or rows_digest(round_.roster)
    place = (round_.fragment, round_.version, round_.attempt, leader, round_.anchor_digest, rows)
    return _statement(SHARD_DOMAIN, scope, *place, mean.start, mean.end, mean.digest, mask_of(mean.included))


def commit_statement(scope: Scope, commit: Commit) -> bytes:
    """Return the statement that a leader signs: all fields of a commit, including the signatures of others, so that
    these cannot be changed.
    """
    return _statement(COMMIT_DOMAIN, scope, hashlib.sha256(encode(replace(commit, signature=b""))).digest())


def plan_statement(scope: Scope, plan: Plan) -> bytes:
    """Return the statement that a leader signs about a plan that members pass on."""
    return _statement(PLAN_DOMAIN, scope, hashlib.sha256(encode(replace(plan, signature=b""))).digest())


def contribution_statement(scope: Scope, sent: Contribution | AuditShare, digest: bytes) -> bytes:
    """Return the statement that a member signs about one shard of its contribution; `digest` is that of the payload.

    The statement contains nothing of the plan: a member that signs two payloads for the same values of one version is
    two-faced.
    """
    place = sent.fragment, sent.version, sent.sequence, sent.start, sent.end
    return _statement(CONTRIBUTION_DOMAIN, scope, *place, sent.tokens, digest)


class Checker:
    """Checks signatures of others.

    Args:
        verified: cache of statements known to be valid. None: no cache. The peers of a simulation share one.
    """

    def __init__(self, scope: Scope, verify: Verify, verified: VerifiedRecords | None = None) -> None:
        self.scope = scope
        self._verify = verify
        self._verified = verified

    def is_makers(
        self, maker: PeerId, round_: Plan | Commit, leader: PeerId, mean: ShardResult, rows: bytes = b""
    ) -> bool:
        """Return whether the maker of a mean of this round signed it; `rows` as in `mean_statement`."""
        return self._holds(maker, mean_statement(self.scope, round_, leader, mean, rows), mean.signature)

    def is_leaders(self, commit: Commit) -> bool:
        """Return whether the leader named in a commit signed it."""
        return self._holds(commit.leader, commit_statement(self.scope, commit), commit.signature)

    def is_planners(self, leader: PeerId, plan: Plan) -> bool:
        """Return whether a leader signed a plan."""
        return bool(plan.signature) and self._holds(leader, plan_statement(self.scope, plan), plan.signature)

    def objection(self, commit: Commit) -> str:
        """Return why a commit proves nothing; empty if its leader and all its reducers signed it."""
        if not self.is_leaders(commit):
            return f"the commit of version {commit.version} of fragment {commit.fragment} is not signed by its leader"
        rows = rows_digest(commit.roster)
        for shard in commit.shards:
            reducer = commit.roster[shard.reducer].peer_id
            if shard.digest and not self.is_makers(reducer, commit, commit.leader, shard, rows):
                return (
                    f"in the commit of version {commit.version} of fragment {commit.fragment}, the mean of values "
                    f"[{shard.start}, {shard.end}) is not signed by its reducer {reducer}"
                )
        return ""

    def is_contributors(self, member: PeerId, sent: Contribution | AuditShare, digest: bytes) -> bool:
        """Return whether a member signed this shard of its contribution, with a payload of this digest."""
        return self._holds(member, contribution_statement(self.scope, sent, digest), sent.signature)

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
    """Also signs the means this peer reduced and the rounds it led."""

    def __init__(self, scope: Scope, sign: Sign, verify: Verify, verified: VerifiedRecords | None = None) -> None:
        super().__init__(scope, verify, verified)
        self._sign = sign

    def sign_result(self, round_: Plan | Commit, leader: PeerId, mean: ShardResult) -> bytes:
        return self._sign(mean_statement(self.scope, round_, leader, mean))

    def sign_plan(self, plan: Plan) -> Plan:
        return replace(plan, signature=self._sign(plan_statement(self.scope, plan)))

    def sign_commit(self, commit: Commit) -> Commit:
        return replace(commit, signature=self._sign(commit_statement(self.scope, commit)))

    def sign_contribution(self, sent: Contribution | AuditShare, digest: bytes) -> bytes:
        return self._sign(contribution_statement(self.scope, sent, digest))
