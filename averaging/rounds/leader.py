"""The leader's half of a round: collect offers, decide when to start, collect results, close. Sans-I/O.

A `Leading` exists for each fragment's version on each peer that received an offer. It does not know whether its own
peer is a member. All waiting is a function of `now`: call `check` now and again at `next_time`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, field, replace

from averaging.rounds.machine_events import WronglySigned
from averaging.rounds.passing_on import DIRECT, next_from
from averaging.rounds.presence import most_newcomers
from averaging.rounds.round_facts import Fact, MembersAwaited
from averaging.rounds.waits import HEARTBEAT_SECONDS, Waits
from averaging.signing.round_signatures import Notary
from averaging.wire import messages
from dht.ground.host import PeerId

TRIED_EVERY_VERSIONS = 16

Send = Callable[[PeerId, messages.Message], None]
Shards = Callable[[Sequence[messages.Offer]], tuple[messages.ShardPlan, ...]]


@dataclass
class Leading:
    """Offers, plan and results of one round at its leader."""

    me: PeerId
    fragment: int
    version: int
    anchor_digest: bytes
    timing: Waits
    send: Send
    quorum_fraction: float
    notary: Notary
    shards_for: Shards
    previous: bytes = b""
    """Digest of the commit that led to `version`; empty if unknown."""
    tell: Callable[[Fact | WronglySigned], None] = lambda effect: None
    not_before: float = 0.0
    least_share: float = 0.0
    """The quorum needs more than this share of the trainers, because the others follow no smaller round."""
    is_held: bool = False
    """Whether planning is blocked because this peer is in another leader's plan, whose commit the waiting members will
    also get."""
    attempt: int = 0
    offers: dict[PeerId, messages.Offer] = field(default_factory=dict)
    late: set[PeerId] = field(default_factory=set)
    plan: messages.Plan | None = None
    first_at: float = 0.0
    planned_at: float = 0.0
    closes_at: float = math.inf
    """With a plan: when the round closes with the means that have arrived."""
    heartbeat_at: float = 0.0
    closed: bool = False
    quorum_at: float | None = None
    results: dict[int, messages.ShardResult] = field(default_factory=dict)
    _num_trainers: int = 0
    _missing: tuple[PeerId, ...] = ()
    _told_at: float | None = None

    def on_offer(
        self,
        peer_id: PeerId,
        offer: messages.Offer,
        num_trainers: int,
        now: float,
        *,
        is_doubtful: bool = False,
        is_counted: bool = True,
    ) -> None:
        """Accept an offer. It waits for the next version if the plan exists, the roster is full, or the offer is
        doubtful.

        Only offers of members that count change the learned waits.
        """
        if not self.offers:
            self.first_at = now
            self.heartbeat_at = now + HEARTBEAT_SECONDS
        if is_counted and peer_id not in self.offers and peer_id not in self.late:
            self.timing.offer.observe(peer_id, now - self.first_at)
        has_room = len(self.offers) < messages.MAX_ROSTER or peer_id in self.offers
        if self.plan is None and has_room and not is_doubtful:
            self.offers[peer_id] = offer
            self.late.discard(peer_id)
            self.attempt = max(self.attempt, offer.attempt)
        elif peer_id not in self.offers and len(self.late) < messages.MAX_ROSTER:
            self.late.add(peer_id)  # in no plan of this round, but gets its commit
        is_known = peer_id in self.offers and self.offers[peer_id].sequence == offer.sequence
        if self.plan is not None and self.plan.signature and is_known:
            self.send(peer_id, self.plan)  # the member that should have passed the plan on did not
        else:
            self.send(peer_id, self._wait(num_trainers))

    def on_lost(self, peer_id: PeerId) -> None:
        """Forget an offer that is not in a plan; void the shards of a reducer that disappeared."""
        self.late.discard(peer_id)
        if self.plan is None:
            self.offers.pop(peer_id, None)
            self.quorum_at = None
            return
        for index, shard in enumerate(self.plan.shards):
            if self.plan.roster[shard.reducer].peer_id == peer_id and index not in self.results:
                self.results[index] = shard.result()

    def on_reduced(self, peer_id: PeerId, message: messages.Reduced, now: float) -> bool:
        """Accept a reducer's report. Return False if the report does not belong to this round or reducer."""
        plan = self.plan
        if plan is None or message.attempt != plan.attempt or message.shard >= len(plan.shards):
            return False
        shard = plan.shards[message.shard]
        members = tuple(sorted(set(message.included)))
        if plan.roster[shard.reducer].peer_id != peer_id or any(index >= len(plan.roster) for index in members):
            return False
        if message.shard in self.results or members != message.included or not members:
            return True
        result = shard.result(message.digest, members, message.signature)
        if peer_id != self.me and not self.notary.is_makers(peer_id, plan, self.me, result):
            what = (
                f"its mean of values [{shard.start}, {shard.end}) of fragment {plan.fragment} does not carry its "
                "signature"
            )
            self.tell(WronglySigned(peer_id, what))
            return False
        self.results[message.shard] = result
        self.timing.mean.observe(peer_id, now - self.planned_at)
        return True

    def hold(self, is_held: bool) -> None:
        """Block or allow planning."""
        self.is_held = is_held

    def check(
        self,
        trainers: Collection[PeerId],
        given_up: Set[PeerId],
        now: float,
        num_known: int = 0,
        awaited: Collection[PeerId] = (),
    ) -> messages.Commit | messages.Abandon | None:
        """Send the messages due at `now`. Return the commit (or the abandonment) when the round closes.

        Args:
            trainers: the trainers that count, as this peer sees them.
            given_up: trainers among them that are not awaited, because they were silent.
            num_known: number of trainers that count, including unresponsive ones; the quorum is a share of all.
            awaited: trainers that get time to offer; empty: `trainers`.
        """
        if self.closed or not self.offers:
            return None
        self._num_trainers = max(len(trainers), num_known)
        if self.plan is None:
            self._missing = tuple(sorted(set(awaited or trainers) - given_up - set(self.offers) - self.late))
            if self._num_counted(trainers) >= self.quorum(self._num_trainers) and self.quorum_at is None:
                self.quorum_at = now
            is_everyone_here = bool(trainers) and not self._missing and self.quorum_at is not None
            if not self.is_held and (is_everyone_here or now >= self._start_at()):
                self._start(now)
            elif self.quorum_at is None and now >= self._grace_until():
                self._tell_what_is_awaited(now)
            self._heartbeat(now)
            return None
        self._heartbeat(now)
        if len(self.results) < len(self.plan.shards):
            if now >= self.closes_at:
                self.closes_at = self._extended(self.plan, now)
            if now < self.closes_at:
                return None
        return self._close(now)

    def _num_counted(self, trainers: Collection[PeerId]) -> int:
        """Return the number of offers towards a quorum: those of trainers that count or, without trainers, a few
        newcomers'.
        """
        if trainers:
            return len(self.offers.keys() & set(trainers))
        return min(len(self.offers), most_newcomers(self._num_trainers))

    def quorum(self, num_trainers: int) -> int:
        """Return the offers that a round needs before the grace window may end: ceil(fraction * counted trainers), and
        enough of them that other members follow the round.
        """
        fewest_followed = math.floor(self.least_share * num_trainers) + 1
        return max(fewest_followed, math.ceil(self.quorum_fraction * num_trainers))

    @property
    def waiting(self) -> list[PeerId]:
        """All members that offered, in time or too late for this plan. They wait for the commit."""
        return sorted({*self.offers, *self.late})

    @property
    def next_time(self) -> float:
        """When to call `check` next if no message arrives."""
        if self.closed or not self.offers:
            return math.inf
        if self.is_held and self.plan is None:
            return self.heartbeat_at
        if self.plan is None:
            times = [self._start_at(), self.heartbeat_at]
            if self.quorum_at is None and self._told_at is None:
                times.append(self._grace_until())
            return min(times)
        return min(self.closes_at, self.heartbeat_at)

    def _start_at(self) -> float:
        """Return when to plan: after a quorum and a grace window. Training does not wait meanwhile (the grace window of
        arXiv 2604.21428).

        Without a quorum the round waits for as long as a live trainer may take to offer.
        """
        end = self.first_at + self.timing.hard_seconds
        if self.quorum_at is None:
            return min(end, max(self.first_at + self.timing.quorum_seconds(self._missing), self.not_before))
        return max(self.quorum_at, min(self._grace_until(), end))

    def _grace_until(self) -> float:
        return max(self.first_at + self.timing.grace_seconds(self._missing), self.not_before)

    def _tell_what_is_awaited(self, now: float) -> None:
        if self._told_at is None:
            self._told_at = now
            left = max(0.0, self._start_at() - now)
            quorum = self.quorum(self._num_trainers)
            place = (self.fragment, self.version)
            self.tell(MembersAwaited(*place, "quorum", self._missing, left, len(self.offers), quorum))

    def _start(self, now: float) -> None:
        offers = [self.offers[peer_id] for peer_id in sorted(self.offers)]
        roster = tuple(
            messages.RosterEntry(peer_id, offer.tokens, offer.steps, offer.base_version, offer.sequence, offer.parts)
            for peer_id, offer in sorted(self.offers.items())
        )
        self._note_missing(now)
        shards = self.shards_for(self._with_those_in_time(offers))
        others = [peer_id for peer_id in self.offers if peer_id != self.me]
        is_pair = self._num_trainers <= 2
        contributions = self.timing.contribution_seconds(others, self.attempt, is_pair=is_pair)
        reducers = {roster[shard.reducer].peer_id for shard in shards}
        contribution, commit = self.timing.plan_seconds(contributions, reducers)
        place = (self.fragment, self.version, self.attempt)
        plan = messages.Plan(*place, self.anchor_digest, roster, shards, contribution, commit)
        members: Sequence[PeerId] = [entry.peer_id for entry in roster]
        if len(roster) > DIRECT:
            plan = self.notary.sign_plan(plan)
            members = [*next_from(self.me, plan, self.me), *(one for one in members if one == self.me)]
        self.plan = plan
        # Values without work get no mean.
        self.results = {
            index: shard.result()
            for index, shard in enumerate(shards)
            if not any(entry.token_values(shard.start, shard.end) for entry in roster)
        }
        self.planned_at, self.closes_at = now, now + self.plan.commit_deadline_seconds
        for peer_id in members:
            self.send(peer_id, plan)

    def _with_those_in_time(self, offers: Sequence[messages.Offer]) -> Sequence[messages.Offer]:
        """Return the offers in roster order, marking members whose means came too late in past rounds as unreachable.

        From time to time such a member is tried again, because its line may have changed.
        """
        if self.version % TRIED_EVERY_VERSIONS == 0:
            return offers
        in_time = self.timing.means_in_time(sorted(self.offers))
        return [
            replace(offer, reachable=offer.reachable and is_in_time)
            for offer, is_in_time in zip(offers, in_time, strict=True)
        ]

    def _note_missing(self, now: float) -> None:
        """Report and count the expected trainers that did not offer in time."""
        late = tuple(peer_id for peer_id in self._missing if not self.timing.offer.is_absent(peer_id))
        if late:
            self._tell_expired("offer", late, now - self.first_at)
        for peer_id in self._missing:
            self.timing.offer.missed(peer_id)

    def _tell_expired(self, awaited: str, waited_for: tuple[PeerId, ...], seconds: float) -> None:
        self.tell(MembersAwaited(self.fragment, self.version, awaited, waited_for, seconds))

    def _heartbeat(self, now: float) -> None:
        if now < self.heartbeat_at:
            return
        self.heartbeat_at = now + HEARTBEAT_SECONDS
        for peer_id in self.waiting:
            if peer_id != self.me:
                self.send(peer_id, self._wait(self._num_trainers))

    def _wait(self, num_trainers: int) -> messages.Wait:
        is_passed_on = self.plan is not None and bool(self.plan.signature)
        quorum = 0 if is_passed_on else self.quorum(num_trainers)
        return messages.Wait(self.fragment, self.version, self.attempt, len(self.offers), quorum)

    def _extended(self, plan: messages.Plan, now: float) -> float:
        """Return when the round closes. Without any mean, the first deadline is extended once, by the same time again.

        A failure of all reducers is most likely temporary, or this peer's own. Giving up the attempt costs more than
        the wait, because everything is sent again. The hard limit holds in any case.
        """
        end = self.planned_at + min(2 * plan.commit_deadline_seconds, self.timing.hard_seconds)
        if now >= end or any(result.digest for result in self.results.values()):
            return now
        self._tell_expired("first mean", self._silent(plan), now - self.planned_at)
        return end

    def _silent(self, plan: messages.Plan) -> tuple[PeerId, ...]:
        shards = (shard for index, shard in enumerate(plan.shards) if index not in self.results)
        return tuple(sorted({plan.roster[shard.reducer].peer_id for shard in shards}))

    def _close(self, now: float) -> messages.Commit | messages.Abandon:
        assert self.plan is not None
        self.closed = True
        silent = self._silent(self.plan)
        if silent:
            for peer_id in silent:
                self.timing.mean.missed(peer_id)
            self._tell_expired("mean", silent, now - self.planned_at)
        shards = tuple(self.results.get(index) or shard.result() for index, shard in enumerate(self.plan.shards))
        place = self.plan.place
        if not any(shard.digest for shard in shards):
            return messages.Abandon(*place, "no reducer finished before the deadline")
        commit = messages.Commit(*place, self.me, self.anchor_digest, self.plan.roster, shards, self.previous)
        return self.notary.sign_commit(commit)
