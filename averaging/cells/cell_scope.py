"""The scope of rounds that run on two levels when the swarm is large, or when the run has sites. Sans-I/O.

Below, the members of a cell do what they do in a flat round, up to the commit. That commit is kept as the cell's part
and moves nothing. Above, the cell's leader offers the part to the top leader, the first of the first cell in rank. The
top leader plans the slices, and the cells' reducers average them across cells. Its `TopCommit` closes the round for
all.

Rules that must survive every edit:
- A peer is in one cell at a time, which follows from the commit before. So no work is in two parts of one round.
- Of one cell a round takes one part. A member applies the commit with the part of its own cell and with no other. Only
  that part says what became of its work.
- A part is with the top leader and with its members before it can be committed, so that it outlives its leader.
- A silent leader is replaced: in the cell as in a flat round, above by the next in rank of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from averaging.cells.formation import CellRule, plan_cell, plan_slices, relayed_to
from averaging.cells.own_cell import Seat
from averaging.cells.top_leader import Bid, CellTiming, ClosedRounds, SliceReducing, TopLeading
from averaging.rounds import machine_events
from averaging.rounds.flat_scope import FlatScope, ScopedRounds
from averaging.rounds.leader_ranking import rank_leaders
from averaging.rounds.learned_durations import HEARTBEAT_SECONDS, patience_factor
from averaging.rounds.round_facts import RoundAbandoned
from averaging.wire.cell_messages import (
    CellOffer,
    CellPart,
    CellsCommit,
    SliceOrder,
    SlicePlan,
    SliceReport,
    as_part,
    with_upper,
)
from averaging.wire.frames import commit_digest_whole
from averaging.wire.messages import (
    HISTORY_COMMITS,
    MAX_CELL_ROSTER,
    MAX_CELLS,
    Abandon,
    CellRow,
    Commit,
    CommitRequest,
    Message,
    Offer,
    Redirect,
    Result,
    ShardPlan,
    TopCommit,
    Wait,
    next_attempt,
    own_entry,
)
from dht.host import PeerId

NUM_ASKED = 3
"""Others who are asked for a commit that this peer missed; each of them probably has it."""
MAX_PARTS = 8
"""Parts of one version that a member keeps: one for each leader that its cell had. And plans above the cells that it
follows."""


class CellScope(FlatScope):
    """See the module docstring; a `RoundMachine` runs the rounds of this peer's cell, or of the whole swarm while it is
    small.

    Args:
        rule: how the run forms cells.
        timing: what was learned about the durations above the cells.
        weigh: makes the row of a cell from its name and its commit.
    """

    def __init__(
        self, rounds: ScopedRounds, rule: CellRule, timing: CellTiming, weigh: Callable[[str, Commit], CellRow]
    ) -> None:
        super().__init__(rounds)
        self.me = rounds.me
        self._rule = rule
        self._timing = timing
        self._weigh = weigh
        self._seat = Seat(
            rounds.me,
            rule,
            lambda: (rounds.version, rounds.history.get(rounds.version - 1)),
            lambda peer_ids: rank_leaders(rounds.run_id, rounds.fragment, rounds.version, peer_ids),
        )
        self._expected: frozenset[str] = frozenset()
        self._parts: dict[bytes, Commit] = {}
        self._closed = ClosedRounds()
        self._bid: Bid | None = None
        self._top_attempt = 0
        """Of the next plan above from here: owners of slices tell this version's plans apart by it."""
        self._top: TopLeading | None = None
        self._early: dict[PeerId, CellOffer] = {}
        self._given_up: set[PeerId] = set()
        self._slices = SliceReducing(rounds.me, timing, rounds.notary)
        self._orders: dict[int, tuple[SliceOrder, PeerId]] = {}
        self._ordered: set[tuple[int, PeerId, PeerId]] = set()
        """(attempt, top leader, leader of this cell) of each."""
        self._top_began = (-1, 0.0)
        self._foreign: tuple[PeerId, float] | None = None
        self._takes: dict[type, Callable[[Any, float], None]] = {
            machine_events.PartialArrived: self._take_partial,
            machine_events.SliceReduced: self._finish_slice,
        }
        self._hears: dict[type, Callable[[PeerId, Any, float], None]] = {
            CellPart: self._hear_part,
            CellOffer: self._hear_cell,
            SlicePlan: self._hear_plan,
            SliceOrder: self._hear_order,
            SliceReport: self._hear_report,
            TopCommit: self._hear_top_commit,
        }

    # ------------------------------------------------------------------------------------------------ who is where

    def see(self, view: machine_events.View, now: float) -> None:
        """Take a view; this peer's rounds are those of its cell."""
        self._seat.see(view.trainers, max(len(view.trainers), view.num_known))
        self._form_cells(now)

    def _form_cells(self, now: float | None = None) -> None:
        """Take this peer's cell's part of the view; a round under way in another cell begins anew."""
        before, seat, rounds = self.cell, self._seat, self._rounds
        self.cell = seat.name_of(self.me) if seat.has_cells else ""
        self._expected = seat.expected()
        self.trainers = seat.cells().get(self.cell, ())
        share = len(self.trainers) / len(seat.everyone) if seat.everyone else 1.0
        self.num_known = max(len(self.trainers), round(seat.num_everyone * share))
        has_begun = rounds.leading is not None or rounds.leader is not None or self._top is not None
        if before != self.cell and rounds.applying is None and has_begun and now is not None:
            if rounds.leading is not None:
                reason = f"this peer is of cell {self.cell or 'no cell'} now"
                self._tell_waiting(Abandon(rounds.fragment, rounds.version, rounds.leading.attempt, reason))
            rounds.start_over(now)

    @property
    def max_roster(self) -> int:
        """So that a part and the commit of all cells fit one header."""
        return MAX_CELL_ROSTER if self.cell else super().max_roster

    def refusal(self, sender: PeerId, offer: Offer) -> Message | None:
        """Members of other cells hear who leads those."""
        theirs = self._seat.name_of(sender) if self.cell else ""
        if theirs == self.cell:
            return None
        rounds, leader = self._rounds, self._seat.leaders_of(theirs, sender)[0]
        if offer.attempt == 0 and leader not in (sender, self.me):
            return Redirect(rounds.fragment, rounds.version, leader)
        reason = f"this peer is of cell {self.cell}, not {theirs}"
        return Abandon(rounds.fragment, rounds.version, offer.attempt, reason)

    def plan_shards(self, offers: Sequence[Offer]) -> tuple[ShardPlan, ...]:
        """In a cell, on the grid of all cells."""
        if not self.cell:
            return super().plan_shards(offers)
        rounds, rates = self._rounds, [offer.upload_bits_per_second for offer in offers]
        reachable = [offer.reachable for offer in offers]
        return plan_cell(rounds.num_values, rounds.block_size, self._rule.cell_size, rates, reachable)

    # ---------------------------------------------------------------------------------------------- events and time

    @property
    def next_time(self) -> float:
        times = [self._slices.next_time]
        if self._top is not None:
            times.append(self._top.next_time(self._expected))
        if self._bid is not None:
            times += [self._bid.heartbeat_at, self._top_silent_at(self._bid)]
        if self._foreign is not None:
            times.append(self._foreign[1])
        return min(times)

    def check(self, now: float) -> None:
        """Close a round above, and notice who is silent there."""
        rounds, bid = self._rounds, self._bid
        for effect in self._slices.check(now):
            rounds.tell(effect)
        if self._top is not None:
            closing = self._top.check(self._expected, now)
            if isinstance(closing, Abandon):
                waiting = self._top.waiting
                self._end_top()
                for peer_id in waiting:
                    rounds.send(peer_id, closing)
            elif closing is not None:
                self._close_above(self._top, closing)
        if bid is not None:
            if now >= self._top_silent_at(bid):
                self._next_top(bid, f"the top leader was silent for {now - bid.heard_at:.1f} s", now)
            if bid.beats(now):
                self._tell_waiting(Wait(rounds.fragment, rounds.version, bid.part.attempt, len(bid.part.roster), 0))
        if self._foreign is not None and now >= self._foreign[1]:
            sender, self._foreign = self._foreign[0], None
            rounds.tell(machine_events.Repair(sender, "nobody has its own cell's part of a committed round"))

    def take(self, event: machine_events.Event, now: float) -> bool:
        """What is between the cells; and before the first offer, in how many cells the round is."""
        if isinstance(event, machine_events.Ready) and self._seat.is_guessed:
            for peer_id in [peer_id for peer_id in self._seat.everyone if peer_id != self.me][:NUM_ASKED]:
                self._rounds.send(peer_id, CommitRequest(self._rounds.fragment, self._rounds.version - 1))
        if take := self._takes.get(type(event)):
            take(event, now)
        return type(event) in self._takes

    def hear(self, sender: PeerId, message: Message, now: float) -> bool:
        """The messages between cells, and what the top leader answers."""
        bid, rounds = self._bid, self._rounds
        if hear := self._hears.get(type(message)):
            hear(sender, message, now)
        elif isinstance(message, CommitRequest) and (closed := self._closed_for(sender, message.version)):
            rounds.send(sender, closed)
        elif (
            isinstance(message, Wait | Redirect | Abandon)
            and self._is_current(message.version)
            and bid is not None
            and sender == bid.top
            and not rounds.leader == sender != self.me
        ):
            self._hear_top(bid, message, now)
        else:
            return False
        return True

    def lose(self, peer_id: PeerId, reason: str, now: float) -> None:
        """A cell's leader, an owner or the top leader may be gone."""
        if self._top is not None:
            self._top.on_lost(peer_id)
        if self._rounds.applying is None and self._bid is not None and self._bid.top == peer_id != self.me:
            self._next_top(self._bid, reason, now)

    def _is_current(self, version: int) -> bool:
        return version == self._rounds.version and self._rounds.applying is None

    def _tell_waiting(self, message: Message) -> None:
        for peer_id in self._rounds.leading.waiting if self._rounds.leading is not None else []:
            if peer_id != self.me:
                self._rounds.send(peer_id, message)

    # ------------------------------------------------------------------------------------------- below: in the cell

    def close(self, commit: Commit, now: float) -> None:
        """In a cell the commit is its part: kept, offered above, and a receipt of its members."""
        if not self.cell:
            super().close(commit, now)
            return
        part = self._parts[commit_digest_whole(commit)] = as_part(commit)
        self._bid = Bid(commit, self._weigh(self.cell, commit), self.me, 0, now, now + HEARTBEAT_SECONDS)
        self._offer_cell(self._bid, self._seat.tops(self._given_up)[0], 0, now)
        for entry in commit.roster:
            if entry.peer_id != self.me:
                self._rounds.send(entry.peer_id, part)

    def _hear_part(self, sender: PeerId, part: CellPart, _now: float) -> None:
        rounds = self._rounds
        is_of_round = part.version == rounds.version and part.anchor_digest == rounds.anchor_digest
        is_own = part.leader == sender and own_entry(part.roster, self.me) is not None
        if is_of_round and is_own and len(self._parts) < MAX_PARTS:
            self._parts[commit_digest_whole(part)] = part

    # ------------------------------------------------------------------------------ above: a cell and the top leader

    def _offer_cell(self, bid: Bid, top: PeerId, attempt: int, now: float) -> None:
        bid.begin(top, attempt, now)
        rounds = self._rounds
        offer = CellOffer(rounds.fragment, rounds.version, bid.attempt, rounds.anchor_digest, bid.row, bid.part)
        rounds.send(top, offer)

    def _next_top(self, bid: Bid, reason: str, now: float) -> None:
        self._given_up.add(bid.top)
        rounds, attempt = self._rounds, next_attempt(bid.attempt)
        rounds.tell(RoundAbandoned(rounds.fragment, rounds.version, attempt, reason))
        self._offer_cell(bid, self._seat.tops(self._given_up)[0], attempt, now)

    def _top_silent_at(self, bid: Bid) -> float:
        if bid.top == self.me:
            return math.inf
        patience = self._rounds.timing.leader_silence.allowance(bid.top).seconds
        return bid.heard_at + patience * patience_factor(bid.attempt)

    def _hear_top(self, bid: Bid, message: Wait | Redirect | Abandon, now: float) -> None:
        if isinstance(message, Wait):
            if bid.top != self.me:
                self._rounds.timing.leader_silence.observe(bid.top, now - bid.heard_at)
            bid.hear(now)
        elif isinstance(message, Abandon):
            # Who made the part's means is gone: the cell begins anew, without them.
            self._bid = None
            for peer_id in self._rounds.stop_leading():
                answer = Abandon(self._rounds.fragment, self._rounds.version, bid.part.attempt, message.reason)
                self._rounds.send(peer_id, answer)
        elif bid.attempt < MAX_PARTS and message.leader not in self._given_up:
            self._offer_cell(bid, message.leader, bid.attempt + 1, now)

    def _hear_cell(self, sender: PeerId, offer: CellOffer, now: float) -> None:
        rounds, tops = self._rounds, self._seat.tops(self._given_up)
        if offer.version > rounds.version:
            if len(self._early) < MAX_CELLS:
                self._early[sender] = offer
                rounds.note_ahead(sender, offer.version)
            return
        if not self._is_current(offer.version):
            if offer.version == self._top_began[0] and self._seat.name_of(sender) == offer.row.name:
                self._timing.ready.observe(PeerId(offer.row.name), now - self._top_began[1])
            rounds.tell_outcome(sender, offer.version)
            return
        if offer.anchor_digest != rounds.anchor_digest:
            rounds.send(sender, rounds.version_is())
            return
        if offer.attempt == 0 and sender != self.me and tops[0] not in (self.me, sender):
            rounds.send(sender, Redirect(rounds.fragment, rounds.version, tops[0]))
            return
        if self._top is None:
            self._top = TopLeading(
                self.me,
                rounds.fragment,
                rounds.version,
                rounds.anchor_digest,
                rounds.timing,
                rounds.send,
                rounds.quorum_fraction,
                rounds.notary,
                rounds.digest_before,
                rounds.tell,
                self._top_attempt,
                cell_timing=self._timing,
                slices_for=partial(plan_slices, rounds.num_values, rounds.block_size, self._rule.cell_size),
            )
        is_true = offer.part.leader == sender and offer.row == self._weigh(self._seat.name_of(sender), offer.part)
        if not self.cell or not is_true or not offer.row.tokens:
            # Cells of another number: they hear how this round ends, and form anew from its commit.
            self._top.let_wait(sender)
            rounds.send(sender, Wait(rounds.fragment, rounds.version, offer.attempt, 0, 0))
            return
        self._top.on_offer(sender, offer, now)
        self._top_began = (rounds.version, self._top.first_at)

    # ------------------------------------------------------------------------------------- above: reducers, owners

    def _hear_plan(self, _sender: PeerId, plan: SlicePlan, now: float) -> None:
        bid = self._bid
        if not self._is_current(plan.version) or bid is None or plan.leader != bid.top or bid.is_planned:
            return
        bid.hear(now, is_planned=True)
        for leader in relayed_to(plan.cells, self.me):
            self._rounds.send(leader, plan)
        for reducer, order in bid.orders(plan, self._rounds.notary):
            self._rounds.send(reducer, order)

    def _hear_order(self, sender: PeerId, order: SliceOrder, now: float) -> None:
        rounds = self._rounds
        if not self._is_current(order.version) or order.anchor_digest != rounds.anchor_digest:
            return
        if rounds.plan_under(order.cell_attempt, sender) is None:
            return
        plan = (order.attempt, order.leader, sender)
        if plan in self._ordered or len(self._ordered) >= MAX_PARTS:
            return  # each costs this peer its cell's means once more, sent to whom the order names
        self._ordered.add(plan)
        for number in order.numbers:
            self._orders[number] = (order, sender)
        rounds.tell(machine_events.SendPartials(order, sender))
        if order.cells:
            self._slices.on_order(order, sender, now)

    def _hear_report(self, sender: PeerId, report: SliceReport, now: float) -> None:
        if self._is_current(report.version) and self._top is not None:
            self._top.on_report(sender, report, now)

    def _cellmates(self, order: SliceOrder, leader: PeerId) -> tuple[PeerId, ...]:
        plan = self._rounds.plan_under(order.cell_attempt, leader)
        return tuple(entry.peer_id for entry in plan.roster if entry.peer_id != self.me) if plan is not None else ()

    def _take_partial(self, event: machine_events.PartialArrived, now: float) -> None:
        self._slices.on_partial(event.sender, event.partial, now)

    def _finish_slice(self, event: machine_events.SliceReduced, _now: float) -> None:
        rounds, order, number = self._rounds, event.order, event.order.numbers[event.position]
        key = (order.attempt, order.leader, number)
        waiting = self._slices.slices.get(key)
        if waiting is None or not event.included:
            return
        row = order.slices[event.position]
        signature = rounds.notary.sign_result(order, order.leader, row.result(event.digest, event.included))
        of_round = (rounds.fragment, rounds.version, order.attempt)
        rounds.send(order.leader, SliceReport(*of_round, number, event.digest, event.included, signature))
        makers = {sender for sender, _ in waiting.partials.values()}
        to = {*self._cellmates(order, waiting.leader), *makers} - {self.me}
        header = Result(rounds.fragment, rounds.version, number, row.start, row.end)
        rounds.tell(machine_events.SendResult(header, tuple(sorted(to))))

    # ------------------------------------------------------------------------------------------------------ commits

    def _close_above(self, top: TopLeading, closing: TopCommit) -> None:
        rounds = self._rounds
        self._closed.add(closing, top.parts)
        leaders = {row.leader for row in closing.cells}
        for peer_id in sorted({self.me, *relayed_to(closing.cells, None)}):
            rounds.send(peer_id, closing)
        first_of_others = self._seat.first_of_others({row.name for row in closing.cells})
        for peer_id in sorted({*top.waiting, *rounds.followers, *first_of_others} - leaders - {self.me}):
            closed = self._closed_for(peer_id, rounds.version)
            assert closed is not None
            rounds.send(peer_id, closed)

    def _hear_top_commit(self, sender: PeerId, closing: TopCommit, now: float) -> None:
        rounds = self._rounds
        if not self._is_current(closing.version) or closing.anchor_digest != rounds.anchor_digest:
            if closing.version > rounds.version:
                rounds.note_ahead(sender, closing.version + 1)
            return
        own = self._with_part(closing)
        if own is None:
            rounds.send(sender, CommitRequest(rounds.fragment, rounds.version))
            return
        for leader in relayed_to(closing.cells, self.me):
            rounds.send(leader, closing)
        if rounds.leading is not None:
            # Members have the part already.
            members = {entry.peer_id for entry in own.roster} if own.leader == self.me else set()
            for peer_id in sorted({*self.trainers, *rounds.leading.waiting, *members} - {self.me}):
                rounds.send(peer_id, closing if peer_id in members else own)
        rounds.take_commit(sender, own, now)

    def _closed_for(self, peer_id: PeerId, version: int) -> CellsCommit | None:
        """The commit of a round closed here, as it says what became of that peer's work."""
        return self._closed.commit_for(version, lambda depth: self._seat.name_of(peer_id, depth))

    def _with_part(self, closing: TopCommit) -> CellsCommit | None:
        """What all cells have in common, with the part of this peer's cell, if that is in it and here."""
        parts = (self._parts[row.digest] for row in closing.cells if row.digest in self._parts)
        part = next(parts, None)
        return None if part is None else with_upper(part, closing)

    def own_commit(self, sender: PeerId, commit: Commit, now: float) -> Commit | None:
        """A commit of all cells counts here with this peer's cell's part, which is asked for when it is not known."""
        rounds = self._rounds
        if self._seat.learn(commit):
            self._form_cells(now)
        is_next = self._is_current(commit.version) and commit.anchor_digest == rounds.anchor_digest
        if not is_next or not isinstance(commit, CellsCommit) or self.knows_own_part(commit):
            return commit
        own = self._with_part(commit.upper)
        if own is None:
            self._want_part(sender, commit, now)
        return own

    def begins_to_apply(self, sender: PeerId, commit: Commit) -> None:
        """A round went on without this peer's cell: who leads it tells all, and so does who hears it from outside.

        At once, because they fetch what the round left behind together.
        """
        rounds = self._rounds
        if not commit.cells or self._is_in(commit):
            return
        to = {rounds.leader} if rounds.leader is not None else set()
        if rounds.leading is not None:
            to |= {*self.trainers, *rounds.stop_leading()}
        elif self._seat.name_of(sender) != self.cell:
            to |= set(self.trainers)
        for peer_id in sorted(to - {self.me, sender}):
            rounds.send(peer_id, commit)

    def _is_in(self, commit: Commit) -> bool:
        """Whether this peer's cell is in a round, so that its reducers have the means."""
        return self._seat.name_in(commit) in [row.name for row in commit.cells]

    def knows_own_part(self, commit: Commit) -> bool:
        """Whether a commit says what became of own work: it is flat, has the part of this peer's cell, or not that
        cell.
        """
        if not commit.cells or not self._is_in(commit):
            return True
        mine = self._seat.name_in(commit)
        return any(row.name == mine and row.leader == commit.leader for row in commit.cells)

    def _want_part(self, sender: PeerId, commit: Commit, now: float) -> None:
        """Ask this peer's cell for the same commit with its part; who gets none repairs."""
        if self._foreign is not None:
            return
        rounds, mine = self._rounds, self._seat.name_in(commit)
        self._foreign = (sender, now + rounds.timing.result.longest([sender]).seconds * NUM_ASKED)
        leaders = [row.leader for row in commit.cells if row.name == mine]
        mates = [peer_id for peer_id in self.trainers if peer_id != self.me and peer_id not in leaders]
        for peer_id in sorted({*leaders, *mates[:NUM_ASKED], commit.closing.leader} - {self.me}):
            rounds.send(peer_id, CommitRequest(rounds.fragment, rounds.version))

    # ------------------------------------------------------------------------------------------------------ versions

    def restart(self) -> None:
        """The part that was offered, and what was planned above, are void."""
        self._end_top()
        self._bid = self._foreign = None
        self._orders = {}
        self._ordered = set()
        self._slices.advance()

    def leave(self, commit: Commit | None) -> None:
        """Leaders that wait, here or above, must not wait until this round looks dead."""
        rounds = self._rounds
        if commit is not None:
            waiting = set(self._top.waiting) if self._top is not None and not self._top.closed else set()
            if self._bid is not None and rounds.leading is not None:
                waiting |= set(rounds.leading.waiting) - {entry.peer_id for entry in commit.roster}
            for peer_id in sorted(waiting - {self.me}):
                rounds.send(peer_id, commit)
        self.restart()
        self._parts, self._top_attempt = {}, 0

    def advanced(self, silent: frozenset[PeerId]) -> list[machine_events.Heard]:
        """Cells form anew from the commit that led here."""
        self._closed.prune(self._rounds.version - HISTORY_COMMITS, self._digest_of_commit)
        self._given_up = set(silent)
        self._form_cells()
        early, self._early = self._early, {}
        return [machine_events.Heard(sender, offer) for sender, offer in sorted(early.items())]

    def _digest_of_commit(self, version: int) -> bytes:
        commit = self._rounds.history.get(version)
        return b"" if commit is None else commit_digest_whole(commit)

    def _end_top(self) -> None:
        if self._top is not None:
            self._top_attempt = next_attempt(self._top.attempt)
        self._top = None

    # ------------------------------------------------------------------------------------------------------- results

    def relays(self, sender: PeerId, number: int) -> tuple[PeerId, ...]:
        """Receivers of the mean of slice `number` from here when its owner `sender` sent it: the rest of the cell."""
        commit = self._rounds.applying
        if not self.cell:
            return ()
        if commit is not None and commit.cells and not self._is_in(commit) and self.fetches(number):
            return tuple(peer_id for peer_id in self.trainers if peer_id not in (self.me, sender))
        order, leader = self._orders.get(number, (None, self.me))
        if order is None or order.slices[order.numbers.index(number)].owner != sender:
            return ()
        return self._cellmates(order, leader)

    def fetches(self, number: int) -> bool:
        """Whether this peer fetches slice `number` for all of its cell, when that cell missed the round.

        So what a cell that missed a round fetches from others does not grow with its members.
        """
        commit = self._rounds.applying
        if commit is None or not commit.cells or self.me not in self.trainers or len(self.trainers) == 1:
            return True
        return self._is_in(commit) or self.trainers[number % len(self.trainers)] == self.me
