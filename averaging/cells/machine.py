"""A round machine whose rounds run on two levels when the swarm is large, or when the run has sites. Sans-I/O.

Below, the members of a cell do what they do in a flat round, up to the commit: that one is kept as the cell's part
and moves nothing. Above, the cell's leader offers the part to the top leader, the first of the first cell in rank;
that one plans the slices, the cells' reducers average them across cells, and its `Upper` closes the round for all.

Rules that must survive every edit:
- A peer is in one cell at a time, which follows from the commit before, so that no work is in two parts of one round.
- Of one cell a round takes one part, and a member applies the commit with the part of its own cell and with no other:
  only that one says what became of its work.
- A part is with the top leader and with its members before it can be committed, so that it outlives its leader.
- Whoever leads is replaced when it is silent: in the cell as in a flat round, above by the next in rank of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from averaging.cells.formation import depth_of, plan_slices, relayed_to
from averaging.cells.seat import NUM_ASKED, CellSeat
from averaging.cells.top_leader import Bid, CellTiming, ClosedRounds, SliceReducing, TopLeading
from averaging.outer.schedule import rank_leaders
from averaging.rounds.events import (
    Advanced,
    Event,
    Heard,
    PartialArrived,
    Repair,
    SendPartials,
    SendSlice,
    SliceReduced,
)
from averaging.rounds.facts import RoundAbandoned
from averaging.rounds.timing import HEARTBEAT_SECONDS, patience_factor
from averaging.wire.cell_messages import (
    MAX_CELLS,
    CellOffer,
    CellPart,
    CellRow,
    CellsCommit,
    Cross,
    Crossed,
    CrossPlan,
    SliceResult,
    SliceRow,
    Upper,
    as_part,
    with_upper,
)
from averaging.wire.frames import commit_digest, commit_digest_whole
from averaging.wire.messages import (
    HISTORY_COMMITS,
    Abandon,
    Commit,
    CommitRequest,
    Message,
    Plan,
    Redirect,
    Wait,
    own_entry,
)
from dht.host import PeerId

MAX_PARTS = 8
"""Parts of one version that a member keeps: one for each leader that its cell had."""


@dataclass
class CellRoundMachine(CellSeat):
    """See the module docstring. `weigh` makes the row of a cell from its name and its commit."""

    cell_timing: CellTiming = field(default_factory=lambda: CellTiming.with_bounds(60.0))
    weigh: Callable[[str, Commit], CellRow] = lambda name, commit: _no_row()
    _parts: dict[bytes, Commit] = field(default_factory=dict)
    _closed: ClosedRounds = field(default_factory=ClosedRounds)
    _bid: Bid | None = None
    _top_attempt: int = 0  # of the next plan above from here: owners of slices tell this version's plans apart by it
    _top: TopLeading | None = None
    _early_cells: dict[PeerId, CellOffer] = field(default_factory=dict)
    _given_up: set[PeerId] = field(default_factory=set)
    _slices: SliceReducing = field(init=False)
    _crosses: dict[int, tuple[Cross, PeerId]] = field(default_factory=dict)
    _top_began: tuple[int, float] = (-1, 0.0)
    _foreign: tuple[PeerId, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._slices = SliceReducing(self.me, self.cell_timing)

    @property
    def next_time(self) -> float:
        """As `RoundMachine.next_time`."""
        times = [super().next_time]
        if self.applying is None:
            times.append(self._slices.next_time)
            if self._top is not None:
                times.append(self._top.next_time(self._expected))
            if self._bid is not None:
                times += [self._bid.heartbeat_at, self._top_silent_at(self._bid)]
            if self._foreign is not None:
                times.append(self._foreign[1])
        return min(times)

    def relays(self, sender: PeerId, number: int) -> tuple[PeerId, ...]:
        """Who gets the mean of slice `number` from here when its owner `sender` sent it: the others of the cell."""
        commit = self.applying
        if isinstance(commit, CellsCommit) and not self.is_in_cell_of(commit) and self.fetches(number):
            return tuple(peer_id for peer_id in self.trainers if peer_id not in (self.me, sender))
        cross, leader = self._crosses.get(number, (None, self.me))
        if cross is None or cross.slices[cross.numbers.index(number)].owner != sender:
            return ()
        return self._cellmates(cross, leader)

    def fetches(self, number: int) -> bool:
        """Whether this peer fetches slice `number` for all of its cell, when that cell missed the round.

        So what a cell that missed a round fetches from others does not grow with its members.
        """
        commit = self.applying
        if not isinstance(commit, CellsCommit) or self.me not in self.trainers or len(self.trainers) == 1:
            return True
        return self.is_in_cell_of(commit) or self.trainers[number % len(self.trainers)] == self.me

    def is_in_cell_of(self, commit: CellsCommit) -> bool:
        """Whether the own cell is in a round, so that its reducers have the means."""
        names = [row.name for row in commit.upper.cells]
        return self._name_of(self.me, depth_of(names[0])) in names

    # --------------------------------------------------------------------------------------------------- dispatch

    def _take(self, event: Event, now: float) -> None:
        if isinstance(event, PartialArrived):
            self._slices.on_partial(event.sender, (event.attempt, event.leader, event.slice), event.cell, now)
        elif isinstance(event, SliceReduced):
            self._finish_slice(event)
        else:
            super()._take(event, now)

    def _hear(self, sender: PeerId, message: Message, now: float) -> None:
        bid = self._bid
        is_current = getattr(message, "version", -1) == self.version and self.applying is None
        if isinstance(message, CellPart):
            self._hear_part(sender, message)
        elif isinstance(message, CommitRequest) and (closed := self._closed_for(sender, message.version)):
            self._send(sender, closed)
        elif isinstance(message, CellOffer):
            self._hear_cell(sender, message, now)
        elif isinstance(message, Upper):
            self._hear_upper(sender, message)
        elif isinstance(message, CrossPlan):
            if is_current and bid is not None and message.leader == bid.top and not bid.is_planned:
                bid.heard_at, bid.is_planned = now, True
                for leader in relayed_to(message.cells, self.me):
                    self._send(leader, message)
                for reducer, cross in bid.crosses(message, self.notary):
                    self._send(reducer, cross)
        elif isinstance(message, Cross):
            if is_current:
                self._hear_cross(sender, message, now)
        elif isinstance(message, Crossed):
            if is_current and self._top is not None:
                self._top.on_crossed(sender, message, now)
        elif (
            is_current
            and bid is not None
            and sender == bid.top
            and isinstance(message, Wait | Redirect | Abandon)
            and not (self._member is not None and self._member.leader == sender != self.me)
        ):
            self._hear_top(bid, message, now)
        else:
            super()._hear(sender, message, now)

    def _check_time(self, now: float) -> None:
        super()._check_time(now)
        if self.applying is not None:
            return
        self._effects += self._slices.check(now)
        if self._top is not None:
            closing = self._top.check(self._expected, now)
            if isinstance(closing, Upper):
                self._close_above(self._top, closing)
            elif closing is not None:
                waiting = self._top.waiting
                self._end_top()
                for peer_id in waiting:
                    self._send(peer_id, closing)
        bid = self._bid
        if bid is not None:
            if now >= self._top_silent_at(bid):
                self._next_top(bid, f"the top leader was silent for {now - bid.heard_at:.1f} s")
            if now >= bid.heartbeat_at:
                bid.heartbeat_at = now + HEARTBEAT_SECONDS
                self._tell_waiting(Wait(self.fragment, self.version, bid.part.attempt, len(bid.part.roster), 0))
        if self._foreign is not None and now >= self._foreign[1]:
            sender, self._foreign = self._foreign[0], None
            self._effects.append(Repair(sender, "nobody has its own cell's part of a committed round"))

    # ------------------------------------------------------------------------------------------- below: in the cell

    def _publish(self, commit: Commit) -> None:
        if not self._cell:
            super()._publish(commit)
            return
        digest = commit_digest_whole(commit)
        part = self._parts[digest] = as_part(commit)
        now = self._now
        self._bid = Bid(commit, self.weigh(self._cell, commit), self.me, 0, now, now + HEARTBEAT_SECONDS)
        self._offer_cell(self._bid, self._tops()[0])
        for entry in commit.roster:
            if entry.peer_id != self.me:
                self._send(entry.peer_id, part)

    def _hear_part(self, sender: PeerId, part: CellPart) -> None:
        is_of_round = part.version == self.version and part.anchor_digest == self.anchor_digest
        is_own = part.leader == sender and own_entry(part.roster, self.me) is not None
        if is_of_round and is_own and len(self._parts) < MAX_PARTS:
            self._parts[commit_digest_whole(part)] = part

    @property
    def _has_begun(self) -> bool:
        return super()._has_begun or self._top is not None

    # ------------------------------------------------------------------------------ above: a cell and the top leader

    def _tops(self) -> list[PeerId]:
        """Who may lead above, the best first: the leaders of the first cell in rank, then those of the next one.

        So it takes the members of one other cell to know the top leader, and not all of the swarm.
        """
        cells = dict(self._cells())
        own = self._name_of(self.me)
        cells[own] = (*cells.get(own, ()), self.me)
        for cell in rank_leaders(self.run_id, self.fragment, self.version, map(PeerId, cells)):
            candidates = set(cells[cell]) - self._given_up
            if candidates:
                return rank_leaders(self.run_id, self.fragment, self.version, candidates)
        return [self.me]

    def _offer_cell(self, bid: Bid, top: PeerId) -> None:
        bid.top, bid.heard_at, bid.is_planned = top, self._now, False
        self._send(
            top,
            CellOffer(self.fragment, self.version, bid.attempt, self.anchor_digest, bid.row, bid.part),
        )

    def _next_top(self, bid: Bid, reason: str) -> None:
        self._given_up.add(bid.top)
        bid.attempt += 1
        self._effects.append(RoundAbandoned(self.fragment, self.version, bid.attempt, reason))
        self._offer_cell(bid, self._tops()[0])

    def _top_silent_at(self, bid: Bid) -> float:
        if bid.top == self.me:
            return math.inf
        patience = self.timing.leader_silence.allowance(bid.top).seconds
        return bid.heard_at + patience * patience_factor(bid.attempt)

    def _hear_top(self, bid: Bid, message: Wait | Redirect | Abandon, now: float) -> None:
        if isinstance(message, Wait):
            if bid.top != self.me:
                self.timing.leader_silence.observe(bid.top, now - bid.heard_at)
            bid.heard_at = now
        elif isinstance(message, Abandon):
            # Who made the part's means is gone: the cell begins anew, without them.
            waiting = self._leading.waiting if self._leading is not None else []
            self._bid = self._leading = None
            for peer_id in waiting:
                self._send(peer_id, Abandon(self.fragment, self.version, bid.part.attempt, message.reason))
        elif bid.attempt < MAX_PARTS and message.leader not in self._given_up:
            bid.attempt += 1
            self._offer_cell(bid, message.leader)

    def _hear_cell(self, sender: PeerId, offer: CellOffer, now: float) -> None:
        if offer.version > self.version:
            if len(self._early_cells) < MAX_CELLS:
                self._early_cells[sender] = offer
                self._note_ahead(sender, offer.version)
            return
        if offer.version < self.version or self.applying is not None:
            if offer.version == self._top_began[0] and self._name_of(sender) == offer.row.name:
                self.cell_timing.ready.observe(PeerId(offer.row.name), now - self._top_began[1])
            self._tell_outcome(sender, offer.version)
            return
        if offer.anchor_digest != self.anchor_digest:
            self._send(sender, self._version_is())
            return
        tops = self._tops()
        if offer.attempt == 0 and sender != self.me and tops[0] not in (self.me, sender):
            self._send(sender, Redirect(self.fragment, self.version, tops[0]))
            return
        if self._top is None:
            previous = self.history.get(self.version - 1)
            self._top = TopLeading(
                self.me,
                self.fragment,
                self.version,
                self.anchor_digest,
                self.timing,
                self.cell_timing,
                self._send,
                self._slices_for,
                self.quorum_fraction,
                self.notary,
                previous=commit_digest(previous) if previous else b"",
                tell=self._tell,
                attempt=self._top_attempt,
            )
        is_true = offer.part.leader == sender and offer.row == self.weigh(self._name_of(sender), offer.part)
        if not self._cell or not is_true or not offer.row.tokens:
            # Cells of another number: they hear how this round ends, and form anew from its commit.
            self._top.late.add(sender)
            self._send(sender, Wait(self.fragment, self.version, offer.attempt, 0, 0))
            return
        self._top.on_offer(sender, offer, now)
        self._top_began = (self.version, self._top.first_at)

    def _slices_for(self, reducers: Sequence[Sequence[PeerId]]) -> tuple[SliceRow, ...]:
        return plan_slices(self.num_values, self.block_size, self.cell_rule.cell_size, reducers)

    # ------------------------------------------------------------------------------------- above: reducers, owners

    def _hear_cross(self, sender: PeerId, cross: Cross, now: float) -> None:
        if cross.anchor_digest != self.anchor_digest or self.plan_of(cross, sender) is None:
            return
        for number in cross.numbers:
            self._crosses[number] = (cross, sender)
        self._effects.append(SendPartials(cross, sender))
        if cross.cells:
            self._slices.on_cross(cross, sender, now)

    def plan_of(self, cross: Cross, leader: PeerId) -> Plan | None:
        """The cell's plan under which this peer made its means."""
        found = (
            reduction.plan
            for (attempt, of_leader, _), reduction in self._reducing.reductions.items()
            if (attempt, of_leader) == (cross.cell_attempt, leader)
        )
        return next(found, None)

    def _cellmates(self, cross: Cross, leader: PeerId) -> tuple[PeerId, ...]:
        plan = self.plan_of(cross, leader)
        return tuple(entry.peer_id for entry in plan.roster if entry.peer_id != self.me) if plan is not None else ()

    def _finish_slice(self, event: SliceReduced) -> None:
        cross, number = event.cross, event.cross.numbers[event.position]
        waiting = self._slices.slices.get((cross.attempt, cross.leader, number))
        if waiting is None or not event.included:
            return
        row = cross.slices[event.position]
        result = SliceResult(row.start, row.end, row.cell, row.owner, event.digest, event.included)
        signature = self.notary.sign_slice(cross, cross.leader, result)
        self._send(
            cross.leader,
            Crossed(self.fragment, self.version, cross.attempt, number, event.digest, event.included, signature),
        )
        others = self._slices.arrived.get((cross.attempt, cross.leader, number), {})
        to = {*self._cellmates(cross, waiting.leader), *others.values()} - {self.me}
        self._effects.append(SendSlice(cross, event.position, tuple(sorted(to))))

    # ------------------------------------------------------------------------------------------------------ commits

    def _close_above(self, top: TopLeading, upper: Upper) -> None:
        self._closed.add(upper, top.parts)
        leaders = {row.leader for row in upper.cells}
        for peer_id in sorted({self.me, *relayed_to(upper.cells, None)}):
            self._send(peer_id, upper)
        others = {*top.waiting, *self.followers, *self._first_of_others({row.name for row in upper.cells})}
        for peer_id in sorted(others - leaders - {self.me}):
            closing = self._closed_for(peer_id, self.version)
            assert closing is not None
            self._send(peer_id, closing)

    def _hear_upper(self, sender: PeerId, upper: Upper) -> None:
        if upper.version != self.version or self.applying is not None or upper.anchor_digest != self.anchor_digest:
            if upper.version > self.version:
                self._note_ahead(sender, upper.version + 1)
            return
        own = self._with_part(upper)
        if own is None:
            self._send(sender, CommitRequest(self.fragment, self.version))
            return
        for leader in relayed_to(upper.cells, self.me):
            self._send(leader, upper)
        if self._leading is not None:
            # Members have the part already.
            members = {entry.peer_id for entry in own.roster} if own.leader == self.me else set()
            for peer_id in sorted({*self.trainers, *self._leading.waiting, *members} - {self.me}):
                self._send(peer_id, upper if peer_id in members else own)
        self._hear_commit(sender, own)

    def _closed_for(self, peer_id: PeerId, version: int) -> CellsCommit | None:
        """The commit of a round closed here, as it says what became of that peer's work."""
        return self._closed.commit_for(version, lambda depth: self._name_of(peer_id, depth))

    def _with_part(self, upper: Upper) -> CellsCommit | None:
        """The commit with the part of the own cell, if that is in it and here."""
        for row in upper.cells:
            part = self._parts.get(row.digest)
            if part is not None:
                return with_upper(part, upper)
        return None

    def _hear_commit(self, sender: PeerId, commit: Commit) -> None:
        self._learn_depth(commit)
        is_next = commit.version == self.version and commit.anchor_digest == self.anchor_digest
        if isinstance(commit, CellsCommit) and is_next and self.applying is None and not self.knows_own_part(commit):
            own = self._with_part(commit.upper)
            if own is None:
                self._want_part(sender, commit)
                return
            commit = own
        super()._hear_commit(sender, commit)
        if is_next and isinstance(commit, CellsCommit) and self.applying is commit and not self.is_in_cell_of(commit):
            self._tell_cell_that_missed(sender, commit)

    def _tell_cell_that_missed(self, sender: PeerId, commit: CellsCommit) -> None:
        """A round went on without the own cell: who leads it tells all, and so does who hears it from outside.

        At once, because they fetch what the round left behind together.
        """
        to = {self._member.leader} if self._member is not None else set()
        if self._leading is not None:
            to |= {*self.trainers, *self._leading.waiting}
            self._leading = None
        elif self._name_of(sender) != self._cell:
            to |= set(self.trainers)
        for peer_id in sorted(to - {self.me, sender}):
            self._send(peer_id, commit)

    def knows_own_part(self, commit: Commit) -> bool:
        """Whether a commit says what became of own work: it is flat, has the own cell's part, or not the own cell."""
        if not isinstance(commit, CellsCommit):
            return True
        names = [row.name for row in commit.upper.cells]
        mine = self._name_of(self.me, depth_of(names[0]))
        return mine not in names or commit.upper.cells[commit.cell].name == mine

    def _want_part(self, sender: PeerId, commit: CellsCommit) -> None:
        """Ask the own cell for the same commit with its part; who gets none repairs."""
        if self._foreign is not None:
            return
        self._foreign = (sender, self._now + self.timing.result.longest([sender]).seconds * NUM_ASKED)
        mine = self._name_of(self.me, depth_of(commit.upper.cells[0].name))
        leaders = [row.leader for row in commit.upper.cells if row.name == mine]
        mates = [peer_id for peer_id in self.trainers if peer_id != self.me and peer_id not in leaders]
        for peer_id in sorted({*leaders, *mates[:NUM_ASKED], commit.upper.leader} - {self.me}):
            self._send(peer_id, CommitRequest(self.fragment, self.version))

    def _advance(self, event: Advanced, now: float) -> None:
        commit = self.applying
        if commit is not None and event.adopted is None:
            # Leaders that wait, here or above, must not wait until this round looks dead.
            waiting = set(self._top.waiting) if self._top is not None and not self._top.closed else set()
            if self._bid is not None and self._leading is not None:
                waiting |= set(self._leading.waiting) - {entry.peer_id for entry in commit.roster}
            for peer_id in sorted(waiting - {self.me}):
                self._send(peer_id, commit)
        self._clear()
        self._parts, self._top_attempt = {}, 0
        super()._advance(event, now)
        self._closed.prune(self.version - HISTORY_COMMITS, self._digest_of_commit)
        self._given_up = set(self._silent)
        self._form_cells()
        early, self._early_cells = self._early_cells, {}
        self._inbox.extend(Heard(sender, offer) for sender, offer in sorted(early.items()))

    def _digest_of_commit(self, version: int) -> bytes:
        commit = self.history.get(version)
        return b"" if commit is None else commit_digest_whole(commit)

    def _start_over(self, now: float) -> None:
        self._clear()
        super()._start_over(now)

    def _end_top(self) -> None:
        if self._top is not None:
            self._top_attempt = self._top.attempt + 1
        self._top = None

    def _clear(self) -> None:
        self._end_top()
        self._bid = self._foreign = None
        self._crosses = {}
        self._slices.advance()

    def _lose(self, peer_id: PeerId, reason: str, now: float) -> None:
        super()._lose(peer_id, reason, now)
        if self._top is not None:
            self._top.on_lost(peer_id)
        if self.applying is None and self._bid is not None and self._bid.top == peer_id != self.me:
            self._next_top(self._bid, reason)


def _no_row() -> CellRow:
    raise NotImplementedError("a machine whose rounds may run in cells needs `weigh`")
