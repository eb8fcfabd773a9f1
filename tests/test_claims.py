"""Whose anchor counts: by members that have it and by tokens in signed commits, never by what is said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dht.lineages import Side, heaviest_side, is_majority, outnumbers, replaces

members = st.integers(1, 40)
sides = st.builds(Side, st.binary(min_size=2, max_size=2), st.integers(0, 2**60), members, st.integers(0, 2**40))


@given(sides, sides, st.integers(0, 40), st.booleans())
def test_both_sides_of_a_fork_find_the_same(one: Side, other: Side, num_neutral: int, are_comparable: bool) -> None:
    """Otherwise they would change places, again and again."""
    if one.digest == other.digest:
        return
    num_known = one.num_members + other.num_members + num_neutral
    here = replaces(one, other, num_known, are_comparable=are_comparable)
    there = replaces(other, one, num_known, are_comparable=are_comparable)
    assert not (here and there)
    if are_comparable:
        assert here or there, "a fork whose commits are known ends"


@given(st.integers(0, 2**60), st.integers(0, 2**40), st.integers(1, 10), st.integers(0, 30), st.booleans())
def test_a_quarter_of_the_members_moves_nobody(
    tokens: int, version: int, num_hostile: int, num_more: int, are_comparable: bool
) -> None:
    """Whatever they sign and claim, and also where commits are compared."""
    num_honest = 3 * num_hostile + num_more
    own, other = Side(b"own", 1, num_honest, 7), Side(b"theirs", tokens, num_hostile, version)
    assert not replaces(own, other, num_hostile + num_honest, are_comparable=are_comparable)


@given(st.integers(0, 2**40), members, members, st.integers(0, 40))
def test_without_signed_commits_only_more_than_half_counts(version: int, own: int, num: int, num_neutral: int) -> None:
    other, num_known = Side(b"theirs", 0, num, version), own + num + num_neutral
    assert replaces(Side(b"own", 0, own), other, num_known, are_comparable=False) == is_majority(num, num_known)


def test_of_equal_sides_the_one_with_more_signed_tokens_counts() -> None:
    heavy, light = Side(b"a", 11, 2), Side(b"z", 10, 2)
    assert replaces(light, heavy, 4, are_comparable=True)
    assert not replaces(heavy, light, 4, are_comparable=True)
    # One that nobody contradicts but this peer, as two peers are: the same.
    assert replaces(Side(b"z", 10, 1), Side(b"a", 11, 1), 2, are_comparable=True)


def test_one_member_is_nothing_against_two_and_a_third_nothing_against_two_thirds() -> None:
    assert outnumbers(Side(b"", 0, 2), Side(b"", 9, 1))
    assert not outnumbers(Side(b"", 0, 4), Side(b"", 9, 2))
    assert outnumbers(Side(b"", 0, 5), Side(b"", 9, 2))


@given(st.lists(sides, min_size=1))
def test_in_a_view_the_most_members_count(found: list[Side]) -> None:
    assert heaviest_side(found).num_members == max(side.num_members for side in found)
