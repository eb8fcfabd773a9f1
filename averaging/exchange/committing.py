"""What moves a fragment's anchor at one peer, a commit or an anchor from the swarm, and what its owner is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from averaging.arrays import F32
from averaging.codec.blocks import Buffer
from averaging.fragment.cell_rates import own_share_of, rates_of
from averaging.fragment.next_digest import StepKey
from averaging.fragment.runtime import Compute, FragmentRuntime
from averaging.fragment.shard_store import terms_of
from averaging.outer.change import Change
from averaging.outer.contributions import CommittedShard
from averaging.outer.fragment_state import FragmentState
from averaging.outer.outer_step import OuterRule
from averaging.outer.reduction import shard_rates
from averaging.rounds.facts import ExchangeReport, RoundClosed, WorkForgotten, WorkReturned
from averaging.wire.cell_messages import CellsCommit
from averaging.wire.messages import HISTORY_COMMITS, Commit, Plan, own_entry, own_ranges
from dht.host import PeerId


@dataclass(frozen=True, slots=True)
class AppliedCommit:
    """A commit that was applied.

    Attributes:
        num_returned: values of own work that travelled and did not get in.
        own_included: whether own work is in the roster.
    """

    num_returned: int
    own_included: bool
    outer_lr: float

    def reports(self, fragment: FragmentRuntime, commit: Commit, now: float) -> Iterator[ExchangeReport]:
        """What happened, for the owner. Bytes of a round that this peer was not in are no bytes of that round."""
        if self.num_returned:
            too_late = "it came too late for the round"
            reason = "its shard was void or missed the deadline" if self.own_included else too_late
            yield WorkReturned(fragment.index, commit.version, reason, self.num_returned)
        counted = self.own_included
        yield RoundClosed(
            fragment.index,
            commit,
            self.outer_lr,
            self.own_included,
            now - fragment.round_began_at if counted else 0.0,
            fragment.up_bytes if counted else 0,
            fragment.up_values if counted else 0,
            fragment.down_bytes if counted else 0,
            fragment.down_values if counted else 0,
        )


async def apply_commit(
    fragment: FragmentRuntime,
    commit: Commit,
    payloads: Mapping[int, Buffer],
    me: PeerId,
    rule: OuterRule,
    compute: Compute,
    change: Change,
    on_applied: Callable[[], None],
) -> AppliedCommit:
    """Take the fragment from the version that `commit` leaves to the next; the caller holds `fragment.busy`.

    Args:
        payloads: per shard that is not void, its encoded mean.
        change: what to add to the live parameters is written here, float32 [num_values].
        on_applied: called once it is complete, where `compute` works; the digest is still being made then.
    """
    state = fragment.state
    own = own_entry(commit.roster, me)
    in_roster = own is not None and state.pending is not None and own[1].sequence == state.pending.sequence
    own_index = own[0] if own is not None and in_roster else -1
    sent = state.pending
    shards = [
        _committed_shard(fragment, commit, index, payloads.get(index), own_index, rule)
        for index in range(len(commit.results))
    ]
    if own_index >= 0:
        state.own_share = own_share_of(commit, own_index, rule)

    known = fragment.ahead.known(commit.version, _step_keys(commit, rule))

    def run() -> int:
        with fragment.changing():
            _, num_returned = state.apply(shards, commit.tokens, change)
            on_applied()
            state.refresh_digest(known)
        return num_returned

    num_returned = await compute(run)
    fragment.store.settle(commit)
    fragment.log.add(commit)
    fragment.digests[state.version] = state.digest
    for version in [version for version in fragment.digests if version < state.version - HISTORY_COMMITS]:
        del fragment.digests[version]
    outer_lr = max((shard.outer_lr for shard in shards), default=0.0)
    if sent is not None:
        is_committed = any(shard.own_included for shard in shards)
        fragment.receipts.note(sent, commit.version, is_committed=is_committed)
    return AppliedCommit(num_returned if sent is not None else 0, own_index >= 0, outer_lr)


async def adopt_anchor(
    fragment: FragmentRuntime,
    set_state: Callable[[FragmentState], None],
    commits: Sequence[Commit],
    me: PeerId,
    compute: Compute,
) -> tuple[F32, list[WorkForgotten]]:
    """Replace the anchor by one fetched from the swarm; the caller holds `fragment.busy`.

    Args:
        set_state: puts the new anchor into the state.
        commits: recent ones of its lineage; they tell what became of own contributions there.

    Returns:
        (what to add to the live parameters, float32 [num_values]; own work that is lost or counts twice).
    """
    state = fragment.state
    # The commit of a two-level round with the part of another cell says nothing about own work.
    telling = [commit for commit in commits if fragment.tells_of_own_work(commit)]
    own = {commit.version: own_ranges(commit, me) for commit in telling}
    before = await compute(state.shown)

    def replace_anchor() -> list[WorkForgotten]:
        left_version, left_digest, known = state.version, state.digest, fragment.known_anchors()
        with fragment.changing():
            set_state(state)
        forgotten = list(fragment.receipts.settle(fragment.index, state, left_version, left_digest, telling))
        state.settle_in_new_lineage(left_version, own, fragment.common_version(known, commits))
        return forgotten

    forgotten = await compute(replace_anchor)
    after = await compute(state.shown)
    fragment.digests = {state.version: state.digest}
    fragment.store.forget_errors()
    fragment.log.replace(commit for commit in commits if commit.version < state.version)
    return np.subtract(after, before, out=after), forgotten


def step_key(
    round_: Plan | Commit, start: int, end: int, digest: bytes, included: Sequence[int], rule: OuterRule
) -> StepKey:
    """What decides the anchor's values [start, end) after this round, if these members are in their mean."""
    terms = [terms_of(rule, round_, member) for member in included]
    return StepKey(start, end, digest, *shard_rates(terms, rule))


def _step_keys(commit: Commit, rule: OuterRule) -> list[StepKey]:
    # The slices of a two-level round are not expected ahead.
    shards = [] if isinstance(commit, CellsCommit) else [shard for shard in commit.shards if shard.digest]
    return [step_key(commit, shard.start, shard.end, shard.digest, shard.included, rule) for shard in shards]


def _committed_shard(
    fragment: FragmentRuntime, commit: Commit, index: int, payload: Buffer | None, own_index: int, rule: OuterRule
) -> CommittedShard:
    result = commit.results[index]
    gradient = None if payload is None else fragment.store.unpack(result.end - result.start, payload)
    outer_lr, outer_momentum = rates_of(commit, index, rule)
    own_included = own_index in commit.members_in(index)
    return CommittedShard(result.start, result.end, gradient, outer_lr, own_included, outer_momentum)
