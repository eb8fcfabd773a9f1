"""Members that a signed commit credits, for the dashboard. Pure: the verification of signatures is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Final

from pydantic import ConfigDict

from averaging.signing.commit_credit import CreditedRound, round_of
from averaging.signing.receipt_file import ReceiptFault, RunFrame, commit_of, open_receipt
from averaging.signing.round_signatures import Verify
from averaging.wire.messages import Commit
from dashboard.history_facts import RoundFacts
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId

BYTES_PER_GRADIENT: Final = 4
"""Plain data-parallel training sends float32 gradients."""
MAX_BYTES: Final = 2**53
"""Most bytes of one commit, 9 petabytes: larger claims count as this, and sums over a history stay exact."""


@dataclass(frozen=True, slots=True)
class CommitCredit(CreditedRound):
    """A signed commit with checked signatures, and the facts that the page shows."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    """The history stores it as JSON."""

    num_void_shards: int = 0
    drop_reasons: tuple[tuple[str, int], ...] = ()
    """(reason in words, count)."""
    payload_bytes: int = 0
    """Bytes of encoded values sent between members in the round."""
    data_parallel_bytes: int = 0
    """Bytes that plain data-parallel training would have sent for the same steps on the same part of the model."""


def checker_of(
    run: RunFrame, verify: Verify, encoded_num_bytes: Callable[[int], int]
) -> Callable[[bytes], CommitCredit]:
    """Return the check of one stored receipt (`receipt_of`): it verifies all signatures and computes credit and bytes.

    `encoded_num_bytes`: returns the bytes of a number of values in the run's codec.

    The manifest of the receipt counts, so that commits collected under an earlier revision stay valid. Raises PeerFault
    with the reason.
    """

    def check(receipt: bytes) -> CommitCredit:
        try:
            of_receipt, frame = open_receipt(run.run_id, receipt)
            if of_receipt.fragment_sizes != run.fragment_sizes:
                raise ReceiptFault("it is of a model with different fragments")
            commit = commit_of(frame, of_receipt, verify)
        except ReceiptFault as fault:
            raise PeerFault(PeerId(""), f"gave a commit that proves nothing: {fault}") from fault
        credit = credit_of(commit, sum(run.fragment_sizes))
        return replace(
            credit,
            payload_bytes=payload_bytes(commit, encoded_num_bytes),
            data_parallel_bytes=data_parallel_bytes(commit, run.fragment_sizes[commit.fragment]),
        )

    return check


def credit_of(commit: Commit, num_parameters: int) -> CommitCredit:
    """Return the credit of a commit whose signatures were checked."""
    one = round_of(commit, num_parameters)
    return CommitCredit(
        **{field.name: getattr(one, field.name) for field in fields(one)},
        num_void_shards=sum(not shard.digest for shard in commit.shards),
        drop_reasons=drop_reasons(commit),
    )


def round_facts_of(credit: CommitCredit, at: float) -> RoundFacts:
    """Return the round in the form of page and API; `at` is when this dashboard received it."""
    return RoundFacts(
        fragment=credit.fragment,
        version=credit.version,
        seen_at=at,
        leader=credit.leader,
        tokens=credit.tokens,
        contributors=tuple(share.peer_id for share in credit.shares if share.milli_tokens),
        num_missed=sum(not share.milli_tokens for share in credit.shares),
        num_void_shards=credit.num_void_shards,
        drop_reasons=credit.drop_reasons,
    )


def drop_reasons(commit: Commit) -> tuple[tuple[str, int], ...]:
    """Return why parts of a round are missing, as far as the commit shows: (reason in words, count)."""
    included = {index for shard in commit.shards for index in shard.included}
    everywhere = set(included).intersection(*(shard.included for shard in commit.shards if shard.digest))
    counts = {
        "planned and nothing of it arrived in time": len(commit.roster) - len(included),
        "only a part of its work arrived in time": len(included) - len(everywhere),
        "a reducer gave no mean in time": sum(not shard.digest for shard in commit.shards),
    }
    return tuple((reason, count) for reason, count in counts.items() if count)


def payload_bytes(commit: Commit, encoded_num_bytes: Callable[[int], int]) -> int:
    """Return the bytes of encoded values sent between members.

    Each member in a shard sent its part to the shard's reducer, and the reducer sent the mean to all members.

    Args:
        encoded_num_bytes: returns the bytes of a number of values in the manifest's codec.
    """
    total = 0
    for shard in commit.shards:
        if shard.digest:
            num_sent = sum(member != shard.reducer for member in shard.included) + len(commit.roster) - 1
            total += num_sent * encoded_num_bytes(shard.end - shard.start)
    return min(total, MAX_BYTES)


def data_parallel_bytes(commit: Commit, fragment_size: int) -> int:
    """Return the bytes that a ring all-reduce at each inner step would have uploaded for this part of the model.

    With M members, each uploads 2 (M - 1) / M times the gradients at every step (Patarasuk and Yuan,
    doi:10.1016/j.jpdc.2008.09.002).
    """
    included = {index for shard in commit.shards for index in shard.included}
    if not included:
        return 0
    num_steps = sum(commit.roster[index].steps for index in included)
    total = round(2 * (len(included) - 1) / len(included) * num_steps * BYTES_PER_GRADIENT * fragment_size)
    return min(total, MAX_BYTES)
