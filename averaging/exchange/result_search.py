"""Search for the results of a commit: reducers send them, and the member requests those that are missing.

Reducers send their means to the other members of the round; peers outside the round ask the reducer. After some time, a
member asks a few members of the round at once for the missing results, and each member begins at a different place of
the roster. So a mean that only one member holds spreads as fast as questions and answers travel. Peers outside the
round that have applied the commit are asked last, because the members that made it may be gone.

A try ends when the result arrives, when the holder answers that it has another version, when the holder's connection is
lost, or after the same time again, counted from the last result that this holder sent. While results keep arriving,
asking other holders would only transfer them twice.
"""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from averaging.codec.blocks import Buffer
from averaging.exchange.exchange_ports import Context
from averaging.fragment.runtime import FragmentRuntime
from averaging.rounds.round_facts import MembersAwaited
from averaging.wire.messages import HISTORY_COMMITS, Commit, ResultRequest, VersionIs, own_entry
from dht.ground.host import PeerId
from dht.records.lineages import is_majority

MAX_AHEAD = 4
"""Peers outside the roster that have applied the commit and are asked: the first answer is enough."""


NUM_AT_ONCE = 3
"""Holders that are asked for one result at once. With more, large shards would arrive many times if all holders have
them."""
NUM_PASSES = 3
"""A holder without the result may have it at the next pass."""


@dataclass(frozen=True, slots=True)
class _Try:
    """A holder that may send one result. `is_asked`: this peer requested the result; otherwise the holder sends it
    unasked.
    """

    since: float
    is_asked: bool


