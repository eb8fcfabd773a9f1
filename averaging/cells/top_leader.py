"""What happens above the cells of one round: gathering them, planning the slices, averaging those, closing. Sans-I/O.

`TopLeading` exists on a peer that was offered a cell. `SliceReducing` waits, at the owner of a slice, for the other
cells' means of it. Both know time as an argument only, and are driven by `scope.CellScope`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from averaging.cells.formation import depth_of, relayed_to
from averaging.rounds.duration_statistics import LinkDeadlines
from averaging.rounds.leader import AVERAGING_OF_MEAN, GRACE_OF_INTERVAL, LEAST_AVERAGING_SECONDS, Gathering
from averaging.rounds.learned_durations import HEARTBEAT_SECONDS, LEAST_GRACE_SECONDS, patience_factor
from averaging.rounds.machine_events import ReduceSlice, WronglySigned
from averaging.signing.round_signatures import Notary
from averaging.wire.cell_messages import (
    CellOffer,
    CellsCommit,
    Partial,
    SliceOrder,
    SlicePlan,
    SliceReport,
    SliceRow,
    with_upper,
)
from averaging.wire.frames import closing_digest
from averaging.wire.messages import Abandon, CellRow, Commit, Redirect, SliceResult, TopCommit, Wait
from dht.host import PeerId


@dataclass(frozen=True, slots=True)
class CellTiming:
    """Learned durations above the cells, by the name of the cell.

    Attributes:
        ready: from the first cell that was offered until this one was.
        partial: from the plan until a cell's mean of a slice was at its owner.
        reported: from the plan until an owner's report was at the top leader.
    """

    ready: LinkDeadlines
    partial: LinkDeadlines
    reported: LinkDeadlines

    @classmethod
    def with_bounds(cls, hard_seconds: float) -> CellTiming:
        learned = partial(LinkDeadlines, highest_seconds=hard_seconds)
        return cls(learned(hard_seconds, LEAST_GRACE_SECONDS), learned(10.0, 1.0), learned(20.0, 1.0))


@dataclass(kw_only=True)
class TopLeading(Gathering):
    """Cells, slices and results of one round at its top leader."""

    cell_timing: CellTiming
    slices_for: Callable[[Sequence[Sequence[PeerId]]], tuple[SliceRow, ...]]
    offers: dict[str, tuple[PeerId, CellOffer]] = field(default_factory=dict)
    plan: SlicePlan | None = None
    results: dict[int, SliceResult] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Commit]:
        """The part of each cell that is in the plan."""
        return {name: offer.part for name, (_, offer) in self.offers.items()}

    def on_offer(self, sender: PeerId, offer: CellOffer, now: float) -> None:
        """Take a cell; of one cell the heaviest part counts. What comes after the plan waits for the next version."""
        if not self.offers:
            self.first_at, self.heartbeat_at = now, now + HEARTBEAT_SECONDS
        name = offer.row.name
        known = self.offers.get(name)
        if self.offers and known is None and sender not in self.late:
            self.cell_timing.ready.observe(PeerId(name), now - self.first_at)
        if self.plan is not None:
            if known is None or known[0] != sender:
                self.let_wait(sender)
        elif known is None or _weight(offer) >= _weight(known[1]):
            if known is not None and known[0] != sender:
                self.let_wait(known[0])
            self.late.discard(sender)
            self.offers[name] = (sender, offer)
            self.attempt = max(self.attempt, offer.attempt)
        else:
            self.let_wait(sender)
        self.send(sender, self._wait(0))

    def on_lost(self, peer_id: PeerId) -> None:
        """Its cell must be offered again, before the plan; after it, the slices that it owns are void."""
        self.late.discard(peer_id)
        if self.plan is None:
            kept = {name: held for name, held in self.offers.items() if held[0] != peer_id}
            if len(kept) < len(self.offers):
                # Another leader of that cell may have offered, and waits because this one came before it.
                for other in sorted(self.late):
                    self.send(other, Redirect(self.fragment, self.version, self.me))
            self.offers = kept
        else:
            for index, row in enumerate(self.plan.slices):
                if row.owner == peer_id and index not in self.results:
                    self.results[index] = row.result()

    def on_report(self, sender: PeerId, message: SliceReport, now: float) -> None:
        """An owner's report; one that does not belong to this plan or is not signed counts nothing."""
        plan = self.plan
        if plan is None or message.attempt != plan.attempt or message.slice >= len(plan.slices):
            return
        row, included = plan.slices[message.slice], message.included
        if row.owner != sender or message.slice in self.results or not included or included[-1] >= len(plan.cells):
            return
        result = row.result(message.digest, included, message.signature)
        if sender != self.me and not self.notary.is_makers(sender, plan, self.me, result):
            what = f"its mean of values [{row.start}, {row.end}) of all cells of fragment {plan.fragment}"
            self.tell(WronglySigned(sender, f"{what} is not signed by it"))
            return
        self.results[message.slice] = result
        self.cell_timing.reported.observe(PeerId(plan.cells[row.cell].name), now - self.planned_at)

    def check(self, expected: Collection[str], now: float) -> TopCommit | Abandon | None:
        """Send what is due; returns the commit of all cells, or why there is none, when the round closes.

        Args:
            expected: names of the cells that have live trainers, as this peer sees them.
        """
        if self.closed or not self.offers:
            return None
        if now >= self.heartbeat_at:
            self.heartbeat_at = now + HEARTBEAT_SECONDS
            for peer_id in self.waiting:
                self.send(peer_id, self._wait(len(expected)))
        if self.plan is None:
            if now >= self._start_at(expected):
                self._start(expected, now)
            return None
        if len(self.results) < len(self.plan.slices):
            if now >= self.closes_at and not any(result.digest for result in self.results.values()):
                # As a leader of members waits: see `Leading`.
                longest = min(2 * self.plan.commit_deadline_seconds, self.timing.hard_seconds)
                self.closes_at = max(self.closes_at, self.planned_at + longest)
            if now < self.closes_at:
                return None
        return self._close()

    @property
    def waiting(self) -> list[PeerId]:
        """Leaders of cells, in this plan or too late for it."""
        return sorted({sender for sender, _ in self.offers.values()} | self.late)

    def next_time(self, expected: Collection[str]) -> float:
        if self.closed or not self.offers:
            return math.inf
        if self.plan is None:
            return min(self._start_at(expected), self.heartbeat_at)
        return min(self.closes_at, self.heartbeat_at)

    def _start_at(self, expected: Collection[str]) -> float:
        """At once with all cells; with a quorum, as long as the missing usually take; without one, the hard limit."""
        missing = [PeerId(name) for name in sorted(set(expected) - set(self.offers))]
        if not missing:
            return self.first_at
        if len(self.offers) < math.ceil(self.quorum_fraction * len(expected)):
            return self.first_at + self.timing.hard_seconds
        awaited = [name for name in missing if not self.cell_timing.ready.is_absent(name)]
        if not awaited:
            return self.first_at
        grace = self.cell_timing.ready.longest(awaited).seconds
        pace = self.timing.interval_seconds
        return self.first_at + (min(grace, GRACE_OF_INTERVAL * pace) if pace is not None else grace)

    def _start(self, expected: Collection[str], now: float) -> None:
        for name in sorted(set(expected) - set(self.offers)):
            self.cell_timing.ready.missed(PeerId(name))
        ordered = [offer for _, (_, offer) in sorted(self.offers.items())]
        cells = tuple(offer.row for offer in ordered)
        slices = self.slices_for([offer.reducers for offer in ordered])
        names = [PeerId(row.name) for row in cells]
        partial = self.cell_timing.partial.longest(names).seconds * patience_factor(self.attempt)
        mean = self.cell_timing.reported.longest(names).seconds
        partial = max(partial, mean)
        commit = partial + max(LEAST_AVERAGING_SECONDS, AVERAGING_OF_MEAN * mean)
        place = (self.fragment, self.version, self.attempt)
        plan = SlicePlan(*place, self.me, self.anchor_digest, cells, slices, partial, commit)
        self.plan = self.notary.sign_slices(plan)
        self.planned_at, self.closes_at = now, now + plan.commit_deadline_seconds
        for index, row in enumerate(slices):
            if not row.owner:
                self.results[index] = row.result()
        for leader in relayed_to(cells, None):
            self.send(leader, self.plan)

    def _wait(self, num_expected: int) -> Wait:
        return Wait(self.fragment, self.version, self.attempt, len(self.offers), num_expected)

    def _close(self) -> TopCommit | Abandon:
        assert self.plan is not None
        self.closed = True
        plan = self.plan
        silent = {plan.cells[row.cell].name for index, row in enumerate(plan.slices) if index not in self.results}
        for name in sorted(silent):
            self.cell_timing.reported.missed(PeerId(name))
        slices = tuple(self.results.get(index) or row.result() for index, row in enumerate(plan.slices))
        if not any(result.digest for result in slices):
            return Abandon(*plan.place, "no owner of a slice finished in time")
        commit = TopCommit(*plan.place, self.me, self.anchor_digest, plan.cells, slices, self.previous)
        return self.notary.sign_slices(commit)


