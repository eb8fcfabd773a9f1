"""What an owner is told when a fork was longer than the memory of own contributions. Pure.

The last three contributions are kept whole (`averaging.outer.own_contributions.RECENT_CONTRIBUTIONS`), so that after a
change of lineage they neither get lost nor count twice. Of earlier ones only a receipt is kept: too little to undo
anything, enough to say what became of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.own_contributions import Sent
from averaging.rounds.round_facts import WorkLost
from averaging.wire.messages import DIGEST_BYTES, Commit, own_ranges
from dht.host import PeerId

KEPT_RECEIPTS = 16
"""As many as commits are kept by others: of earlier versions nobody can say any more what is in them."""


@dataclass(frozen=True, slots=True)
class PastWork:
    """A contribution of this peer to an earlier round, and whether any of it got in."""

    sequence: int
    version: int
    tokens: int
    is_committed: bool


@dataclass
class LostWork:
    """The last own contributions of one fragment; `me` is whose."""

    me: PeerId
    _kept: deque[PastWork] = field(default_factory=lambda: deque(maxlen=KEPT_RECEIPTS))

    def note(self, sent: Sent, version: int, *, is_committed: bool) -> None:
        """A round is over that this contribution travelled for."""
        self._kept.append(PastWork(sent.sequence, version, sent.tokens, is_committed))

    def settle(
        self, fragment: int, state: FragmentState, left_version: int, left_digest: bytes, commits: Sequence[Commit]
    ) -> Iterator[WorkLost]:
        """What a new anchor lacks of own work, or has twice, beyond what the state itself sets right.

        Args:
            state: with the new anchor, before `FragmentState.settle_in_new_lineage`.
            left_version, left_digest: of the anchor that was left.
            commits: the new lineage's, as far as they are known.
        """
        known = {commit.version: commit for commit in commits}
        next_commit = known.get(left_version)
        if next_commit is not None and next_commit.anchor_digest == left_digest[:DIGEST_BYTES]:
            return  # the same lineage, only further on
        whole = {entry.sent.sequence for entry in state.recent}
        lost = doubled = unknown = 0
        receipts, self._kept = self._kept, deque(maxlen=KEPT_RECEIPTS)
        for receipt in receipts:
            is_there = receipt.is_committed
            if receipt.version >= state.version:
                is_there = False
            elif receipt.version in known:
                sequence, ranges = own_ranges(known[receipt.version], self.me)
                is_there = sequence == receipt.sequence and bool(ranges)
            elif receipt.is_committed and receipt.sequence not in whole:
                unknown += receipt.tokens
            self._kept.append(replace(receipt, is_committed=is_there))
            if receipt.sequence not in whole:
                lost += receipt.tokens if receipt.is_committed and not is_there else 0
                doubled += receipt.tokens if is_there and not receipt.is_committed else 0
        if state.pending is not None and left_version not in known and left_version < state.version:
            unknown += state.pending.tokens
        for tokens, is_doubled, reason in (
            (lost, False, "only the lineage that was left had it, longer ago than it could be kept"),
            (unknown, False, "the commits of the new lineage do not go back far enough to tell whether it is in them"),
            (doubled, True, "it had come back and was sent again, but the new lineage has the first sending too"),
        ):
            if tokens:
                yield WorkLost(fragment, state.version, tokens, is_doubled, reason)
