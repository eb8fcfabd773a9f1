"""Whom a signed commit credits, as the dashboard counts it. Pure: signatures are verified by what is given in."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from averaging.signing.credit import Round, round_of
from averaging.signing.notary import Verify
from averaging.signing.receipt_file import ReceiptFault, RunFrame, commit_of, line_of, open_receipt
from averaging.wire.messages import Commit
from dashboard.credit.commit_traffic import data_parallel_bytes, payload_bytes
from dashboard.facts import CommitCredit, MemberCredit
from dht.errors import PeerFault
from dht.host import PeerId
from dht.records.signed_records import RunRecord


def run_frame(record: RunRecord, fragment_sizes: Sequence[int]) -> RunFrame:
    """What receipts of this run under this manifest are checked against."""
    return RunFrame(record.run_id, hashlib.sha256(record.manifest).digest(), tuple(fragment_sizes))


def checker_of(
    run: RunFrame, verify: Verify, encoded_num_bytes: Callable[[int], int] | None = None
) -> Callable[[bytes], CommitCredit]:
    """The check of one stored receipt (`receipt_of`): all signatures, then whom it credits and what it moved.

    `encoded_num_bytes`: bytes of so many values, as the run's codec writes them; without it no bytes are counted.

    The manifest of the receipt counts, so that what was collected under an earlier revision stays good. Raises
    PeerFault with the reason.
    """

    def check(receipt: bytes) -> CommitCredit:
        try:
            of_receipt, frame = open_receipt(run.run_id, receipt)
            if of_receipt.fragment_sizes != run.fragment_sizes:
                raise ReceiptFault("it is of a model with other fragments")
            commit = commit_of(frame, of_receipt, verify)
        except ReceiptFault as fault:
            raise PeerFault(PeerId(""), f"gave a commit that proves nothing: {fault}") from fault
        credit = credit_of(commit, sum(run.fragment_sizes))
        if encoded_num_bytes is None:
            return credit
        return replace(
            credit,
            payload_bytes=payload_bytes(commit, encoded_num_bytes),
            data_parallel_bytes=data_parallel_bytes(commit, run.fragment_sizes[commit.fragment]),
        )

    return check


def proof_line(run_id: str, receipt: bytes) -> str:
    """A stored receipt as a line of the file that `peer receipts verify` reads."""
    run, frame = open_receipt(run_id, receipt)
    return line_of(frame, run)


def credit_of(commit: Commit, num_parameters: int) -> CommitCredit:
    """Whom a commit credits whose signatures were checked."""
    return commit_credit(round_of(commit, num_parameters), commit)


def commit_credit(one: Round, commit: Commit) -> CommitCredit:
    """The same as the dashboard keeps it."""
    return CommitCredit(
        fragment=one.fragment,
        version=one.version,
        leader=one.leader,
        tokens=one.tokens,
        digest=one.digest,
        members=tuple(
            MemberCredit(share.peer_id, share.milli_witnessed, share.milli_tokens, share.milli_tokens > 0)
            for share in one.shares
        ),
        num_void_shards=sum(not shard.digest for shard in commit.shards),
        num_shards=len(commit.shards),
        drop_reasons=drop_reasons(commit),
        previous=one.previous,
        standing=one.standing,
    )


def drop_reasons(commit: Commit) -> tuple[tuple[str, int], ...]:
    """Why parts of a round are missing, as far as the commit shows it: (reason in words, how many)."""
    included = {index for shard in commit.shards for index in shard.included}
    everywhere = set(included).intersection(*(shard.included for shard in commit.shards if shard.digest))
    counts = {
        "planned and nothing of it arrived in time": len(commit.roster) - len(included),
        "only a part of its work arrived in time": len(included) - len(everywhere),
        "a reducer gave no mean in time": sum(not shard.digest for shard in commit.shards),
    }
    return tuple((reason, count) for reason, count in counts.items() if count)


@dataclass
class Collected:
    """Receipts that were checked, and how many were refused for which reason."""

    credits: list[CommitCredit] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def collect(receipts: Iterable[bytes], check: Callable[[bytes], CommitCredit]) -> Collected:
    """Check many receipts; what proves nothing is counted by its reason and credits nobody."""
    found = Collected()
    for receipt in receipts:
        try:
            found.credits.append(check(receipt))
        except PeerFault as fault:
            found.refused[_reason(fault.what)] += 1
    return found


def _reason(what: str) -> str:
    if "not signed by its leader" in what:
        return "not signed by its leader"
    if "not signed by its reducer" in what:
        return "a mean that its reducer has not signed"
    return "no commit of this run's model"
