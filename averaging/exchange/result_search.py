"""How a member gets the results of a commit: they come by themselves, and what does not is asked for, holder by holder.

Reducers send their means to the other members of the round unasked, others ask the reducer. What is missing after a
learned time is asked of the leader, then of everybody in the roster. Others that have gone on from there are asked
last. The peers that made it may be gone. Each of them has its own learned time. It counts from the last result that a
holder sent: while they keep coming, asking for the others would only send them twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from averaging.codec.blocks import Buffer
from averaging.exchange.exchange_ports import Context
from averaging.fragment.runtime import FragmentRuntime
from averaging.rounds.round_facts import DeadlineExpired
from averaging.wire.messages import HISTORY_COMMITS, Commit, ResultRequest, VersionIs, own_entry
from dht.host import PeerId
from dht.records.lineages import is_majority

SHARED_LINE = 2.0
MAX_AHEAD = 4
"""Asked of those that are in no roster and have applied the commit: the first one that answers will do."""


class ResultSearch:
    """The search for one commit's results at one peer."""

    def __init__(self, context: Context, fragment: FragmentRuntime, commit: Commit) -> None:
        self.commit = commit
        self._context = context
        self._fragment = fragment
        self._clock = context.ports.clock
        self._missing = {index: shard.digest for index, shard in enumerate(commit.shards) if shard.digest}
        self._found: dict[int, Buffer] = {}
        self._came_at: dict[PeerId, float] = {}
        self._arrived = asyncio.Event()
        self._outrun_by: set[PeerId] = set()
        self._is_outrun = False
        in_roster = {entry.peer_id for entry in commit.roster}
        ahead = [peer_id for peer_id in fragment.machine.later.ahead(context.me) if peer_id not in in_roster]
        self._ahead = ahead[:MAX_AHEAD]

    async def run(self, on_expired: Callable[[DeadlineExpired], None]) -> dict[int, Buffer] | None:
        """All result payloads by shard, or None when nobody has them (any more)."""
        fragment, commit = self._fragment, self.commit
        own, sent = own_entry(commit.roster, self._context.me), fragment.state.pending
        # Not for a process that began later, with the same key as a member.
        is_member = own is not None and sent is not None and own[1].sequence == sent.sequence
        for attempt in range(2 + 2 * (len(commit.roster) + len(self._ahead))):
            began = self._clock()
            holders = self._holders(attempt)
            self._came_at.clear()
            if attempt or not (is_member or fragment.machine.comes_unasked):
                self._ask(holders)
            longest = fragment.machine.timing.result.longest(holders.values())
            allowed_seconds = max(longest.seconds, self._line_seconds(holders))
            while True:
                self._arrived.clear()
                self._look(holders, began)
                if not self._missing:
                    return self._found
                if self._is_outrun:
                    return None
                try:
                    async with asyncio.timeout(
                        max(0.0, self._quiet_since(holders, began) + allowed_seconds - self._clock())
                    ):
                        await self._arrived.wait()
                except TimeoutError:
                    break
            late = tuple(sorted({holders[index] for index in self._missing if index in holders}))
            for holder in late:
                fragment.machine.timing.result.missed(holder)
            if late:
                seconds, arrivals = self._clock() - began, longest.num_arrivals
                on_expired(DeadlineExpired(fragment.index, commit.version, "result", late, seconds, arrivals))
        return None

    def note_arrival(self) -> None:
        """A result is here: perhaps one that is missing."""
        self._arrived.set()

    def note_version(self, sender: PeerId, theirs: VersionIs) -> None:
        """Notice that the swarm is so far ahead that nobody keeps these results.

        A stranger's word does not end the search: more than half of the live members of that round must say so.
        """
        members = {entry.peer_id for entry in self.commit.roster} - {self._context.me}
        if theirs.version <= self.commit.version + HISTORY_COMMITS or sender not in members:
            return
        self._outrun_by.add(sender)
        members = members & {*self._fragment.machine.trainers} or members
        if is_majority(len(self._outrun_by & members), len(members)):
            self._is_outrun = True
            self._arrived.set()

    def _look(self, holders: dict[int, PeerId], began: float) -> None:
        """Take what is here by now."""
        for index, digest in list(self._missing.items()):
            payload = self._fragment.store.result(self.commit.version, index, digest)
            if payload is not None:
                self._found[index] = payload
                del self._missing[index]
                if index in holders:
                    self._came_at[holders[index]] = self._clock()
                    self._fragment.machine.timing.result.observe(holders[index], self._clock() - began)

    def _line_seconds(self, holders: dict[int, PeerId]) -> float:
        """What the slowest of the holders' lines needs by its own word, for this peer and one more, within bounds.

        Asking others meanwhile would only make them send it, too.
        """
        state, timing, bits = self._fragment.state, self._fragment.machine.timing, dict[PeerId, float]()
        for index, holder in holders.items():
            result = self.commit.shards[index]
            encoded = 8 * state.codec.encoded_num_bytes(result.end - result.start)
            bits[holder] = bits.get(holder, 0.0) + encoded
        rates = {holder: self._context.ports.rate_of(holder) for holder in bits}
        seconds = (SHARED_LINE * bits[holder] / rate for holder, rate in rates.items() if rate > 0)
        return min(max(seconds, default=0.0), timing.hard_seconds)

    def _quiet_since(self, holders: dict[int, PeerId], began: float) -> float:
        """When the last of those who still owe something sent something."""
        return max(
            (self._came_at.get(holders[index], began) for index in self._missing if index in holders), default=began
        )

    def _holders(self, attempt: int) -> dict[int, PeerId]:
        """The member that each missing result is expected from in this attempt; none when this peer is alone."""
        found = {}
        for index in self._missing:
            first = self.commit.holder(index)
            members = [entry.peer_id for entry in self.commit.roster if entry.peer_id != first]
            holders = [
                peer_id
                for peer_id in (first, self.commit.leader, *members, *self._ahead)
                if peer_id != self._context.me
            ]
            if holders:
                found[index] = holders[attempt % len(holders)]
        return found

    def _ask(self, holders: dict[int, PeerId]) -> None:
        for index, holder in holders.items():
            shard = self.commit.shards[index]
            request = ResultRequest(self._fragment.index, self.commit.version, index, shard.digest)
            self._context.links.send(holder, request)
