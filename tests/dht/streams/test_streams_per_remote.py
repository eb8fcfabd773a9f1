"""How many streams a remote may have: nobody keeps others out."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import PeerFault
from dht.streams.streams_per_remote import StreamCounts, gives_way
from tests.kit.network.memory_networks import named

GREEDY, MODEST = named(1), named(2)


@given(num_open=st.dictionaries(st.integers(0, 9), st.integers(1, 40), max_size=10), asker=st.integers(0, 9))
def test_where_all_places_are_taken_who_has_most_gives_way_to_who_has_fewer(
    num_open: dict[int, int], asker: int
) -> None:
    before = {named(number): count for number, count in num_open.items()}
    own = before.get(named(asker), 0)
    greatest = gives_way(before, named(asker))
    if greatest is None:
        assert all(count <= own + 1 for count in before.values())
    else:
        assert before[greatest] == max(before.values()) > own + 1


def test_three_that_take_all_places_keep_nobody_out() -> None:
    num_open = {named(number): 171 for number in range(3)}
    for number in range(3, 100):
        greatest = gives_way(num_open, named(number))
        assert greatest is not None
        num_open[greatest] -= 1
        num_open[named(number)] = 1
    # And what the three lost they do not take back from those.
    assert gives_way(num_open, named(0)) is None


def test_a_remote_has_so_many_streams_and_no_more() -> None:
    counts = StreamCounts(2)
    with contextlib.ExitStack() as opened:
        for remote in (GREEDY, GREEDY, MODEST):
            opened.enter_context(counts.one_more(remote))
        with pytest.raises(PeerFault, match="opened more than 2 streams"):
            opened.enter_context(counts.one_more(GREEDY))
    with counts.one_more(GREEDY):
        assert counts._num_open == {GREEDY: 1}
    assert not counts._num_open
