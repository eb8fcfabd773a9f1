"""The leader's half of a round: collect offers, decide when to start, collect results, close. Sans-I/O.

`Leading` exists per fragment version on every peer that received an offer; it does not know whether its own peer is a
member. All waiting is a function of `now`: call `check(now)` and again at `next_time`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from averaging.deadlines import LearnedDeadline, LearnedPace
from averaging.messages import (
    MAX_ROSTER,
    Abandon,
    Commit,
    Message,
    Offer,
    Plan,
    Reduced,
    RosterEntry,
    ShardPlan,
    ShardResult,
    Wait,
)
from dht.host import PeerId

HEARTBEAT_SECONDS = 1.0
"""A waiting leader says so this often: a member may then call a few missed ones silence, however long rounds take."""

GRACE_OF_INTERVAL = 0.7
"""Longest grace window as a share of the time between two own sends; the rest is left for the transfer."""
FIRST_GRACE_SECONDS = 2.0
"""Grace before the leader knows its own pace."""

Send = Callable[[PeerId, Message], None]
Shards = Callable[[Sequence[Offer]], tuple[ShardPlan, ...]]


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """What a peer has learned about durations, per fragment; shared by all its rounds of that fragment."""

    offer_spread: LearnedDeadline
    contribution: LearnedDeadline
    result: LearnedDeadline
    commit: LearnedDeadline
    leader_silence: LearnedDeadline
    own_pace: LearnedPace
    hard_seconds: float

    @classmethod
    def with_bounds(cls, hard_seconds: float) -> RoundTiming:
        """Deadlines that start patient and learn; `hard_seconds` is the manifest's upper bound of each."""
        return cls(
            offer_spread=LearnedDeadline(hard_seconds, 0.0, hard_seconds),
            contribution=LearnedDeadline(min(10.0, hard_seconds), min(1.0, hard_seconds), hard_seconds),
            result=LearnedDeadline(min(3.0, hard_seconds), min(0.5, hard_seconds), hard_seconds),
            commit=LearnedDeadline(min(20.0, hard_seconds), min(2.0, hard_seconds), hard_seconds),
            leader_silence=LearnedDeadline(
                min(6 * HEARTBEAT_SECONDS, hard_seconds), min(4 * HEARTBEAT_SECONDS, hard_seconds), hard_seconds
            ),
            own_pace=LearnedPace(),
            hard_seconds=hard_seconds,
        )


