"""Which members average together first, and which of them average which values with the other cells. Pure.

A round of many members runs on two levels. The members of a *cell* average with each other as in a flat round, on
shards that are the same in all cells (the *grid*). Each shard of the grid is cut into *slices*. One cell owns each
slice, and its reducer of that shard averages the cells' means of the slice.

How many cells a round has follows from the commit before it, so that everybody who can take part agrees. Cells double
where they would have more than 1.5 times `cell_size` members in the mean, and halve below 0.6 times. Between those
nothing changes, so a swarm that breathes does not change its cells all the time. A peer's cell is a prefix of the hash
of its PeerId, so that it stays in it, or the cell is its site.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, repeat

from averaging.codec.codec import Codec, make_codec
from averaging.rounds.shard_plan import MIN_SHARD_VALUES, plan_shards
from averaging.wire.cell_messages import MAX_GRID_SHARDS, SliceRow
from averaging.wire.messages import MAX_CELLS, MAX_SLICES, CellRow, Commit, ShardPlan
from dht.host import PeerId
from dht.records.key_levels import prefix_of

SPLIT_ABOVE = 1.5
"""So many times `cell_size` members in the mean cell double the cells."""
MERGE_BELOW = 0.6
"""So many times `cell_size` members halve them."""
MAX_DEPTH = MAX_CELLS.bit_length() - 1
"""Binary logarithm of `MAX_CELLS`."""
GRID_SHARDS_PER_MEMBER = 2
"""Reducers with faster lines take more shards; a grid finer than this would only make commits longer."""
SLICES_PER_CELL = 16
"""An owner then sends a sixteenth of the fragment at most on top of its share; more only make commits longer."""
RELAYS = 8
"""Cell leaders to whom one passes on what the top leader says: its work does not grow with the cells."""
MIN_SLICE_VALUES = 2048
"""Smaller slices (1 kB at 4 bits) would spend more than a fifth of their bytes on headers."""


@dataclass(frozen=True, slots=True)
class CellRule:
    """How a run forms cells.

    Attributes:
        cell_size: members that a cell should have.
        site_of: the site of a peer, if cells are sites; None: cells are formed by hash.
    """

    cell_size: int = 32
    site_of: Callable[[PeerId], str] | None = None


def cell_codec_of(codec: Codec) -> Codec:
    """How the means of cells travel: at 8 bits where contributions have 2 to 4, at 16 where they have 8.

    Against 4 bits the error of the second quantisation is a sixteenth, its variance 0.3 % of the first one's.
    """
    name = {"int8": "fp16", "fp16": "fp32", "fp32": "fp32"}.get(codec.name, "int8")
    return make_codec(name, codec.block_size)


def depth_for(num_members: int, depth: int, cell_size: int) -> int:
    """log2 of the number of cells of the next round, after one of `num_members` in 2^depth cells; 0: a flat round."""
    while depth < MAX_DEPTH and num_members > SPLIT_ABOVE * cell_size * 2**depth:
        depth += 1
    while depth and num_members < MERGE_BELOW * cell_size * 2**depth:
        depth -= 1
    return depth


def depth_after(commit: Commit, cell_size: int) -> int:
    """The depth of the round after `commit`: the same for everybody who knows it."""
    cells = commit.cells
    if cells:
        return depth_for(sum(row.num_members for row in cells), depth_of(cells[0].name), cell_size)
    return depth_for(len(commit.roster), 0, cell_size)


@lru_cache(maxsize=16384)
def hash_cell(peer_id: PeerId, depth: int) -> str:
    """The cell of a peer among 2^depth: the first bits of a hash of its id, by which the records' keys are split, too.

    So the key that a peer reads in each look holds members of its own cell.
    """
    return f"{depth}/{prefix_of(peer_id, depth)}"


@lru_cache(maxsize=8)
def hash_cells(peer_ids: tuple[PeerId, ...], depth: int) -> Mapping[str, tuple[PeerId, ...]]:
    """The members of each of 2^depth cells, see `members_of_cells`. All fragments of a model ask for the same."""
    return members_of_cells(peer_ids, map(hash_cell, peer_ids, repeat(depth)))


def members_of_cells(peer_ids: Sequence[PeerId], names: Iterable[str]) -> Mapping[str, tuple[PeerId, ...]]:
    """Cell -> which of these peers are in it, in their order; `names` are the cells of the peers."""
    cells: defaultdict[str, list[PeerId]] = defaultdict(list)
    for peer_id, name in zip(peer_ids, names, strict=True):
        cells[name].append(peer_id)
    return {name: tuple(members) for name, members in cells.items()}


def site_cell(site: str) -> str:
    return f"site {site}"


def depth_of(cell: str) -> int:
    """The depth in a cell's name; 0 for a site."""
    depth, slash, _ = cell.partition("/")
    return int(depth) if slash and depth.isascii() and depth.isdigit() and len(depth) < 3 else 0