def _weight(offer: CellOffer) -> tuple[int, int, bytes]:
    """Of two parts of one cell the one with more work; who leads few of its members is a leader only to those."""
    return offer.row.tokens, offer.attempt, offer.row.digest


@dataclass
class Bid:
    """A cell's part at its leader, offered to the top leader `top`."""

    part: Commit
    row: CellRow
    top: PeerId
    attempt: int
    heard_at: float
    heartbeat_at: float
    is_planned: bool = False

    def begin(self, top: PeerId, attempt: int, now: float) -> None:
        self.top, self.attempt, self.heard_at, self.is_planned = top, attempt, now, False

    def hear(self, now: float, *, is_planned: bool = False) -> None:
        """The top leader gave a sign of life, or planned."""
        self.heard_at, self.is_planned = now, self.is_planned or is_planned

    def beats(self, now: float) -> bool:
        """Whether members hear a sign of life now."""
        is_due = now >= self.heartbeat_at
        if is_due:
            self.heartbeat_at = now + HEARTBEAT_SECONDS
        return is_due

    def orders(self, plan: SlicePlan, notary: Notary) -> Iterator[tuple[PeerId, SliceOrder]]:
        """What each reducer of the cell needs of a plan; nothing when the cell is not in it."""
        numbers = [number for number, row in enumerate(plan.cells) if row.digest == self.row.digest]
        shards_of: dict[PeerId, list[tuple[int, int]]] = {}
        for shard in self.part.shards if numbers else ():
            if shard.digest:
                reducer = self.part.roster[shard.reducer].peer_id
                shards_of.setdefault(reducer, []).append((shard.start, shard.end))
        for reducer, shards in sorted(shards_of.items()):
            run = (shards[0][0], shards[-1][1])
            mine = [
                (number, row)
                for number, row in enumerate(plan.slices)
                if row.owner and any(start <= row.start < end for start, end in shards)
            ]
            yield (
                reducer,
                SliceOrder(
                    *plan.place,
                    self.top,
                    plan.anchor_digest,
                    self.part.attempt,
                    numbers[0],
                    plan.cells if any(row.owner == reducer for _, row in mine) else (),
                    tuple(number for number, _ in mine),
                    tuple(row for _, row in mine),
                    *run,
                    notary.sign_credential(plan.fragment, plan.version, self.row.digest, reducer, run),
                    plan.partial_deadline_seconds,
                ),
            )


