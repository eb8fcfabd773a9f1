"""What two-level commits prove: signatures, credit over the parts of all cells, and how large they may be."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from averaging.cells.formation import grid_of, plan_cell, plan_slices, relayed_to
from averaging.signing.commit_credit import counted, totals
from averaging.signing.receipt_file import ReceiptFault, RunFrame, line_of, read_receipts
from averaging.wire import frames
from averaging.wire.cell_messages import MAX_GRID_SHARDS, as_part, with_upper
from averaging.wire.field_checks import MAX_HEADER_BYTES
from averaging.wire.messages import (
    MAX_CELL_ROSTER,
    MAX_CELLS,
    MAX_SLICES,
    MAX_STEPS,
    MAX_TOKENS,
    CellRow,
    Commit,
    RosterEntry,
    ShardResult,
    SliceResult,
    TopCommit,
)
from dht.errors import UsageFault
from dht.host import PeerId
from peer.config.averaging_rules import check_site
from peer.config.manifest import RunManifest
from tests.kit.network.memory_networks import named
from tests.kit.notaries import CHECKER, SCOPE, is_signed
from tests.kit.rounds.cell_swarm import CellSwarm
from tests.kit.rounds.round_swarm import BLOCK

FRAME = RunFrame(SCOPE.run_id, SCOPE.manifest_hash, (8 * BLOCK,))


@pytest.fixture(scope="module")
def swarm():
    found = CellSwarm(9, cell_size=2, num_blocks=8)
    for round_ in range(2):
        for name in found.names:
            found.work(name)
        for _ in found.run(random.Random(round_)):
            pass
    return found


def lines_of(swarm):
    return [line_of(frames.encode(commit), FRAME) for name in swarm.names for commit in swarm.members[name].lineage]


def test_receipts_of_all_cells_credit_each_member_once(swarm):
    lines = lines_of(swarm)
    receipts = read_receipts([*lines, *lines[:3]], is_signed)
    rounds = counted(receipts.rounds)
    assert [one.version for one in rounds] == [0, 1]
    found = {total.peer_id: total for total in totals(rounds)}
    assert set(found) == set(swarm.names)
    assert {total.milli_reported for total in found.values()} == {1000 * 2 * swarm.tokens}
    # Only who is alone in its cell and leads above is witnessed by nobody else.
    assert sum(total.milli_witnessed > 0 for total in found.values()) >= 8


def test_a_part_that_is_not_in_the_round_proves_nothing(swarm):
    first, second = swarm.members[swarm.names[0]].lineage
    assert not CHECKER.objection(first)
    assert "not the one that its round has averaged" in CHECKER.objection(with_upper(second.plain, first.upper))
    slices = (replace(first.upper.slices[0], included=(0,)), *first.upper.slices[1:])
    assert CHECKER.objection(with_upper(first.plain, replace(first.upper, slices=slices)))
    rows = (replace(first.upper.cells[0], tokens=10**9), *first.upper.cells[1:])
    with pytest.raises(ReceiptFault):
        read_receipts(
            [line_of(frames.encode(with_upper(first.plain, replace(first.upper, cells=rows))), FRAME)], is_signed
        )


def test_the_largest_commit_fits_its_header():
    roster = tuple(RosterEntry(named(n), MAX_TOKENS, MAX_STEPS, 2**53, 2**53, 100) for n in range(MAX_CELL_ROSTER))
    roster = tuple(sorted(roster, key=lambda entry: entry.peer_id))
    everybody, signature = tuple(range(MAX_CELL_ROSTER)), bytes(range(64))
    size = 2**40
    shards = tuple(
        ShardResult(
            size // MAX_GRID_SHARDS * n, size // MAX_GRID_SHARDS * (n + 1), 127, bytes(16), everybody, signature
        )
        for n in range(MAX_GRID_SHARDS)
    )
    part = Commit(0, 2**53, 10_000, roster[0].peer_id, bytes(16), roster, shards, bytes(16), signature)
    leaders = [roster[0].peer_id, *(named(1000 + n) for n in range(MAX_CELLS - 1))]
    cells = tuple(
        CellRow("x" * 45 + f"{n:03}", leader, bytes(32), 128, 2**57, 1e300, 2**57, 1e30, 2**59)
        for n, leader in enumerate(leaders)
    )
    slices = tuple(
        SliceResult(
            size // MAX_SLICES * n, size // MAX_SLICES * (n + 1), 255, named(n), bytes(16), tuple(range(256)), signature
        )
        for n in range(MAX_SLICES)
    )
    upper = TopCommit(0, 2**53, 10_000, named(1), bytes(16), cells, slices, bytes(16), signature)
    for message in (as_part(part), upper, with_upper(part, upper)):
        assert len(frames.encode(message)) < MAX_HEADER_BYTES


@pytest.mark.parametrize("num_values", [100, 8192, 70_000, 4_000_000])
@pytest.mark.parametrize("num_cells", [1, 3, 200])
def test_slices_cover_all_values_and_lie_in_shards(num_values, num_cells):
    grid = grid_of(num_values, 128, 32)
    assert [start for start, _ in grid] == [0, *(end for _, end in grid[:-1])]
    assert grid[-1][1] == num_values
    shards = plan_cell(num_values, 128, 32, [20e6, 50e6, 0.0, 100e6], [True, True, True, False])
    assert [(shard.start, shard.end) for shard in shards] == list(grid)
    assert 3 not in {shard.reducer for shard in shards}
    reducers = [[named(cell) for _ in grid] for cell in range(num_cells)]
    reducers[0] = [PeerId("") for _ in grid]
    slices = plan_slices(num_values, 128, 32, reducers)
    assert len(slices) <= MAX_SLICES
    assert [one.start for one in slices] == [0, *(one.end for one in slices[:-1])]
    assert slices[-1].end == num_values
    assert all(any(start <= one.start < one.end <= end for start, end in grid) for one in slices)
    assert all((one.cell > 0 and one.owner) or num_cells == 1 for one in slices)
    assert all(one.start % 128 == 0 for one in slices)


@pytest.mark.parametrize("num_cells", [1, 8, 9, 128, 256])
def test_what_the_top_leader_says_reaches_each_cell_once(num_cells):
    rows = tuple(CellRow(f"8/{n}", named(n), bytes(32), 1, 1, 1.0, 1, 1.0, 0) for n in range(num_cells))
    reached = list(relayed_to(rows, None))
    for leader in reached:
        reached += relayed_to(rows, leader)
    assert reached == [row.leader for row in rows]


def test_a_site_that_does_not_exist_is_refused_in_a_sentence():
    open_run = RunManifest(name="run")
    check_site(open_run, "anywhere")
    run = RunManifest.model_validate(
        {"name": "run", "network": {"sites": ["east", "west"]}, "averaging": {"cell_by": "site"}}
    )
    check_site(run, "west")
    check_site(run, "", trains=False)
    with pytest.raises(UsageFault, match="site 'north' is not one of the run's; expected east, west"):
        check_site(run, "north")
    with pytest.raises(UsageFault, match="no site was given; expected --site"):
        check_site(run, "")
