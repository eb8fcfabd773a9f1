"""One fragment's rounds at one peer, as a sans-I/O state machine of member, leader and reducer.

`RoundMachine.step(event, now)` returns effects; `averaging/exchange/exchange.py` performs them and feeds back the
resulting events. The machine uses no arrays, clocks or sockets, so tests can drive any order of events.

A round takes the anchor from `version` to `version + 1` in this order: offer, quorum and grace, plan, contributions to
reducers, results to members, commit. Then all members apply the commit.

Rules that must survive every edit:
- The machine applies a commit for the current version from any sender if it was made on the same anchor.
- A member that loses its leader (gone, or silent beyond the learned deadline) offers to the next in rank.
- After two commits for one version, a peer that applied the lighter one (tokens, then digest) requests a repair.
- A different anchor is examined, whatever is claimed for it: `peer.network.node.anchor_repairs` decides by signed
  commits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from averaging.rounds import machine_events
from averaging.rounds.attempt import LaterVersions, RoundAttempt
from averaging.rounds.leader import Leading
from averaging.rounds.leader_ranking import next_contributors, rank_leaders
from averaging.rounds.passing_on import DIRECT, household, next_from, passer_of, passing_on, reducers_of
from averaging.rounds.reducer import Reducing
from averaging.rounds.round_facts import AttemptEnded, RoundStarted
from averaging.rounds.shard_plan import plan_shards
from averaging.rounds.waits import QUIET_SECONDS, Waits, silence_seconds
from averaging.signing.commit_log import CommitLog
from averaging.signing.round_signatures import Notary
from averaging.wire.frames import commit_digest, once_per_commit
from averaging.wire.messages import (
    HISTORY_COMMITS,
    MAX_ROSTER,
    Abandon,
    Commit,
    CommitRequest,
    Message,
    Offer,
    Plan,
    Redirect,
    Reduced,
    Result,
    ShardPlan,
    VersionIs,
    Wait,
    next_attempt,
)
from dht.ground.host import PeerId

MAX_REDIRECTS = 2
"""Redirects at one version. After them, the member insists on a leader, and gives it up if it redirects again."""


@dataclass
class RoundMachine:
    """All rounds of one fragment at one peer; see the module docstring."""

    me: PeerId
    run_id: str
    fragment: int
    num_values: int
    block_size: int
    timing: Waits
    notary: Notary
    quorum_fraction: float = 0.5
    version: int = 0
    anchor_digest: bytes = b""
    lineage_tokens: int = 0
    trainers: tuple[PeerId, ...] = ()
    """Trainers that count and are in rounds with this peer, sorted."""
    num_known: int = 0
    """Number of trainers that count, including unresponsive ones."""
    followers: tuple[PeerId, ...] = ()
    newcomers: tuple[PeerId, ...] = ()
    awaited: tuple[PeerId, ...] = ()
    objection: Callable[[PeerId, Offer], str] = lambda sender, offer: ""
    """Returns why an offer on the present anchor is refused; empty if it is accepted."""
    doubt: Callable[[PeerId, Offer], bool] = lambda sender, offer: False
    """Returns whether an offer that was not refused has to wait for a later version."""
    site_of: Callable[[PeerId], str] = lambda peer_id: ""
    leading_type: type[Leading] = Leading
    most_of_median: float = math.inf  # see `plan_shards`
    least_share: float = 0.0  # see `Leading`
    log: CommitLog = field(default_factory=CommitLog)
    applying: Commit | None = None
    comes_unasked: bool = False
    """Whether other peers send this peer, which had no work in the round, the results of the commit being applied."""
    leading: Leading | None = None
    _offer: Offer | None = None
    _member: RoundAttempt | None = None
    _reducing: Reducing = field(init=False)
    _avoid: set[PeerId] = field(default_factory=set)
    _silent: set[PeerId] = field(default_factory=set)
    _early: dict[PeerId, Offer] = field(default_factory=dict)
    later: LaterVersions = field(default_factory=LaterVersions)
    _began_at: float | None = None
    _previous_began_at: float | None = None
    _passed_on: set[tuple[int, int]] = field(default_factory=set)
    """(attempt, shard) of means of this version that were passed on."""
    _turn: frozenset[PeerId] | None = None
    """The trainers whose turn it is to contribute; None: all."""
    _inbox: deque[machine_events.Event] = field(default_factory=deque)
    _effects: list[machine_events.Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reducing = Reducing(self.me, self.timing)

    def restart(self, version: int, digest: bytes, lineage_tokens: int, commits: Sequence[Commit] | None) -> None:
        """Begin at an anchor that was restored or fetched. `commits` led there; None: the known commits."""
        self.version, self.anchor_digest, self.lineage_tokens = version, digest, lineage_tokens
        if commits is not None:
            self.log.replace(commits)

    def step(self, event: machine_events.Event, now: float) -> list[machine_events.Effect]:
        """Process one event at time `now`, and return the effects in order."""
        self._inbox.append(event)
        while self._inbox:
            while self._inbox:
                self._take(self._inbox.popleft(), now)
            self._check_time(now)
        effects, self._effects = self._effects, []
        return effects

    @property
    def next_time(self) -> float:
        """When to call `step(Tick())` at the latest; infinity if only an event can change anything."""
        times = [self._reducing.next_time]
        if self.applying is None:
            if self.leading is not None:
                times.append(self.leading.next_time)
            if self._member is not None:
                times.append(self._silent_at(self._member))
            elif self._offer is not None and self._began_at is not None:
                times.append(self._began_at + self.timing.hard_seconds)
        return min(times)

    @property
    def is_offering(self) -> bool:
        """Whether a contribution of this peer is under way at the current version."""
        return self._offer is not None

    @property
    def plan(self) -> Plan | None:
        return self._member.plan if self._member is not None else None

    def known_commit(self, version: int) -> Commit | None:
        """Return the commit after `version` while its results are kept or it is being applied here."""
        if self.applying is not None and self.applying.version == version:
            return self.applying
        return self.log.newest.get(version) if version >= self.version - HISTORY_COMMITS else None

    def anchor_of(self, version: int) -> bytes | None:
        """Return the digest of this lineage's anchor at `version`, in the form of messages; None if forgotten."""
        if version == self.version:
            return self.anchor_digest
        commit = self.log.newest.get(version)
        return None if commit is None else commit.anchor_digest

    # ----------------------------------------------------------------------------------------------- dispatch

    def _take(self, event: machine_events.Event, now: float) -> None:
        if isinstance(event, machine_events.Heard):
            self._hear(event.sender, event.message, now)
        elif isinstance(event, machine_events.Ready):
            self._began_at = now if self._began_at is None else self._began_at
            self._offer = replace(event.offer, version=self.version, anchor_digest=self.anchor_digest)
            if self._member is not None and self.applying is None:
                self._join_round(0, now)
            self._join_in_turn(now)
        elif isinstance(event, machine_events.View):
            self.trainers, self.num_known = event.trainers, max(len(event.trainers), event.num_known)
            self.followers, self.newcomers, self.awaited = event.followers, event.newcomers, event.awaited
            self._reducing.expect(self.num_known)
            self._silent.intersection_update((*event.trainers, *event.newcomers))
            self._draw_turn()
            self._join_in_turn(now)
        elif isinstance(event, machine_events.Lost):
            self._lose(event.peer_id, event.reason, now)
        elif isinstance(event, machine_events.ContributionArrived):
            self._silent.discard(event.sender)
            key = (event.attempt, event.leader, event.shard)
            arrive = self._reducing.on_late if event.is_late else self._reducing.on_arrived
            arrive(event.sender, key, now)
        elif isinstance(event, machine_events.ResultArrived):
            self._note_result(event, now)
        elif isinstance(event, machine_events.ShardReduced):
            self._finish_reduction(event)
        elif isinstance(event, machine_events.Advanced):
            self._advance(event, now)
        elif isinstance(event, machine_events.ApplyFailed) and event.commit is self.applying:
            self.start_over(now)

    def _hear(self, sender: PeerId, message: Message, now: float) -> None:
        self._silent.discard(sender)
        if isinstance(message, Offer):
            self._hear_offer(sender, message, now)
        elif isinstance(message, CommitRequest):
            self.tell_outcome(sender, message.version)
        elif isinstance(message, Commit):
            self.take_commit(sender, message, now)
        elif isinstance(message, VersionIs):
            self._hear_version(sender, message)
        elif isinstance(message, Plan) and message.version < self.version + (self.applying is not None):
            # The plan's leader would wait in vain for members that have left its round.
            self.tell_outcome(sender, message.version)
        elif message.version != self.version or self.applying is not None:
            return
        elif isinstance(message, Plan):
            self._hear_plan(sender, message, now)
        elif isinstance(message, Reduced):
            if self.leading is not None:
                self.leading.on_reduced(sender, message, now)
        elif self._member is not None and self._member.leader == sender:
            if isinstance(message, Wait):
                self._member.hear(now)
                if self._member.misses_plan(message.quorum) and self._offer is not None:
                    self.send(sender, replace(self._offer, attempt=self._member.attempt))
            elif isinstance(message, Abandon):
                self._effects.append(AttemptEnded(self.fragment, self.version, message.attempt, message.reason, sender))
                self._take_over(message.reason, now)
            elif isinstance(message, Redirect):
                self._follow_redirect(self._member, message, now)

    def _check_time(self, now: float) -> None:
        self._effects += self._reducing.check(now)
        if self.applying is not None:
            return
        if self.leading is not None:
            self.leading.hold(self.plan is not None and self.leader != self.me)
            trainers, num_known, awaited = self.trainers, self.num_known, self.awaited
            if self._turn is not None:
                # Members whose turn is rare seldom count, but are awaited as well.
                trainers, awaited = tuple(filter(self._turn.__contains__, trainers)), tuple(sorted(self._turn))
                num_known = len(trainers)
            closing = self.leading.check(trainers, self._given_up(now), now, num_known, awaited)
            if isinstance(closing, Commit):
                self.send(self.me, closing)
            elif closing is not None:
                waiting, self.leading = self.leading.waiting, None
                for peer_id in waiting:
                    self.send(peer_id, closing)
        self._join_in_turn(now)
        member = self._member
        if member is not None and now >= self._silent_at(member):
            self._silent.add(member.leader)
            self._take_over(f"the leader was silent for {now - member.heard_at:.1f} s", now)

    def _given_up(self, now: float) -> set[PeerId]:
        """Return live trainers that a round does not wait for; empty right after the previous round.

        Otherwise rounds without them could follow each other too fast for them to reach the newest version.
        """
        is_early = self._previous_began_at is not None and now < self._previous_began_at + QUIET_SECONDS
        return set() if is_early else self._avoid - {self.me}

    # ------------------------------------------------------------------------------------------------- member

    def _draw_turn(self) -> None:
        trainers = {*self.trainers, *self.newcomers, self.me}
        is_drawn = len(trainers) > MAX_ROSTER
        self._turn = next_contributors(self.run_id, self.fragment, self.version, trainers) if is_drawn else None

    def _join_in_turn(self, now: float) -> None:
        """Begin the round of this version if it is this peer's turn. Otherwise its work waits for a later version.

        If no round ends within the hard limit, all members whose turn it is may be gone, and this peer offers anyway.
        """
        if self._offer is None or self._member is not None or self.applying is not None:
            return
        is_overdue = self._began_at is not None and now >= self._began_at + self.timing.hard_seconds
        if self._turn is None or self.me in self._turn or is_overdue:
            self._join_round(0, now)

    def _join_round(self, attempt: int, now: float, leader: PeerId | None = None) -> None:
        assert self._offer is not None
        chosen = leader or next(iter(self._ranked()), self.me)
        redirects = self._member.redirects if self._member is not None else 0
        self._member = RoundAttempt(attempt, chosen, now, redirects=redirects)
        self.send(chosen, replace(self._offer, attempt=attempt))

    def _silent_at(self, member: RoundAttempt) -> float:
        if member.leader == self.me:
            return math.inf
        return member.heard_at + silence_seconds(member.attempt, is_heard=member.is_heard)

    def _take_over(self, reason: str, now: float) -> None:
        member = self._member
        if member is None or self._offer is None:
            return
        self._avoid.add(member.leader)
        old = member.leader
        self._join_round(next_attempt(member.attempt), now)
        assert self._member is not None
        new, attempt = self._member.leader, self._member.attempt
        self._effects.append(AttemptEnded(self.fragment, self.version, attempt, reason, old, new))

    def _follow_redirect(self, member: RoundAttempt, message: Redirect, now: float) -> None:
        num_redirects = member.redirect()
        is_other = message.leader not in self._avoid and message.leader != member.leader
        if num_redirects <= MAX_REDIRECTS and is_other:
            self._join_round(member.attempt, now, leader=message.leader)
        elif num_redirects <= MAX_REDIRECTS + 1:
            # Views disagree about the leader: ask this one to lead anyway.
            self._join_round(next_attempt(member.attempt), now, leader=member.leader)
        else:
            self._take_over("the leader keeps sending its members to other leaders", now)

    def _hear_plan(self, sender: PeerId, plan: Plan, now: float) -> None:
        member = self._member
        if member is None or self._offer is None:
            return
        if sender != member.leader and not self.notary.is_planners(member.leader, plan):
            return
        if plan.anchor_digest != self.anchor_digest:
            self.send(member.leader, self.version_is())
            return
        mine = [entry for entry in plan.roster if entry.peer_id == self.me]
        if not mine or mine[0].sequence != self._offer.sequence or member.plan is not None:
            return  # a leader plans an attempt once; each further plan would cost the whole contribution again
        member.follow(plan, now)
        if len(plan.roster) > DIRECT and self.me != member.leader:
            for peer_id in next_from(member.leader, plan, self.me):
                self.send(peer_id, plan)
        self._effects.append(RoundStarted(self.fragment, plan.version, member.leader, len(plan.roster)))
        self._effects.append(machine_events.SendShards(plan, member.leader))
        self._reducing.on_plan(plan, member.leader, now)

    def _note_result(self, event: machine_events.ResultArrived, now: float) -> None:
        """Learn how long each reducer takes, for the rounds that this member leads."""
        member, plan = self._member, self.plan
        if member is None or plan is None or event.shard >= len(plan.shards) or member.leader == self.me:
            return
        if plan.roster[plan.shards[event.shard].reducer].peer_id == event.sender:
            self.timing.mean.observe(event.sender, now - member.planned_at)

    # ------------------------------------------------------------------------------------------------ reducer

    def _finish_reduction(self, event: machine_events.ShardReduced) -> None:
        reduction = self._reducing.reductions.get((event.attempt, event.leader, event.shard))
        if reduction is None or not event.included:
            return
        plan, included, shard = reduction.plan, event.included, reduction.plan.shards[event.shard]
        result = shard.result(event.digest, included)
        signature = self.notary.sign_result(plan, event.leader, result)
        report = Reduced(self.fragment, plan.version, event.attempt, event.shard, event.digest, included, signature)
        self.send(event.leader, report)
        header = Result(self.fragment, plan.version, event.shard, shard.start, shard.end)
        self._effects.append(machine_events.SendResult(header, self.to_whom(plan)))

    # ------------------------------------------------------------------------------------------------- leader

    def _hear_offer(self, sender: PeerId, offer: Offer, now: float) -> None:
        if offer.version > self.version:
            if len(self._early) < MAX_ROSTER:
                self._early[sender] = offer
                self.note_ahead(sender, offer.version)
            return
        if self.applying is not None and offer.version == self.version:
            if sender != self.me:
                self.send(sender, self.applying)
            return
        if offer.version < self.version:
            is_counted = sender in self.trainers
            if is_counted and offer.version == self.version - 1 and self._previous_began_at is not None:
                self.timing.offer.observe(sender, now - self._previous_began_at)
            self.tell_outcome(sender, offer.version)
            return
        if offer.anchor_digest != self.anchor_digest:
            self.send(sender, self.version_is())
            return
        if sender != self.me and (reason := self.objection(sender, offer)):
            self.send(sender, Abandon(self.fragment, self.version, offer.attempt, reason))
            return
        ranked = self._ranked()
        if offer.attempt == 0 and sender != self.me and ranked and ranked[0] not in (self.me, sender):
            self.send(sender, Redirect(self.fragment, self.version, ranked[0]))
            return
        if self.leading is None:
            self.leading = self.leading_type(
                self.me,
                self.fragment,
                self.version,
                self.anchor_digest,
                self.timing,
                self.send,
                self.quorum_fraction,
                self.notary,
                self._plan_shards,
                self._digest_before,
                self.tell,
                not_before=self.timing.not_before(self._previous_began_at),
                least_share=self.least_share,
            )
        self._began_at = now if self._began_at is None else self._began_at
        is_doubtful = sender != self.me and self.doubt(sender, offer)
        is_counted = sender in self.trainers
        self.leading.on_offer(sender, offer, self.num_known, now, is_doubtful=is_doubtful, is_counted=is_counted)

    def _plan_shards(self, offers: Sequence[Offer]) -> tuple[ShardPlan, ...]:
        rates, reachable = [offer.upload_bits_per_second for offer in offers], [offer.reachable for offer in offers]
        return plan_shards(self.num_values, self.block_size, rates, reachable, self.most_of_median)

    # --------------------------------------------------------------------------------- commits, forks, catching up

    def take_commit(self, sender: PeerId, commit: Commit, now: float) -> None:
        """Apply a received commit, or compare it with the commit applied at that version."""
        if commit.version == self.version:
            if self.applying is not None:
                return
            if commit.anchor_digest != self.anchor_digest:
                self.send(sender, self.version_is())
                return
            self.applying = commit
            self._pass_on(sender, commit)
            self._effects.append(machine_events.Apply(commit))
        elif commit.version > self.version:
            self.note_ahead(sender, commit.version + 1)
        elif (mine := self.log.newest.get(commit.version)) is not None and mine != commit:
            if commit.anchor_digest != mine.anchor_digest:
                self.send(sender, self.version_is())
            elif _weight(commit) > _weight(mine):
                self._effects.append(
                    machine_events.Repair(sender, f"a heavier commit of version {commit.version} exists")
                )
            elif self.outweighs(commit):  # otherwise it was signed twice
                self.send(sender, mine)

    def _pass_on(self, sender: PeerId, commit: Commit) -> None:
        """Send a new commit to the peers that get it from this peer."""
        roster, leads = [entry.peer_id for entry in commit.roster], sender == commit.leader == self.me
        self.comes_unasked = False
        if len(roster) <= DIRECT:
            to = {*self.trainers, *self.followers, *roster} if leads else set()
        else:
            to = {*next_from(commit.leader, commit, self.me), *self.household_of(commit)}
            self.comes_unasked = self.me not in roster and sender == passer_of(self.me, commit)
        for peer_id in sorted(to - {self.me}):
            self.send(peer_id, commit)

    def household_of(self, commit: Commit) -> tuple[PeerId, ...]:
        """Return the peers without work in a large round that get its commit and results from this peer."""
        if len(commit.roster) <= DIRECT:
            return ()
        return household(self.me, commit, (*self.trainers, *self.followers))

    def to_whom(self, plan: Plan, shard: int | None = None, sender: PeerId | None = None) -> tuple[PeerId, ...]:
        """Return the members to which this peer sends its mean, or passes on a shard's mean that came from `sender`."""
        members = tuple(entry.peer_id for entry in plan.roster)
        trees = passing_on(members, reducers_of(plan), MAX_ROSTER, tuple(map(self.site_of, members)))
        reducer = self.me if shard is None else plan.reducer_of(shard)
        if sender is not None and sender != trees.parent(reducer, self.me):
            return ()
        return trees.children(reducer, self.me)

    def next_to(self, shard: int, sender: PeerId) -> tuple[PeerId, ...]:
        """Return the peers to which a mean from `sender` is passed on: only the first mean of each shard is."""
        plan = self.plan
        key = (-1 if plan is None else plan.attempt, shard)
        to = () if key in self._passed_on else self._next_of(plan, shard, sender)
        if to:
            self._passed_on.add(key)
        return to

    def _next_of(self, plan: Plan | None, shard: int, sender: PeerId) -> tuple[PeerId, ...]:
        if self.applying is not None and self.comes_unasked:
            is_passer = sender == passer_of(self.me, self.applying)
            others = (one for one in (*self.trainers, *self.followers) if one != self.me)
            return household(sender, self.applying, others) if is_passer else ()
        return () if plan is None or shard >= len(plan.shards) else self.to_whom(plan, shard, sender)

    def outweighs(self, commit: Commit) -> bool:
        """Return whether the commit applied at that version is heavier than `commit`, and so the answer to it."""
        mine = self.log.newest.get(commit.version)
        if mine is None or mine == commit or mine.anchor_digest != commit.anchor_digest:
            return False
        return _weight(mine) > _weight(commit)

    def _hear_version(self, sender: PeerId, theirs: VersionIs) -> None:
        if (theirs.version, theirs.anchor_digest) == (self.version, self.anchor_digest) or self.applying is not None:
            return
        is_lighter = (theirs.lineage_tokens, theirs.anchor_digest) < (self.lineage_tokens, self.anchor_digest)
        if is_lighter:
            self.send(sender, self.version_is())
        if theirs.version > self.version and not is_lighter and not self.later.was_asked(sender):
            self.note_ahead(sender, theirs.version)
        elif theirs.version >= self.version or not is_lighter:  # fewer tokens are as much a claim as more
            what = "another anchor" if is_lighter else "more committed tokens"
            reason = f"it has version {theirs.version} with {what}, this peer has version {self.version}"
            self._effects.append(machine_events.Repair(sender, reason))

    def note_ahead(self, sender: PeerId, version: int) -> None:
        """Note that a peer is at a later version, and request the commit that leads there once."""
        self.later.note(sender, version)
        if self.applying is None and not self.later.was_asked(sender) and self.later.ask(sender):
            self.send(sender, CommitRequest(self.fragment, self.version))

    def tell_outcome(self, to: PeerId, version: int) -> None:
        """Send the commit after `version`, or this peer's version."""
        commit = self.known_commit(version)
        self.send(to, commit if commit is not None else self.version_is())

    def version_is(self) -> VersionIs:
        return VersionIs(self.fragment, self.version, self.anchor_digest, self.lineage_tokens)

    def start_over(self, now: float) -> None:
        """Continue the round as if the commit had not arrived. Another leader may close it with a commit that can be
        applied.
        """
        self.applying = self.leading = None
        if self._member is None:
            self._join_in_turn(now)
        elif self._offer is not None:
            self._join_round(next_attempt(self._member.attempt), now)

    def _advance(self, event: machine_events.Advanced, now: float) -> None:
        if event.adopted is not None:
            self.log.replace(commit for commit in event.adopted if commit.version < event.version)
        elif self.applying is not None and event.version == self.applying.version + 1:
            self.log.add(self.applying)
            if self.leading is not None and not self.leading.closed:
                # Another round was faster. Tell the peers that wait for this one, instead of letting them wait for a
                # timeout.
                for peer_id in self.leading.waiting:
                    if peer_id != self.me:
                        self.send(peer_id, self.applying)
        else:
            self.log.newest.clear()
        self.version, self.anchor_digest = event.version, event.anchor_digest
        self.lineage_tokens = event.lineage_tokens
        self._passed_on.clear()
        self._draw_turn()
        self._previous_began_at, self._began_at = self._began_at or now, None
        self.applying = self._offer = self._member = self.leading = None
        self._reducing.advance()
        # A silent leader is not asked for the next version unless it gave a sign of life.
        self._avoid = {*self._silent, *event.passed_over}
        ahead = self.later.advance(self.version)
        early, self._early = self._early, {}
        self._inbox.extend(machine_events.Heard(sender, offer) for sender, offer in sorted(early.items()))
        for peer_id, version in ahead:
            self.note_ahead(peer_id, version)

    # ------------------------------------------------------------------------------------------------- shared

    @property
    def leader(self) -> PeerId | None:
        """The leader that has this peer's offer for the current version."""
        return self._member.leader if self._member is not None else None

    def _lose(self, peer_id: PeerId, reason: str, now: float) -> None:
        self._reducing.on_lost(peer_id)
        if self.leading is not None:
            self.leading.on_lost(peer_id)
        self.later.forget(peer_id)
        if self.applying is None and self._member is not None and self._member.leader == peer_id != self.me:
            self._take_over(reason, now)

    def _ranked(self) -> list[PeerId]:
        """Return the possible leaders in order: trainers that count or, without any, this peer and newcomers."""
        candidates = set(self.trainers) - self._avoid or {*self.newcomers, self.me} - self._avoid
        if self._turn is not None:
            candidates = candidates & self._turn or candidates
        return rank_leaders(self.run_id, self.fragment, self.version, candidates)

    @property
    def _digest_before(self) -> bytes:
        """Digest of the commit that led to the present version; empty if unknown."""
        before = self.log.newest.get(self.version - 1)
        return b"" if before is None else commit_digest(before)

    def tell(self, effect: machine_events.Effect) -> None:
        self._effects.append(effect)

    def send(self, to: PeerId, message: Message) -> None:
        """Send a message. A message to this peer itself is processed before any other event."""
        if to == self.me:
            self._inbox.append(machine_events.Heard(self.me, message))
        else:
            self._effects.append(machine_events.SendMessage(to, message))


@once_per_commit
def _weight(commit: Commit) -> tuple[int, bytes]:
    """Return the weight of a commit: of two commits of one version, the heavier counts."""
    return commit.tokens, commit_digest(commit)
