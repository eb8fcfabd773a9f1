"""Everything one fragment needs while its rounds run, and how missing results are found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from averaging import wire
from averaging.fragment_state import FragmentState
from averaging.links import Links
from averaging.messages import Commit, ResultRequest, VersionIs, own_entry
from averaging.round import HISTORY_COMMITS, RoundMachine
from averaging.shard_store import ShardStore
from dht.host import PeerId

T = TypeVar("T")


class Compute(Protocol):
    """Port: where heavy tensor work runs; a thread in real life, inline in virtual time."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass
class FragmentRuntime:
    """Everything one fragment needs while its rounds run."""

    index: int
    state: FragmentState
    machine: RoundMachine
    store: ShardStore
    changing: Callable[[], AbstractContextManager[object]] = nullcontext
    result_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    digests: dict[int, bytes] = field(default_factory=dict)
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    timer: asyncio.TimerHandle | None = None
    repairing: bool = False
    is_outrun: bool = False
    round_began_at: float = 0.0
    up_bytes: int = 0
    up_values: int = 0
    down_bytes: int = 0
    down_values: int = 0

    def hear_version(self, theirs: VersionIs) -> None:
        """Notice that the swarm is so far ahead that nobody keeps the results of the commit being applied here."""
        applying = self.machine.applying
        is_heavier = theirs.lineage_tokens > self.machine.lineage_tokens
        if applying is not None and is_heavier and theirs.version > applying.version + HISTORY_COMMITS:
            self.is_outrun = True
            self.result_arrived.set()


async def collect_results(
    fragment: FragmentRuntime, commit: Commit, me: PeerId, links: Links, clock: Callable[[], float]
) -> dict[int, bytes] | None:
    """All result payloads of a commit; asks other members for those that do not come by themselves.

    None when nobody has them (any more).
    """
    needed = {index: shard.digest for index, shard in enumerate(commit.shards) if shard.digest}
    found: dict[int, bytes] = {}
    patience = fragment.machine.timing.result
    own, sent = own_entry(commit.roster, me), fragment.state.pending
    # Not for a process that began later, with the same key as a member.
    is_member = own is not None and sent is not None and own[1].sequence == sent.sequence
    fragment.is_outrun = False
    began = clock()
    for attempt in range(2 + 2 * len(commit.roster)):
        # Reducers send results to members by themselves; only after a learned wait does a member ask.
        if attempt or not is_member:
            _request_results(fragment, commit, me, links, [index for index in needed if index not in found], attempt)
        until = clock() + patience.seconds
        while True:
            fragment.result_arrived.clear()
            for index, digest in needed.items():
                payload = fragment.store.result(commit.version, index, digest)
                if payload is not None:
                    found[index] = payload
            if len(found) == len(needed):
                if attempt <= 1:
                    patience.observe(clock() - began)
                return found
            if fragment.is_outrun:
                return None
            try:
                async with asyncio.timeout(max(0.0, until - clock())):
                    await fragment.result_arrived.wait()
            except TimeoutError:
                break
    return None


def _request_results(
    fragment: FragmentRuntime, commit: Commit, me: PeerId, links: Links, missing: Sequence[int], attempt: int
) -> None:
    for index in missing:
        shard = commit.shards[index]
        reducer = commit.roster[shard.reducer].peer_id
        members = [entry.peer_id for entry in commit.roster if entry.peer_id != reducer]
        holders = [peer_id for peer_id in (reducer, commit.leader, *members) if peer_id != me]
        if holders:
            request = ResultRequest(fragment.index, commit.version, index, shard.digest)
            links.post(holders[attempt % len(holders)], [wire.encode(request)])
