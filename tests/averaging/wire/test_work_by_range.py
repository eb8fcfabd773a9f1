"""Work that differs between ranges of values: nothing is lost or invented, and each range keeps its own age."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.wire.messages import MAX_PARTS, WorkPart, parts_within
from averaging.wire.work_by_range import Waiting, is_whole, oldest_base, with_bases_up_to, with_more, without

NUM_VALUES = 400
RANGES = st.lists(st.integers(0, NUM_VALUES), min_size=2, max_size=2, unique=True).map(sorted)
GIVEN = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 50), st.integers(0, 9), RANGES), max_size=12)


def by_value(work: Waiting) -> list[tuple[int, int, int]]:
    """(tokens, steps, base) of each value."""
    found = []
    for num_values, part in parts_within(work, 0, NUM_VALUES):
        found += [(part.tokens, part.steps, part.base_version if part.tokens else 0)] * num_values
    return found


@given(GIVEN)
def test_each_value_has_the_work_that_was_added_to_it(added: list[tuple[int, int, int, list[int]]]) -> None:
    work, expected, cuts = Waiting(), [(0, 0, 0)] * NUM_VALUES, set()
    for tokens, steps, base, (start, end) in added:
        work = with_more(work, NUM_VALUES, Waiting(tokens, steps, base), start, end)
        assert is_whole(work, NUM_VALUES)
        assert len(work.parts) <= MAX_PARTS
        cuts |= {start, end} - {0, NUM_VALUES}
        for value in range(start, end):
            held = expected[value]
            oldest = min(held[2], base) if held[0] else base
            expected[value] = held[0] + tokens, held[1] + steps, oldest
    if len(cuts) < MAX_PARTS:
        assert by_value(work) == expected
    token_values = sum(tokens for tokens, _, _ in expected)
    found = sum(tokens for tokens, _, _ in by_value(work))
    # Neighbours that became one have a mean in whole tokens.
    assert token_values <= found <= token_values + NUM_VALUES * len(added)
    assert (work.tokens > 0) == (token_values > 0)


def test_what_was_averaged_leaves_the_age_of_the_rest_alone() -> None:
    """A line that brings one quarter each round: no quarter gets older than the rounds between its turns."""
    work, quarters = Waiting(), [(start, start + 100) for start in range(0, NUM_VALUES, 100)]
    for version in range(12):
        work = with_more(work, NUM_VALUES, Waiting(100, 10, version), 0, NUM_VALUES)
        at = min(range(4), key=lambda at: oldest_base(work, *quarters[at]))
        sent, work = work, Waiting()
        assert version - oldest_base(sent, *quarters[at]) == min(version, 3)
        for quarter in quarters[:at] + quarters[at + 1 :]:
            work = with_more(work, NUM_VALUES, sent, *quarter)
        assert work.tokens <= 150
        assert len(work.parts) <= 4


@given(GIVEN, st.integers(0, 9))
def test_what_is_too_old_goes_alone(added: list[tuple[int, int, int, list[int]]], oldest: int) -> None:
    work = Waiting()
    for tokens, steps, base, (start, end) in added[:3]:
        work = with_more(work, NUM_VALUES, Waiting(tokens, steps, base), start, end)
    kept, gone = without(work, NUM_VALUES, lambda part: part.base_version < oldest)
    assert is_whole(kept, NUM_VALUES)
    late = {value for start, end in gone for value in range(start, end)}
    for value, (before, after) in enumerate(zip(by_value(work), by_value(kept), strict=True)):
        is_late = before[0] > 0 and before[2] < oldest
        assert after == ((0, 0, 0) if is_late else before)
        assert is_late == (value in late)


def test_no_base_is_newer_than_the_anchor_that_work_is_sent_for() -> None:
    work = with_more(Waiting(100, 10, 4), NUM_VALUES, Waiting(50, 5, 9), 0, 100)
    work = with_more(Waiting(), NUM_VALUES, replace(work, base_version=4), 0, NUM_VALUES)
    found = with_bases_up_to(with_more(Waiting(10, 1, 9), NUM_VALUES, Waiting(10, 1, 3), 0, 100), 6)
    assert [part.base_version for part in found.parts] == [3, 6]
    assert is_whole(found, NUM_VALUES)


WHOLE = with_more(Waiting(100, 10, 7), NUM_VALUES, Waiting(50, 5, 3), 0, 100)


@pytest.mark.parametrize(
    "work",
    [
        replace(WHOLE, tokens=WHOLE.tokens + 1),
        replace(WHOLE, steps=WHOLE.steps + 1),
        replace(WHOLE, base_version=7),
        replace(WHOLE, parts=WHOLE.parts[:1]),
        replace(WHOLE, parts=WHOLE.parts[::-1]),
        replace(WHOLE, parts=(WorkPart(NUM_VALUES, 0, 0, 0),), tokens=0),
        replace(WHOLE, parts=(replace(WHOLE.parts[0], steps=0), WHOLE.parts[1])),
    ],
)
def test_parts_that_do_not_fit_what_is_said_of_the_whole_are_no_work(work: Waiting) -> None:
    assert is_whole(WHOLE, NUM_VALUES)
    assert not is_whole(work, NUM_VALUES)
