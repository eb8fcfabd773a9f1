"""How a fragment's work begins its next round: the offer to the leader, and the bytes that are ready when it plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from averaging.fragment.runtime import Compute, FragmentRuntime
from averaging.outer.change import Change
from averaging.outer.contributions import Announced, Sent
from averaging.outer.outer_step import OuterRule, staleness_of
from averaging.rounds.facts import WorkExpired
from averaging.wire.messages import Offer


class Expired(NamedTuple):
    """Waiting work that was dropped: what changes for the trainer, and what is told."""

    change: Change
    report: WorkExpired


def offer_of(
    fragment: FragmentRuntime, work: Announced | Sent, upload_bits_per_second: float, *, reachable: bool
) -> Offer:
    """An offer of `work` on the anchor that is here, for the first attempt at a round."""
    return Offer(
        fragment.index,
        fragment.state.version,
        0,
        fragment.machine.anchor_digest,
        work.base_version,
        work.tokens,
        work.steps,
        work.sequence,
        upload_bits_per_second,
        reachable,
        fragment.state.num_rounds,
    )


async def drop_expired(fragment: FragmentRuntime, rule: OuterRule, compute: Compute) -> Expired | None:
    """Drop the waiting work if it is older than anyone may apply; the caller holds `fragment.busy`.

    It tells the trainer before it persists that: who restarts in between then sees the work as waiting still.
    """
    state = fragment.state
    staleness = staleness_of(rule.mode, state.version, state.unsent_base_version)
    if staleness <= rule.staleness_limit:
        return None
    report = WorkExpired(fragment.index, state.version, staleness, state.unsent_tokens)
    return Expired(await compute(state.drop_waiting), report)


async def encode_and_offer(
    fragment: FragmentRuntime, told: Announced, compute: Compute, begin: Callable[[], None]
) -> Sent:
    """Offer the announced work with `begin`, and encode it; the caller holds `fragment.busy`.

    After work that could not be encoded the offer comes last, and a round that ended meanwhile is begun once more.
    """
    fragment.encoded.clear()
    try:
        if not fragment.encodes_first:
            begin()
        fragment.encodes_first = True
        sent = await compute(lambda: fragment.state.encode_work(told.sequence))
        fragment.encodes_first = False
        fragment.persist()
        if not fragment.machine.is_offering:
            begin()
    finally:
        fragment.encoded.set()
    return sent
