"""One peer's way through the epochs, alone, among others and among liars."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.training.epoch_coverage import simulate_epoch
from dht.records.data_reading import NO_UNIT, NUM_UNITS, READING_BYTES, Reading, reading_of
from peer.data_division.others_reading import DONE, TAKEN, done_to, key_of, standings, view_of
from peer.data_division.unit_choice import UnitWalk
from tests.kit.tiers import sampled

SIZE = 3
ALL = done_to(np.ones(NUM_UNITS, bool))
NONE = done_to(np.zeros(NUM_UNITS, bool))


def size_of(epoch: int, unit: int) -> int:
    return SIZE


def read(walk: UnitWalk, num_blocks: int, view=None) -> list[tuple[int, int, int]]:
    spans = walk.next_blocks(num_blocks, size_of, *([] if view is None else [view]))
    assert spans is not None
    return [(span.epoch, span.unit, span.first + index) for span in spans for index in range(span.count)]


def test_what_others_have_is_left_out_and_of_two_one_lets_go():
    walk = UnitWalk(key_of("me"))
    first = read(walk, 1)[0][1]
    done = np.zeros(NUM_UNITS, bool)
    done[first] = True
    others = [("other", Reading(0, 0, 7, done_to(done)))]
    view = view_of(others, 0, 0)
    ranks = standings(key_of("me"), 0, None, view).ranks
    assert (ranks[first], ranks[7]) == (DONE, TAKEN)
    units = {unit for _ in range(NUM_UNITS) for epoch, unit, _ in read(walk, SIZE, view) if epoch == 0}
    assert not units & {first, 7}
    assert len(units) == NUM_UNITS - 2

    for mine, theirs in (("me", "other"), ("other", "me")):
        both, idle = (view_of([(theirs, Reading(0, 0, unit, NONE))], 0, 0) for unit in (first, NO_UNIT))
        is_owner = standings(key_of(mine), 0, None, idle).ranks[first] == 0
        assert standings(key_of(mine), 0, first, both).ranks[first] == (0 if is_owner else TAKEN)


def test_a_newcomer_begins_where_the_swarm_is():
    readings = [(f"peer {number}", Reading(0, epoch, number, NONE)) for number, epoch in enumerate((4, 4, 5, 4, 9))]
    walk = UnitWalk(key_of("new"))
    assert read(walk, 1, view_of(readings, 0, 0))[0][0] == 4


def test_a_liar_makes_the_order_random_at_worst():
    """One of five says in each record that all is done, in whatever epoch the victim is."""
    walk, found = UnitWalk(key_of("me")), []
    for _ in range(200):
        others = [(f"peer {number}", Reading(0, walk.epoch, number, NONE)) for number in range(3)]
        view = view_of([*others, ("liar", Reading(0, walk.epoch, NO_UNIT, ALL))], 0, walk.epoch)
        blocks = read(walk, 60, view)
        assert len(set(blocks)) == 60
        found += [unit for _, unit, _ in blocks]
    # It is never without blocks, and no unit is kept from it.
    assert len(set(found)) > 0.9 * NUM_UNITS
    # An epoch that one peer alone claims moves nobody there.
    honest = [("a", Reading(0, 0, 1, NONE)), ("b", Reading(0, 0, 2, NONE))]
    far = view_of([*honest, ("liar", Reading(0, 2**32 - 1, 3, ALL))], 0, 0)
    assert read(UnitWalk(key_of("new")), 1, far)[0][0] == 0


def test_data_that_is_not_here_is_waited_for_and_nothing_is_lost():
    walk, here = UnitWalk(3), set(range(0, NUM_UNITS, 2))

    def size(epoch: int, unit: int) -> int | None:
        return SIZE if unit in here else None

    found = []
    while spans := walk.next_blocks(4, size):
        found += [(span.unit, span.first + index) for span in spans for index in range(span.count)]
    assert {unit for unit, _ in found} <= here
    again = walk.again(10, size, 1)
    assert again is not None
    assert sum(span.count for span in again) == 10
    assert {span.unit for span in again} <= here
    here |= set(range(NUM_UNITS))
    while walk.epoch == 0 and (spans := walk.next_blocks(4, size)):
        found += [(span.unit, span.first + index) for span in spans if span.epoch == 0 for index in range(span.count)]
    assert Counter(found) == {(unit, block): 1 for unit in range(NUM_UNITS) for block in range(SIZE)}
    assert UnitWalk(3).again(10, lambda epoch, unit: None, 1) is None


@pytest.mark.parametrize(
    ("num_peers", "crash", "newcomers"),
    sampled([(8, 1 / 3, 4), (16, 1 / 3, 4), (16, 0.0, 0), (16, 1 / 3, 0)], one_in=4),
)
def test_an_epoch_of_a_swarm_is_read_whole_and_little_of_it_twice(num_peers: int, crash: float, newcomers: int) -> None:
    found = simulate_epoch(
        num_peers=num_peers, crash_fraction=crash, num_newcomers=newcomers, num_blocks=10_000, tick_seconds=10.0
    )
    assert found.covered >= 0.98
    assert found.repeated <= 0.05


def test_readers_that_have_not_heard_of_each_other_begin_with_what_is_most_surely_their_own() -> None:
    """Ten records per epoch; with the lowest scores first it is 5.4 %."""
    found = [
        simulate_epoch(num_peers=2, crash_fraction=0, num_blocks=10_000, epoch_seconds=100, tick_seconds=1.0, seed=seed)
        for seed in range(2)
    ]
    assert min(one.covered for one in found) == 1
    assert sum(one.repeated for one in found) / len(found) <= 0.04


def test_a_reader_that_stops_keeps_nothing() -> None:
    """Its record lives on, and its units fall to others when it says nothing new."""
    idle = Reading(0, 0, NO_UNIT, NONE)
    found = standings(key_of("other"), 0, None, view_of([("me", idle)], 0, 0))
    its = np.flatnonzero(found.ranks == 0)
    its = its[np.argsort(~found.scores[its])].tolist()
    walk, units = UnitWalk(key_of("me")), set()

    def read_on(num_done: int, num_units: int) -> None:
        done = np.zeros(NUM_UNITS, bool)
        done[its[:num_done]] = True
        view = view_of([("other", Reading(0, 0, NO_UNIT, done_to(done)))], 0, 0)
        units.update(unit for _ in range(num_units) for epoch, unit, _ in read(walk, SIZE, view) if epoch == 0)

    read_on(0, 1)
    read_on(100, NUM_UNITS - 1 - 200)
    assert walk.epoch == 0
    assert set(its) & units == set(its[200:])
    for _ in range(10):
        read_on(100, 10)
    assert set(its[100:]) <= units


def test_a_reading_survives_a_record_and_anything_else_is_refused() -> None:
    reading = Reading(2**32 - 1, 2**32 - 1, NUM_UNITS - 1, ALL)
    assert len(reading.to_bytes()) == READING_BYTES == 138
    assert reading_of(reading.to_bytes()) == reading
    assert reading_of(b"") is None
    for content in (bytes(137), bytes(139), b"\xff" * 8 + b"\x04\x00" + bytes(128)):
        with pytest.raises(ValueError, match="a reading of"):
            reading_of(content)
