"""The reducer's half of a round: how long to wait for each contribution, and when to average. Sans-I/O.

Each member has a separate learned wait, bounded by the wait that the leader's plan promises. The reducer averages a
shard when it waits for no member any more. A later contribution still shows how long its sender takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush

from averaging.rounds.machine_events import Effect, ReduceShard
from averaging.rounds.round_facts import MembersAwaited
from averaging.rounds.waits import Waits
from averaging.wire.messages import Plan
from dht.ground.host import PeerId

Key = tuple[int, PeerId, int]
"""(attempt, leader, shard) of one mean."""


@dataclass
class PendingReduction:
    """One shard of one plan that this peer averages. `until` holds when the wait for each member ends."""

    plan: Plan
    leader: PeerId
    shard: int
    planned_at: float
    until: dict[PeerId, float]
    started: bool = False
    due_at: float = field(init=False)
    """When all waits end; minus infinity if none is left. Read after each message."""

    def __post_init__(self) -> None:
        self.due_at = max(self.until.values(), default=-math.inf)

    def stop_waiting_for(self, peer_id: PeerId) -> None:
        """Stop waiting for this member: its contribution has arrived or never will."""
        if self.until.pop(peer_id, None) is not None:
            self.due_at = max(self.until.values(), default=-math.inf)


@dataclass
class Reducing:
    """All reductions of one version of one fragment at one peer."""

    me: PeerId
    timing: Waits
    num_trainers: int = 0
    """Number of live trainers, as far as known."""
    reductions: dict[Key, PendingReduction] = field(default_factory=dict)
    arrived: dict[Key, set[PeerId]] = field(default_factory=dict)
    _keys_of: dict[PeerId, list[Key]] = field(default_factory=dict)
    """By sender: the keys of its contributions, as a heap with the earliest attempt first."""
    _missed: set[tuple[int, PeerId, PeerId]] = field(default_factory=set)
    _past: dict[Key, float] = field(default_factory=dict)

    def expect(self, num_trainers: int) -> None:
        self.num_trainers = num_trainers

    def on_plan(self, plan: Plan, leader: PeerId, now: float) -> None:
        """Begin to wait for contributions to the shards that this peer reduces."""
        others = [entry.peer_id for entry in plan.roster if entry.peer_id != self.me]
        patience = self.timing.contribution_seconds(others, plan.attempt, is_pair=self.num_trainers <= 2)
        due = {peer_id: now + min(patience[peer_id], plan.contribution_deadline_seconds) for peer_id in others}
        for index, shard in enumerate(plan.shards):
            if plan.roster[shard.reducer].peer_id != self.me:
                continue
            key = (plan.attempt, leader, index)
            here = self.arrived.get(key, set())
            for peer_id in others:
                if peer_id in here:
                    self.timing.line.observe(peer_id, 0.0)
            idle = {entry.peer_id for entry in plan.roster if not entry.token_values(shard.start, shard.end)}
            until = {peer_id: at for peer_id, at in due.items() if peer_id not in here and peer_id not in idle}
            self.reductions[key] = PendingReduction(plan, leader, index, now, until)

    def on_arrived(self, sender: PeerId, key: Key, now: float) -> None:
        """Note a contribution for the current version."""
        keys = self._keys_of.setdefault(sender, [])
        while keys and keys[0][0] < key[0]:
            # Dropped like its shards (`ShardStore`): a member is in one attempt at a time.
            self._forget(sender, heappop(keys))
        senders = self.arrived.setdefault(key, set())
        if sender in senders:
            return
        senders.add(sender)
        heappush(keys, key)
        reduction = self.reductions.get(key)
        if reduction is not None:
            reduction.stop_waiting_for(sender)
            if any(entry.peer_id == sender for entry in reduction.plan.roster):
                self.timing.line.observe(sender, now - reduction.planned_at)

    def _forget(self, sender: PeerId, key: Key) -> None:
        self.arrived[key].discard(sender)
        if not self.arrived[key]:
            del self.arrived[key]

    def on_late(self, sender: PeerId, key: Key, now: float) -> None:
        """Note a contribution for the previous version, which only shows how long its sender takes."""
        planned_at = self._past.get(key)
        if planned_at is not None and (key[0], key[1], sender) in self._missed:
            self._missed.discard((key[0], key[1], sender))
            self.timing.line.observe(sender, now - planned_at)

    def on_lost(self, peer_id: PeerId) -> None:
        for reduction in self.reductions.values():
            reduction.stop_waiting_for(peer_id)

    def check(self, now: float) -> list[Effect]:
        """Return effects that average the shards due at `now`, and report waits in vain."""
        effects: list[Effect] = []
        due = [(key, each) for key, each in self.reductions.items() if not each.started and each.due_at <= now]
        for key, reduction in due:
            reduction.started = True
            expired = self._expired(reduction)
            if expired:
                for peer_id in expired:
                    self.timing.line.missed(peer_id)
                plan, seconds = reduction.plan, now - reduction.planned_at
                effects.append(MembersAwaited(plan.fragment, plan.version, "contribution", expired, seconds))
            members = tuple(
                index
                for index, entry in enumerate(reduction.plan.roster)
                if entry.peer_id == self.me or entry.peer_id in self.arrived.get(key, set())
            )
            effects.append(ReduceShard(reduction.plan, reduction.leader, reduction.shard, members))
        return effects

    def _expired(self, reduction: PendingReduction) -> tuple[PeerId, ...]:
        """Return the members that are late for the first of this plan's shards: one silence counts as one miss, for any
        number of shards.
        """
        found = []
        for peer_id in sorted(reduction.until):
            mark = (reduction.plan.attempt, reduction.leader, peer_id)
            if mark not in self._missed:
                self._missed.add(mark)
                found.append(peer_id)
        return tuple(found)

    @property
    def next_time(self) -> float:
        return min((each.due_at for each in self.reductions.values() if not each.started), default=math.inf)

    def advance(self) -> None:
        self._past = {key: reduction.planned_at for key, reduction in self.reductions.items()}
        self._missed = {mark for mark in self._missed if any(key[:2] == mark[:2] for key in self._past)}
        self.reductions.clear()
        self.arrived.clear()
        self._keys_of.clear()