def grid_of(num_values: int, block_size: int, cell_size: int) -> tuple[tuple[int, int], ...]:
    """The shards [start, end) that all cells of a round have in common."""
    count = max(1, min(GRID_SHARDS_PER_MEMBER * cell_size, MAX_GRID_SHARDS, num_values // MIN_SHARD_VALUES))
    num_blocks = -(-num_values // block_size)
    cuts = [min(num_values, num_blocks * index // count * block_size) for index in range(count + 1)]
    return tuple((start, end) for start, end in pairwise(cuts) if start < end)


def plan_cell(
    num_values: int, block_size: int, cell_size: int, upload_bits_per_second: Sequence[float], reachable: Sequence[bool]
) -> tuple[ShardPlan, ...]:
    """The reducers of a cell and their shards of the grid: in proportion to upload rates, as in a flat round."""
    flat = plan_shards(num_values, block_size, upload_bits_per_second, reachable)
    shards, at = [], 0
    for start, end in grid_of(num_values, block_size, cell_size):
        while flat[at].end <= (start + end) // 2:
            at += 1
        shards.append(ShardPlan(start, end, flat[at].reducer))
    return tuple(shards)


def relayed_to(cells: Sequence[CellRow], leader: PeerId | None) -> tuple[PeerId, ...]:
    """The cell leaders to whom `leader` passes on what the top leader says; None: those to whom that one does."""
    leaders = [row.leader for row in cells]
    if leader is None:
        return tuple(leaders[:RELAYS])
    first = RELAYS * (leaders.index(leader) + 1) if leader in leaders else len(leaders)
    return tuple(leaders[first : first + RELAYS])


def plan_slices(
    num_values: int, block_size: int, cell_size: int, reducers: Sequence[Sequence[PeerId]]
) -> tuple[SliceRow, ...]:
    """The slices of a round, and who averages each across cells.

    Args:
        reducers: per cell, the reducer of each shard of the grid; empty where that cell has no mean of it.

    Every cell owns about equally many slices, in turn. A shard that no cell has a mean of is one slice without
    an owner.
    """
    grid = grid_of(num_values, block_size, cell_size)
    num_cells = len(reducers)
    slices = []
    for number, (start, end) in enumerate(grid):
        able = [cell for cell in range(num_cells) if reducers[cell][number]]
        if not able:
            slices.append(SliceRow(start, end, 0, PeerId("")))
            continue
        num_blocks = -(-(end - start) // block_size)
        wanted = -(-SLICES_PER_CELL * num_cells // len(grid))
        most = min(len(able), MAX_SLICES // len(grid), num_blocks, (end - start) // MIN_SLICE_VALUES)
        count = max(1, min(wanted, most))
        cuts = [min(end, start + num_blocks * index // count * block_size) for index in range(count + 1)]
        for index, (first, last) in enumerate(pairwise(cuts)):
            cell = able[(number * count + index) % len(able)]
            slices.append(SliceRow(first, last, cell, reducers[cell][number]))
    return tuple(slices)