@dataclass
class Leading:
    """Offers, plan and results of one round at its leader."""

    me: PeerId
    fragment: int
    version: int
    anchor_digest: bytes
    timing: RoundTiming
    send: Send
    shards_for: Shards
    quorum_fraction: float
    not_before: float = 0.0
    attempt: int = 0
    offers: dict[PeerId, Offer] = field(default_factory=dict)
    late: set[PeerId] = field(default_factory=set)
    plan: Plan | None = None
    first_at: float = 0.0
    last_offer_at: float = 0.0
    quorum_at: float | None = None
    planned_at: float = 0.0
    heartbeat_at: float = 0.0
    results: dict[int, ShardResult] = field(default_factory=dict)
    closed: bool = False

    def on_offer(self, peer_id: PeerId, offer: Offer, num_trainers: int, now: float) -> None:
        """Take an offer; one that comes after the plan, or to a full roster, waits for the next version."""
        if not self.offers:
            self.first_at = now
            self.heartbeat_at = now + HEARTBEAT_SECONDS
        if self.plan is not None and peer_id not in self.offers:
            self.timing.offer_spread.observe(now - self.first_at)
        if self.plan is None and (len(self.offers) < MAX_ROSTER or peer_id in self.offers):
            self.offers[peer_id] = offer
            self.attempt = max(self.attempt, offer.attempt)
            self.last_offer_at = now
        elif peer_id not in self.offers and len(self.late) < MAX_ROSTER:
            self.late.add(peer_id)
        self.send(peer_id, self._wait(num_trainers))

    def on_lost(self, peer_id: PeerId) -> None:
        """Forget an offer that was not planned yet; void the shards of a reducer that vanished."""
        self.late.discard(peer_id)
        if self.plan is None:
            self.offers.pop(peer_id, None)
            self.quorum_at = None
            return
        for index, shard in enumerate(self.plan.shards):
            if self.plan.roster[shard.reducer].peer_id == peer_id and index not in self.results:
                self.results[index] = ShardResult(shard.start, shard.end, shard.reducer, b"", ())

    def on_reduced(self, peer_id: PeerId, message: Reduced, now: float) -> bool:
        """Take a reducer's report. Returns False when it does not belong to this round or this reducer."""
        plan = self.plan
        if plan is None or message.attempt != plan.attempt or message.shard >= len(plan.shards):
            return False
        shard = plan.shards[message.shard]
        members = tuple(sorted(set(message.included)))
        if plan.roster[shard.reducer].peer_id != peer_id or any(index >= len(plan.roster) for index in members):
            return False
        if message.shard not in self.results and members == message.included and members:
            self.results[message.shard] = ShardResult(shard.start, shard.end, shard.reducer, message.digest, members)
            self.timing.commit.observe(now - self.planned_at)
        return True

    def check(self, num_trainers: int, everyone_offered: bool, now: float) -> Commit | Abandon | None:
        """Send what is due at `now`; returns the commit (or the abandonment) when the round closes."""
        if self.closed or not self.offers:
            return None
        if self.plan is None:
            if len(self.offers) >= self.quorum(num_trainers) and self.quorum_at is None:
                self.quorum_at = now
            if everyone_offered or now >= self._start_at():
                self._start(now)
            self._heartbeat(num_trainers, now)
            return None
        self._heartbeat(num_trainers, now)
        if len(self.results) < len(self.plan.shards) and now < self.planned_at + self.plan.commit_deadline_seconds:
            return None
        return self._close()

    def quorum(self, num_trainers: int) -> int:
        """Offers that a round needs before the grace window may end: ceil(fraction * live trainers)."""
        return max(1, math.ceil(self.quorum_fraction * num_trainers))

    @property
    def waiting(self) -> list[PeerId]:
        """Everybody who offered, in time or too late for this plan: they wait for the commit."""
        return sorted({*self.offers, *self.late})

    @property
    def next_time(self) -> float:
        """When `check` has something to do although nothing arrived."""
        if self.closed or not self.offers:
            return math.inf
        if self.plan is None:
            return min(self._start_at(), self.heartbeat_at)
        return min(self.planned_at + self.plan.commit_deadline_seconds, self.heartbeat_at)

    def _start_at(self) -> float:
        """Quorum, then a grace window: as long as offers usually straggle, but never into the next interval.

        Peers of one speed have constant phases in the interval, so a window of most of it lets everybody take part in
        every round, while nobody's training waits (the grace window of arXiv 2604.21428).
        """
        if self.quorum_at is None:
            return self.first_at + self.timing.hard_seconds
        pace = self.timing.own_pace.seconds
        longest = GRACE_OF_INTERVAL * pace if pace is not None else FIRST_GRACE_SECONDS
        patient = max(self.first_at + min(self.timing.offer_spread.seconds, longest), self.not_before)
        return max(self.quorum_at, min(patient, self.first_at + self.timing.hard_seconds))

    def _start(self, now: float) -> None:
        offers = [self.offers[peer_id] for peer_id in sorted(self.offers)]
        roster = tuple(
            RosterEntry(peer_id, offer.tokens, offer.steps, offer.base_version, offer.sequence)
            for peer_id, offer in sorted(self.offers.items())
        )
        self.timing.offer_spread.observe(self.last_offer_at - self.first_at)
        self.plan = Plan(
            self.fragment,
            self.version,
            self.attempt,
            self.anchor_digest,
            roster,
            self.shards_for(offers),
            self.timing.contribution.seconds,
            # A reducer that waits for a dead member reports after the contribution deadline, and must still count.
            self.timing.contribution.seconds + self.timing.commit.seconds,
        )
        self.planned_at = now
        for entry in roster:
            self.send(entry.peer_id, self.plan)

    def _heartbeat(self, num_trainers: int, now: float) -> None:
        if now < self.heartbeat_at:
            return
        self.heartbeat_at = now + HEARTBEAT_SECONDS
        for peer_id in self.waiting:
            if peer_id != self.me:
                self.send(peer_id, self._wait(num_trainers))

    def _wait(self, num_trainers: int) -> Wait:
        return Wait(self.fragment, self.version, self.attempt, len(self.offers), self.quorum(num_trainers))

    def _close(self) -> Commit | Abandon:
        assert self.plan is not None
        self.closed = True
        shards = tuple(
            self.results.get(index) or ShardResult(shard.start, shard.end, shard.reducer, b"", ())
            for index, shard in enumerate(self.plan.shards)
        )
        if not any(shard.digest for shard in shards):
            return Abandon(self.fragment, self.version, self.attempt, "no reducer finished before the deadline")
        return Commit(self.fragment, self.version, self.attempt, self.me, self.anchor_digest, self.plan.roster, shards)