class ClosedRounds:
    """The last rounds that this peer closed as top leader, with all parts: for members that missed their cell's."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[TopCommit, dict[str, Commit]]] = {}

    def add(self, upper: TopCommit, parts: dict[str, Commit]) -> None:
        self._held[upper.version] = (upper, parts)

    def commit_for(self, version: int, name_of: Callable[[int], str]) -> CellsCommit | None:
        """The commit that left `version` with the part of one cell; any part, when that cell is not in it.

        Args:
            name_of: from the depth of a round to the name of the cell.
        """
        if version not in self._held:
            return None
        upper, parts = self._held[version]
        first = upper.cells[0].name
        return with_upper(parts.get(name_of(depth_of(first))) or parts[first], upper)

    def prune(self, keep_from: int, digest_of: Callable[[int], bytes]) -> None:
        """Forget older rounds, and those whose commit is not the one that counts here."""
        self._held = {
            version: held
            for version, held in self._held.items()
            if version >= keep_from and closing_digest(held[0]) == digest_of(version)
        }


SliceKey = tuple[int, PeerId, int]
"""(attempt, top leader, slice)."""


@dataclass
class _Waiting:
    """One slice, ordered by the cell's leader. `partials` are other cells' means of it that count."""

    order: SliceOrder
    leader: PeerId
    position: int
    since: float
    until: dict[int, float]
    partials: dict[int, tuple[PeerId, Partial]] = field(default_factory=dict)
    started: bool = False

    def is_fit(self, sender: PeerId, partial: Partial, notary: Notary) -> bool:
        """Whether a mean is one of this slice from a cell of the plan, made by whom that cell's leader names."""
        order, row = self.order, self.order.slices[self.position]
        return (
            partial.cell < len(order.cells)
            and partial.cell != order.cell
            and partial.run_start <= row.start == partial.start < partial.end == row.end <= partial.run_end
            and 0 < partial.weight <= order.cells[partial.cell].weight * (1 + 1e-9)
            and notary.is_reducer_of(
                order.cells[partial.cell],
                *(order.fragment, order.version, sender, (partial.run_start, partial.run_end), partial.credential),
            )
        )


