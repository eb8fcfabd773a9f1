"""The order of blocks reads every block of any groups once, at positions that are blocks."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.records.data_reading import NUM_UNITS
from peer.data_division.block_order import BlockOrder
from peer.data_division.others_reading import view_of
from peer.mailbox.mailbox import Mailbox
from peer.trainer.data.context_blocks import GROUP_POSITIONS, GroupedStream, OneGroup

CONTEXT = 4


def stream(lengths, missing=()):
    def opened(group):
        if group in missing:
            return None
        return str(group), np.full(lengths[group], group % 250, np.uint8)

    return GroupedStream(len(lengths), 256, opened, identity=1)


@settings(max_examples=4)
@given(lengths=st.lists(st.integers(0, 60), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_each_block_of_every_group_once(lengths, seed):
    groups = stream(lengths)
    order = BlockOrder(seed, "me")
    if not any(length > CONTEXT for length in lengths):
        with pytest.raises(ValueError, match="one block"):
            order.next(1, CONTEXT, groups)
        return
    found = []
    while order.state()["epoch"] == 0:
        found += order.next(1, CONTEXT, groups).tolist()
    found.pop()  # the first of the next epoch
    for group, length in enumerate(lengths):
        starts = sorted(position % GROUP_POSITIONS for position in found if position // GROUP_POSITIONS == group)
        assert all(later - earlier == CONTEXT for earlier, later in itertools.pairwise(starts))
        assert not starts or (starts[0] < CONTEXT and starts[-1] + CONTEXT < length)
        # Longer groups begin at a place of the epoch, so that they may have one block less.
        num_blocks = max(0, length - 1) // CONTEXT
        assert num_blocks - (length > 2 * CONTEXT) <= len(starts) <= num_blocks
    assert len(set(found)) == len(found)


def test_many_groups_share_units():
    groups = stream([9] * (NUM_UNITS + 500))
    order = BlockOrder(0, "me")
    found = []
    while order.state()["epoch"] == 0:
        found += order.next(3, 8, groups).tolist()
    read = Counter(position // GROUP_POSITIONS for position in found[: NUM_UNITS + 500])
    assert read == dict.fromkeys(range(NUM_UNITS + 500), 1)


def test_two_peers_share_an_epoch_through_their_mailboxes():
    """What one tells, the other is shown, as the network processes do it; nobody waits."""
    data = OneGroup(25_001)
    boxes = {name: Mailbox.in_process([4]) for name in ("a", "b")}
    orders = {name: BlockOrder(0, name, box.others_reading.read, box.own_reading.write) for name, box in boxes.items()}
    found: Counter[int] = Counter()
    while any(order.state()["epoch"] == 0 for order in orders.values()):
        for mine, theirs in (("a", "b"), ("b", "a")):
            if orders[mine].state()["epoch"] == 0:
                found.update(orders[mine].next(8 if mine == "a" else 24, 5, data).tolist())
            reading, own = boxes[theirs].own_reading.read(), boxes[mine].own_reading.read()
            if reading is not None and own is not None:
                boxes[mine].others_reading.write(view_of([(theirs, reading)], own.data, own.epoch))
    assert len(found) >= 4_990
    assert sum(found.values()) - len(found) < 150


def test_it_goes_on_from_a_checkpoint():
    data, order = OneGroup(50_000), BlockOrder(0, "me")
    for _ in range(30):
        order.next(7, CONTEXT, data)
    again = BlockOrder(0, "me")
    again.restore(json.loads(json.dumps(order.state())))
    assert [order.next(7, CONTEXT, data).tolist() for _ in range(100)] == [
        again.next(7, CONTEXT, data).tolist() for _ in range(100)
    ]


def test_what_comes_next_is_wanted_ahead():
    wanted: list[list[int]] = []
    stock = SimpleNamespace(
        want=lambda chosen: wanted.append(list(chosen)), let_go=lambda: (), is_full=False, failing=set()
    )
    groups = GroupedStream(40, 256, lambda group: (str(group), np.zeros(500, np.uint8)), 1, stock)
    order = BlockOrder(0, "me")
    read = []
    for _ in range(100):
        read += (order.next(4, CONTEXT, groups) // GROUP_POSITIONS).tolist()
    assert read[0] == wanted[0][0]
    assert set(read) <= {group for chosen in wanted for group in chosen}
    assert all(1 <= len(chosen) <= 3 for chosen in wanted)


def test_files_that_are_gone_keep_no_others_away():
    here, gone = {0}, set(range(1, 20))

    class Stock:
        """Tries what is wanted in turn, as the real one does."""

        is_full = False

        def __init__(self) -> None:
            self.failing: set[int] = set()

        def want(self, groups: Sequence[int]) -> None:
            self.failing |= gone & set(groups)
            here.update(set(groups) - gone)

        def let_go(self) -> Sequence[int]:
            return ()

    groups = GroupedStream(
        40, 256, lambda one: (str(one), np.zeros(100, np.uint8)) if one in here else None, 1, Stock()
    )
    order, num_waits = BlockOrder(0, "me"), 0
    while num_waits < 40:
        num_waits += order.next(4, CONTEXT, groups) is None
    assert here == set(range(40)) - gone


def test_without_new_data_the_order_reads_again_what_is_here():
    groups = stream([100, 100], missing=(1,))
    order = BlockOrder(0, "me")
    found = []
    while (positions := order.next(4, CONTEXT, groups)) is not None:
        found += positions.tolist()
    assert len(set(found)) == len(found) >= 20
    again = order.again(40, CONTEXT, groups)
    assert again is not None
    assert len(again) == 40
    assert set((again // GROUP_POSITIONS).tolist()) == {0}
    assert BlockOrder(0, "me").again(4, CONTEXT, stream([9], missing=(0,))) is None
