"""In which cell a peer is, and what is different below, in the cell, from a flat round. Sans-I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from averaging.cells.formation import (
    CellRule,
    depth_after,
    depth_for,
    depth_of,
    hash_cell,
    hash_cells,
    members_of_cells,
    plan_cell,
    site_cell,
)
from averaging.outer.schedule import rank_leaders
from averaging.rounds.events import Effect, Event, Ready, ResultArrived, SendResult, ShardReduced, View
from averaging.rounds.machine import RoundMachine
from averaging.wire.cell_checks import MAX_CELL_ROSTER
from averaging.wire.cell_messages import CellsCommit
from averaging.wire.messages import Abandon, Commit, CommitRequest, Message, Offer, Redirect, ShardPlan
from dht.host import PeerId

NUM_ASKED = 3
"""Others who are asked for a commit that this peer missed; each of them probably has it."""


@dataclass
class CellSeat(RoundMachine):
    """A round machine that knows its cell; `trainers` are those of the cell. See `machine.CellRoundMachine`."""

    cell_rule: CellRule = field(default_factory=CellRule)
    _everyone: tuple[PeerId, ...] = ()
    """In order, see `View`."""
    _num_everyone: int = 0
    _cell: str = ""
    _expected: frozenset[str] = frozenset()
    _depth_known: tuple[int, int] = (-1, 0)
    _hint: tuple[int, int] = (-1, 0)
    _now: float = 0.0

    @property
    def cell(self) -> str:
        """Name of the cell of this peer in the current version; empty when rounds are flat."""
        return self._cell

    def step(self, event: Event, now: float) -> list[Effect]:
        """As `RoundMachine.step`."""
        self._now = now
        return super().step(event, now)

    # ----------------------------------------------------------------------------------------------- who is where

    def _form_cells(self) -> None:
        """Take the own cell's part of the view; a round under way in another cell begins anew."""
        before = self._cell
        cells = self._cells()
        self._cell = self._name_of(self.me) if self._has_cells() else ""
        self._expected = frozenset(cells) | self._cells_before()
        mine = self.trainers = cells.get(self._cell, ())
        share = len(mine) / len(self._everyone) if self._everyone else 1.0
        self.num_known = max(len(mine), round(self._num_everyone * share))
        self._silent.intersection_update(self._everyone)
        if before != self._cell and self.applying is None and self._has_begun:
            if self._leading is not None:
                reason = f"this peer is of cell {self._cell or 'no cell'} now"
                self._tell_waiting(Abandon(self.fragment, self.version, self._leading.attempt, reason))
            self._start_over(self._now)

    def _has_cells(self) -> bool:
        return self.cell_rule.site_of is not None or self._depth() > 0

    def _cells(self) -> Mapping[str, tuple[PeerId, ...]]:
        """Cell -> the trainers in it that this peer sees."""
        if not self._has_cells():
            return {"": self._everyone} if self._everyone else {}
        if self.cell_rule.site_of is None:
            return hash_cells(self._everyone, self._depth())
        return members_of_cells(self._everyone, map(self._name_of, self._everyone))

    def _cells_before(self) -> frozenset[str]:
        """Cells of the round before, as far as they are cells of this one: this peer may not know members of all."""
        before = self.history.get(self.version - 1)
        if not isinstance(before, CellsCommit) or self.cell_rule.site_of is not None:
            return frozenset()
        depth = self._depth()
        return frozenset(row.name for row in before.upper.cells if depth_of(row.name) == depth)

    def _depth(self) -> int:
        before = self.history.get(self.version - 1)
        if before is not None:
            if self._depth_known[0] != self.version:
                self._depth_known = (self.version, depth_after(before, self.cell_rule.cell_size))
            return self._depth_known[1]
        if self._hint[0] == self.version:
            return self._hint[1]
        place = bisect_left(self._everyone, self.me)
        is_among = self._everyone[place : place + 1] == (self.me,)
        return depth_for(len(self._everyone) + (not is_among), 0, self.cell_rule.cell_size)

    def _name_of(self, peer_id: PeerId, depth: int | None = None) -> str:
        if self.cell_rule.site_of is not None:
            return site_cell(self.cell_rule.site_of(peer_id))
        return hash_cell(peer_id, self._depth() if depth is None else depth)

    def _first_of_others(self, cells: Collection[str]) -> set[PeerId]:
        """Of each cell that is not among `cells` the member who, as far as is known here, leads it."""
        others = [members for name, members in self._cells().items() if name not in cells]
        return {rank_leaders(self.run_id, self.fragment, self.version, members)[0] for members in others}

    def _is_depth_guessed(self) -> bool:
        is_known = self.version - 1 in self.history or self._hint[0] == self.version
        return self.cell_rule.site_of is None and self.version > 0 and not is_known

    def _ask_depth(self) -> None:
        """A restarted process does not know the commit before, and with it in how many cells the round is."""
        for peer_id in [peer_id for peer_id in self._everyone if peer_id != self.me][:NUM_ASKED]:
            self._send(peer_id, CommitRequest(self.fragment, self.version - 1))

    def _take(self, event: Event, now: float) -> None:
        if isinstance(event, Ready) and self._is_depth_guessed():
            self._ask_depth()
        super()._take(event, now)
        if isinstance(event, View):
            self._everyone, self._num_everyone = self.trainers, self.num_known
            self._form_cells()

    def _learn_depth(self, commit: Commit) -> None:
        """A commit came that is the one before the current version, as far as this peer can tell."""
        if commit.version == self.version - 1 and self._is_depth_guessed():
            self._hint = (self.version, depth_after(commit, self.cell_rule.cell_size))
            self._form_cells()

    @property
    def _has_begun(self) -> bool:
        """Whether a round of the current version is under way here."""
        return self._leading is not None or self._member is not None

    # ------------------------------------------------------------------------------------------- below: in the cell

    def _hear_offer(self, sender: PeerId, offer: Offer, now: float) -> None:
        is_mine = offer.version == self.version and offer.anchor_digest == self.anchor_digest
        if self._cell and is_mine and self.applying is None and sender != self.me:
            theirs = self._name_of(sender)
            if theirs != self._cell:
                there = self._cells().get(theirs, ())
                leaders = rank_leaders(self.run_id, self.fragment, self.version, {*there, sender})
                if offer.attempt == 0 and leaders[0] not in (sender, self.me):
                    self._send(sender, Redirect(self.fragment, self.version, leaders[0]))
                else:
                    reason = f"this peer is of cell {self._cell}, not {theirs}"
                    self._send(sender, Abandon(self.fragment, self.version, offer.attempt, reason))
                return
        super()._hear_offer(sender, offer, now)
        if self._cell and self._leading is not None:
            self._leading.max_roster = MAX_CELL_ROSTER

    def _note_result(self, event: ResultArrived, now: float) -> None:
        """In cells means come from owners of slices through a reducer, which says little about either."""
        if not self._cell:
            super()._note_result(event, now)

    def _shards_for(self, offers: Sequence[Offer]) -> tuple[ShardPlan, ...]:
        if not self._cell:
            return super()._shards_for(offers)
        return plan_cell(
            self.num_values,
            self.block_size,
            self.cell_rule.cell_size,
            [offer.upload_bits_per_second for offer in offers],
            [offer.reachable for offer in offers],
        )

    def _finish_reduction(self, event: ShardReduced) -> None:
        """In a cell the mean stays here until the cells have averaged."""
        super()._finish_reduction(event)
        if self._cell and self._effects and isinstance(self._effects[-1], SendResult):
            self._effects.pop()

    def _tell_waiting(self, message: Message) -> None:
        for peer_id in self._leading.waiting if self._leading is not None else []:
            if peer_id != self.me:
                self._send(peer_id, message)
