"""One valid message of each kind, for the fuzzer to begin with."""

from __future__ import annotations

from averaging.wire.messages import (
    DIGEST_BYTES,
    SIGNATURE_BYTES,
    Abandon,
    AuditInputs,
    AuditRequest,
    AuditShare,
    Commit,
    CommitRequest,
    Contribution,
    Message,
    Offer,
    Plan,
    Redirect,
    Reduced,
    Result,
    ResultRequest,
    RosterEntry,
    ShardPlan,
    ShardResult,
    SignedInput,
    VersionIs,
    Wait,
)
from dht.ground.host import PeerId


def one_of_each_kind(first: PeerId, second: PeerId) -> list[Message]:
    """Of a round of fragment 1 (1000 values) with two members, in PeerId order, and two shards; first its commit."""
    digest, signature = bytes(range(DIGEST_BYTES)), bytes(SIGNATURE_BYTES)
    roster = (RosterEntry(first, 100, 10, 4, 7), RosterEntry(second, 50, 5, 3, 9))
    shards = (ShardResult(0, 500, 0, digest, (0, 1), signature), ShardResult(500, 1000, 1, b"", ()))
    commit = Commit(1, 4, 0, first, digest, roster, shards, digest, signature)
    return [
        commit,
        Plan(1, 4, 0, digest, roster, (ShardPlan(0, 500, 0), ShardPlan(500, 1000, 1)), 5.0, 9.0),
        Offer(1, 4, 0, digest, 4, 100, 10, 7, 1e6, True),
        Wait(1, 4, 0, 1, 2),
        Redirect(1, 4, second),
        Reduced(1, 4, 0, 0, digest, (0, 1), signature),
        Abandon(1, 4, 0, "too late"),
        CommitRequest(1, 4),
        VersionIs(1, 5, digest, 300),
        ResultRequest(1, 4, 0, digest),
        Contribution(1, 4, 0, first, 0, 7, 0, 500, 100, signature),
        Result(1, 4, 0, 0, 500),
        AuditRequest(1, 4, 0, 500),
        AuditShare(1, 4, 7, 0, 500, 100, signature),
        AuditInputs(1, 4, 0, 500, (SignedInput(1, digest, signature),)),
    ]
