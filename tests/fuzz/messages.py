"""One valid message of each kind, for the fuzzer to begin with."""

from __future__ import annotations

from averaging.wire.cell_messages import (
    CellOffer,
    Partial,
    SliceOrder,
    SlicePlan,
    SliceReport,
    SliceRow,
    as_part,
    with_upper,
)
from averaging.wire.messages import (
    DIGEST_BYTES,
    PART_DIGEST_BYTES,
    SIGNATURE_BYTES,
    Abandon,
    Accusation,
    AuditRequest,
    AuditShare,
    CellRow,
    Commit,
    CommitRequest,
    Contribution,
    Defence,
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
    SliceResult,
    TopCommit,
    VersionIs,
    Wait,
)
from dht.host import PeerId


def one_of_each_kind(first: PeerId, second: PeerId) -> list[Message]:
    """Of a round of fragment 1 (1000 values) with two members, in PeerId order, and two shards.

    The first is a commit, the last the commit of a round on two levels.
    """
    digest, signature = bytes(range(DIGEST_BYTES)), bytes(SIGNATURE_BYTES)
    roster = (RosterEntry(first, 100, 10, 4, 7, 2), RosterEntry(second, 50, 5, 3, 9))
    shards = (ShardResult(0, 500, 0, digest, (0, 1), signature), ShardResult(500, 1000, 1, b"", ()))
    commit = Commit(1, 4, 0, first, digest, roster, shards, digest, signature)
    flat: list[Message] = [
        commit,
        Plan(1, 4, 0, digest, roster, (ShardPlan(0, 500, 0), ShardPlan(500, 1000, 1)), 5.0, 9.0),
        Offer(1, 4, 0, digest, 4, 100, 10, 7, 1e6, True, 2),
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
        Accusation(1, 4, 0, digest, signature),
        Defence(1, 4, 0, (SignedInput(1, digest, signature),)),
    ]
    return flat + _of_two_levels(commit, second)


def _of_two_levels(part: Commit, other: PeerId) -> list[Message]:
    digest, signature, mine = part.anchor_digest, bytes(SIGNATURE_BYTES), part.leader
    row = CellRow("1/0", mine, bytes(PART_DIGEST_BYTES), 2, 150, 150.0, 150, 150.0, 0)
    cells = (row, CellRow("1/1", other, bytes(PART_DIGEST_BYTES), 3, 90, 90.0, 90, 80.0, 4))
    slices = (SliceRow(0, 500, 0, mine), SliceRow(500, 1000, 1, PeerId("")))
    results = (SliceResult(0, 500, 0, mine, digest, (0, 1), signature), SliceResult(500, 1000, 1, other, b"", ()))
    upper = TopCommit(1, 4, 0, mine, digest, cells, results, digest, signature)
    return [
        as_part(part),
        CellOffer(1, 4, 0, digest, row, part),
        SlicePlan(1, 4, 0, mine, digest, cells, slices, 5.0, 9.0, signature),
        SliceOrder(1, 4, 0, mine, digest, 0, 0, cells, (0,), slices[:1], 0, 500, signature, 5.0),
        Partial(1, 4, 0, mine, 0, 0, 500, 0, 150.0, 0, 500, signature),
        SliceReport(1, 4, 0, 0, digest, (0, 1), signature),
        upper,
        with_upper(part, upper),
    ]
