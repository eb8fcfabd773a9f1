"""Feeds `DigestAhead` while a round's results arrive, a little at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from averaging.exchange.committing import step_key
from averaging.fragment.runtime import Compute, FragmentRuntime
from averaging.outer.outer_step import OuterRule
from averaging.wire.messages import Plan
from dht.host import PeerId

CHUNKS_AT_ONCE = 4
"""MiB of anchor between two looks at what else the fragment is wanted for: about 10 ms."""
PAUSES_PER_WORK = 2.0
"""A round that wants the whole processor for its transfer gets most of it; what is not known then is hashed later."""


def expect(fragment: FragmentRuntime, plan: Plan, index: int, digest: bytes, reducer: PeerId, rule: OuterRule) -> bool:
    """A mean is here: all members will be in it, unless the commit says otherwise.

    Returns:
        Whether `look_ahead` must be started; it goes on by itself then.
    """
    ahead = fragment.ahead
    if index >= len(plan.shards) or not ahead.is_worth_it:
        return False
    shard = plan.shards[index]
    payload = fragment.store.result(plan.version, index, digest)
    is_planned = plan.roster[shard.reducer].peer_id == reducer
    num_values = shard.end - shard.start
    if payload is None or not is_planned or len(payload) != fragment.state.codec.encoded_num_bytes(num_values):
        return False
    ahead.begin(plan.version)
    key = step_key(plan, shard.start, shard.end, digest, range(len(plan.roster)), rule)
    ahead.add(key, fragment.store.unpack(num_values, payload))
    if fragment.looks_ahead or not ahead.ready():
        return False
    fragment.looks_ahead = True
    return True


async def look_ahead(fragment: FragmentRuntime, compute: Compute, clock: Callable[[], float]) -> None:
    """Work until nothing is ready; the anchor does not move meanwhile."""
    ahead, state = fragment.ahead, fragment.state
    try:
        while True:
            async with fragment.busy:
                began = clock()
                chunks = ahead.ready()[:CHUNKS_AT_ONCE]
                if not chunks or state.version != ahead.version:
                    return
                await compute(partial(ahead.work, state, chunks))
            await asyncio.sleep(PAUSES_PER_WORK * (clock() - began))
    finally:
        fragment.looks_ahead = False