class ResultSearch:
    """Search for one commit's results at one peer."""

    def __init__(self, context: Context, fragment: FragmentRuntime, commit: Commit) -> None:
        self.commit = commit
        self._context = context
        self._fragment = fragment
        self._clock = context.ports.clock
        self._missing = {index: shard.digest for index, shard in enumerate(commit.shards) if shard.digest}
        self._found: dict[int, Buffer] = {}
        self._tries: dict[tuple[PeerId, int], _Try] = {}
        """By holder and shard."""
        self._first: dict[int, PeerId] = {}
        """By shard: the holder that is expected to send it."""
        self._came_at: dict[PeerId, float] = {}
        self._refusals: Counter[PeerId] = Counter()
        """By holder: answers that it has another version. Each counts against one open try."""
        self._arrived = asyncio.Event()
        self._outrun_by: set[PeerId] = set()
        self._is_outrun = False
        in_roster = {entry.peer_id for entry in commit.roster}
        ahead = [peer_id for peer_id in fragment.machine.later.ahead(context.me) if peer_id not in in_roster]
        self._ahead = ahead[:MAX_AHEAD]

    async def run(self, on_expired: Callable[[MembersAwaited], None]) -> dict[int, Buffer] | None:
        """Return all result payloads by shard, or None if no peer has them (any more)."""
        for number in range(NUM_PASSES):
            began = self._clock()
            holders = {index: self._holders(index) for index in self._missing}
            self._first = {} if number else self._begin(holders)
            # The answer "not here" travels faster than a result from its only holder to the next.
            await self._look_and_ask(holders, began + self._fragment.machine.timing.result_seconds(), on_expired)
            if not self._missing or self._is_outrun:
                break
        return None if self._missing else self._found

    async def _look_and_ask(
        self, holders: Mapping[int, list[PeerId]], earliest: float, on_expired: Callable[[MembersAwaited], None]
    ) -> None:
        """Ask these holders in this order, a few at once, until all results have arrived.

        Ends without them when all tries have ended, but not before `earliest`.
        """
        while True:
            self._arrived.clear()
            self._look()
            if not self._missing or self._is_outrun:
                return
            self._end_tries(on_expired)
            for index in self._missing:
                while holders[index] and self._may_ask(index):
                    self._ask(holders[index].pop(0), index)
            ends_at = min(map(self._ends_at, self._tries), default=earliest)
            if not self._tries and earliest <= self._clock():
                return
            try:
                async with asyncio.timeout(max(0.0, ends_at - self._clock())):
                    await self._arrived.wait()
            except TimeoutError:
                continue

    def note_arrival(self) -> None:
        """Note that a result arrived, which may be a missing one."""
        self._arrived.set()

    def note_version(self, sender: PeerId, theirs: VersionIs) -> None:
        """Note the version of a holder, which has nothing to send: perhaps no peer keeps these results any more.

        A stranger's answer does not end the search: more than half of the live members of that round must answer so.
        """
        if any(holder == sender and attempt.is_asked for (holder, _), attempt in self._tries.items()):
            self._refusals[sender] += 1
            self._arrived.set()
        members = {entry.peer_id for entry in self.commit.roster} - {self._context.me}
        if theirs.version <= self.commit.version + HISTORY_COMMITS or sender not in members:
            return
        self._outrun_by.add(sender)
        members = members & {*self._fragment.machine.trainers} or members
        if is_majority(len(self._outrun_by & members), len(members)):
            self._is_outrun = True
            self._arrived.set()

    def note_lost(self, peer_id: PeerId) -> None:
        """Handle a lost connection: the holder sends nothing more."""
        lost = [key for key in self._tries if key[0] == peer_id]
        for key in lost:
            del self._tries[key]
        if lost:
            self._arrived.set()

    def _begin(self, holders: Mapping[int, list[PeerId]]) -> dict[int, PeerId]:
        """Wait for means that arrive unasked, and request the others. Return the reducers by shard."""
        commit, sent = self.commit, self._fragment.state.pending
        own = own_entry(commit.roster, self._context.me)
        # False for a process that started later with the same key as a member.
        is_member = own is not None and sent is not None and own[1].sequence == sent.sequence
        waits = is_member or self._fragment.machine.comes_unasked
        first = {index: holders[index].pop(0) for index in self._missing if holders[index]}
        for index, holder in first.items():
            if waits and holder not in self._context.lost:
                self._tries[holder, index] = _Try(self._clock(), is_asked=False)
            elif not waits:
                self._ask(holder, index)
        return first

    def _may_ask(self, index: int) -> bool:
        """Return whether one more holder may be asked for a result: not while the first holder may still send it."""
        tries = {holder for holder, of in self._tries if of == index}
        return len(tries) < NUM_AT_ONCE and self._first.get(index) not in tries

    def _look(self) -> None:
        """Collect the missing results that have arrived."""
        now = self._clock()
        for index, digest in list(self._missing.items()):
            payload = self._fragment.store.result(self.commit.version, index, digest)
            if payload is None:
                continue
            self._found[index] = payload
            del self._missing[index]
            tries = [key for key in self._tries if key[1] == index]
            for key in tries:
                del self._tries[key]
            if len(tries) == 1:  # with several tries, the sender is not known
                self._came_at[tries[0][0]] = now

    def _end_tries(self, on_expired: Callable[[MembersAwaited], None]) -> None:
        """End the tries whose time is over, and those whose holder answered that it has another version."""
        now = self._clock()
        asked = Counter(holder for (holder, _), attempt in self._tries.items() if attempt.is_asked)
        refusing = {holder for holder, num in asked.items() if self._refusals[holder] >= num}
        late = {key[0]: self._tries[key].since for key in self._tries if self._ends_at(key) <= now}
        for key in [key for key in self._tries if key[0] in late or (key[0] in refusing and self._tries[key].is_asked)]:
            del self._tries[key]
        for holder in refusing | late.keys():
            del self._refusals[holder]
        if late:
            seconds = now - min(late.values())
            told = (self._fragment.index, self.commit.version, "result", tuple(sorted(late)), seconds)
            on_expired(MembersAwaited(*told))

    def _ends_at(self, key: tuple[PeerId, int]) -> float:
        """Return when the time of a try is over."""
        holder = key[0]
        results = [self.commit.shards[index] for of, index in self._tries if of == holder]
        encoded = sum(self._fragment.state.codec.encoded_num_bytes(result.end - result.start) for result in results)
        # Asking others meanwhile would only make them send the result too.
        rate = self._context.ports.rate_of(holder)
        allowed_seconds = self._fragment.machine.timing.result_seconds(encoded, rate)
        return max(self._tries[key].since, self._came_at.get(holder, 0.0)) + allowed_seconds

    def _holders(self, index: int) -> list[PeerId]:
        """Return the peers that may have a result, the likeliest first, without this peer."""
        me, commit = self._context.me, self.commit
        members = sorted(entry.peer_id for entry in commit.roster)
        place = bisect(members, me)
        others = (commit.holder(index), *members[place:], *members[:place], commit.leader, *self._ahead)
        return [peer_id for peer_id in dict.fromkeys(others) if peer_id != me]

    def _ask(self, holder: PeerId, index: int) -> None:
        self._tries[holder, index] = _Try(self._clock(), is_asked=True)
        digest = self.commit.shards[index].digest
        request = ResultRequest(self._fragment.index, self.commit.version, index, digest)
        self._context.links.send(holder, request)
