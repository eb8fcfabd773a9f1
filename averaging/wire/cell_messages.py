"""The messages of two-level rounds, as values, and the commit that closes one.

docs/contributor/protocol.md describes each field.

A cell closes its part with a commit of its own (`CellPart`), which is the receipt of its members and moves no anchor.
The cells' leaders offer their parts to the top leader; the reducers average across cells; the top leader closes
with a `TopCommit`. Part and top commit together are a `CellsCommit`: what is applied, by each member with the part of
its own cell.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from averaging.wire.field_checks import integer, rows, structure
from averaging.wire.messages import (
    CELL_ROW,
    MAX_SLICES,
    Attempt,
    Cell,
    CellLevel,
    CellRow,
    CellRows,
    Commit,
    Digest,
    Members,
    Peer,
    PeerOrNobody,
    Seconds,
    ShardResult,
    Signature,
    SliceResult,
    TopCommit,
    Value,
    Weight,
    fields_of_commit,
)
from dht.host import PeerId

MAX_GRID_SHARDS = 128
"""So that the signed commit of a cell stays below 20 kB."""
SliceNumber = Annotated[int, integer(0, MAX_SLICES - 1)]


@dataclass(frozen=True, slots=True)
class SliceRow:
    """Values [start, end) are averaged across cells by `owner`, a reducer of cell number `cell`; nobody: void."""

    start: Value
    end: Value
    cell: Cell
    owner: PeerOrNobody

    def result(self, digest: bytes = b"", included: tuple[int, ...] = (), signature: bytes = b"") -> SliceResult:
        return SliceResult(self.start, self.end, self.cell, self.owner, digest, included, signature)


SliceRows = Annotated[tuple[SliceRow, ...], rows(structure(SliceRow), MAX_SLICES)]


@dataclass(frozen=True, slots=True)
class CellPart(Commit):
    """Cell leader to its members: the cell's own commit, before the cells have averaged. It moves no anchor."""

    KIND: ClassVar[str] = "cell_part"


@dataclass(frozen=True, slots=True)
class CellOffer(CellLevel):
    """Cell leader to the top leader: my cell is ready. The top leader keeps the part for members who missed it."""

    KIND: ClassVar[str] = "cell_offer"
    anchor_digest: Digest
    row: Annotated[CellRow, CELL_ROW]
    part: Annotated[Commit, structure(Commit, f"the {len(fields(Commit))} fields of a commit")]

    @property
    def reducers(self) -> tuple[PeerId, ...]:
        """The holder of the cell's mean of each shard of the grid; empty where nobody has it."""
        part = self.part
        return tuple(part.roster[shard.reducer].peer_id if shard.digest else PeerId("") for shard in part.shards)


@dataclass(frozen=True, slots=True)
class SlicePlan(CellLevel):
    """Top leader to the cell leaders, who pass it on: which cells take part, who averages which slice, until when."""

    KIND: ClassVar[str] = "cross_plan"
    leader: Peer
    anchor_digest: Digest
    cells: CellRows
    slices: SliceRows
    partial_deadline_seconds: Seconds
    commit_deadline_seconds: Seconds
    signature: Signature = b""


@dataclass(frozen=True, slots=True)
class SliceOrder(CellLevel):
    """Cell leader to one of its reducers: the slices of its shards, and the proof that it is the reducer of these.

    `cell_attempt` is of the cell's own plan, `cell` the number of the cell. `cells` is empty for who owns no slice.
    `numbers` are those of `slices` in the whole plan. `credential` signs [run_start, run_end) for this reducer.
    """

    KIND: ClassVar[str] = "cross"
    leader: Peer
    anchor_digest: Digest
    cell_attempt: Attempt
    cell: Cell
    cells: CellRows
    numbers: Annotated[tuple[int, ...], rows(integer(0, MAX_SLICES - 1), MAX_SLICES)]
    slices: SliceRows
    run_start: Value
    run_end: Value
    credential: Signature
    partial_deadline_seconds: Seconds


@dataclass(frozen=True, slots=True)
class Partial(CellLevel):
    """Reducer to the owner of a slice: its cell's mean of it, and the weight behind that; the payload is the blocks."""

    KIND: ClassVar[str] = "partial"
    leader: Peer
    slice: SliceNumber
    start: Value
    end: Value
    cell: Cell
    weight: Weight
    run_start: Value
    run_end: Value
    credential: Signature


@dataclass(frozen=True, slots=True)
class SliceReport(CellLevel):
    """Owner to the top leader: the mean of this slice is ready, from these cells, and I sign that it is so."""

    KIND: ClassVar[str] = "crossed"
    slice: SliceNumber
    digest: Digest
    included: Members
    signature: Signature


_NO_TOP = TopCommit(0, 0, 0, PeerId(""), b"", (), ())


@dataclass(frozen=True, slots=True)
class CellsCommit(Commit):
    """The commit of a two-level round as the members of one cell know it: their part, and what all cells made of it."""

    KIND: ClassVar[str] = "cells_commit"
    upper: Annotated[TopCommit, structure(TopCommit, "the nine fields of the commit of all cells")] = _NO_TOP

    @property
    def tokens(self) -> int:
        """Of all cells: the weight of this commit in a fork."""
        return self.upper.tokens

    @property
    def signed(self) -> tuple[Commit | TopCommit, ...]:
        """What all cells have in common, and the cell's part."""
        return (self.upper, self.plain)

    @property
    def cells(self) -> tuple[CellRow, ...]:
        return self.upper.cells

    @property
    def names_everyone(self) -> bool:
        """Members of other cells are known by their number only."""
        return False

    @property
    def num_members(self) -> int:
        return sum(row.num_members for row in self.cells)

    @property
    def results(self) -> tuple[SliceResult, ...]:
        return self.upper.slices

    @property
    def cell(self) -> int:
        """Number of the cell whose part this is."""
        leaders = [row.leader for row in self.upper.cells]
        return leaders.index(self.leader) if self.leader in leaders else -1

    def members_in(self, index: int) -> tuple[int, ...]:
        """Members of this cell whose work is in result `index`."""
        result = self.upper.slices[index]
        return self._shard_around(result.start).included if self.cell in result.included else ()

    def cells_in(self, index: int) -> tuple[CellRow, ...]:
        return tuple(self.cells[cell] for cell in self.upper.slices[index].included)

    def holder(self, index: int) -> PeerId:
        """The first in the cell to have result `index`: its reducer of those values, by the slice's owner."""
        return self.roster[self._shard_around(self.upper.slices[index].start).reducer].peer_id

    def makers(self, index: int) -> tuple[PeerId, ...]:
        """The member that averaged result `index`."""
        return (self.upper.slices[index].owner,)

    def _shard_around(self, position: int) -> ShardResult:
        return self.shards[bisect_right(self.shards, position, key=lambda shard: shard.start) - 1]


def with_upper(part: Commit, upper: TopCommit) -> CellsCommit:
    """What a cell's members apply."""
    return CellsCommit(**fields_of_commit(part), upper=upper)


def as_part(commit: Commit) -> CellPart:
    """A plain commit as the message that tells a cell's members of it."""
    return CellPart(**fields_of_commit(commit))