@dataclass
class SliceReducing:
    """All slices of one version that this peer owns.

    Of one sender the first mean of a cell's slice counts. What comes before its order is kept, and checked with that.
    """

    me: PeerId
    timing: CellTiming
    notary: Notary
    slices: dict[SliceKey, _Waiting] = field(default_factory=dict)
    arrived: dict[SliceKey, dict[tuple[int, PeerId], Partial]] = field(default_factory=dict)

    def on_order(self, order: SliceOrder, leader: PeerId, now: float) -> None:
        """Begin to wait for the other cells' means of the slices that are ours."""
        for position, row in enumerate(order.slices):
            key = (order.attempt, order.leader, order.numbers[position])
            if row.owner != self.me or key in self.slices:
                continue
            waiting = self.slices[key] = _Waiting(order, leader, position, now, {})
            for (cell, sender), early in self.arrived.get(key, {}).items():
                if cell not in waiting.partials and waiting.is_fit(sender, early, self.notary):
                    waiting.partials[cell] = (sender, early)
            for cell, of_cell in enumerate(order.cells):
                if cell != order.cell and cell not in waiting.partials:
                    patience = self.timing.partial.allowance(PeerId(of_cell.name)).seconds
                    allowed = min(patience * patience_factor(order.attempt), order.partial_deadline_seconds)
                    waiting.until[cell] = now + allowed

    def on_partial(self, sender: PeerId, partial: Partial, now: float) -> None:
        key, cell = (partial.attempt, partial.leader, partial.slice), partial.cell
        here = self.arrived.setdefault(key, {})
        if (cell, sender) in here:
            return
        here[cell, sender] = partial
        waiting = self.slices.get(key)
        if waiting is None or cell in waiting.partials or not waiting.is_fit(sender, partial, self.notary):
            return
        waiting.partials[cell] = (sender, partial)
        if waiting.until.pop(cell, None) is not None:
            self.timing.partial.observe(PeerId(waiting.order.cells[cell].name), now - waiting.since)

    def check(self, now: float) -> list[ReduceSlice]:
        effects = []
        for waiting in self.slices.values():
            if waiting.started or now < max(waiting.until.values(), default=-math.inf):
                continue
            waiting.started = True
            for cell in sorted(waiting.until):
                self.timing.partial.missed(PeerId(waiting.order.cells[cell].name))
            partials = tuple(waiting.partials[cell] for cell in sorted(waiting.partials))
            effects.append(ReduceSlice(waiting.order, waiting.leader, waiting.position, partials))
        return effects

    @property
    def next_time(self) -> float:
        waiting = (each for each in self.slices.values() if not each.started)
        return min((max(each.until.values(), default=-math.inf) for each in waiting), default=math.inf)

    def advance(self) -> None:
        self.slices.clear()
        self.arrived.clear()
