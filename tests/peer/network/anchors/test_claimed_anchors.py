"""Whose anchor counts: by members that have it and by tokens in signed commits, never by what is said."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.transfer.snapshots import Snapshot
from dht.ground.errors import PeerFault
from dht.identity.keys import Identity
from dht.records.lineages import Side, replaces
from dht.records.peer_record import encode_peer_record
from peer.network.anchors.claimed_anchors import Claims
from tests.kit.records import make_record
from tests.kit.rounds.donor_scene import NUM_VALUES, Scene, in_scene
from tests.simulator.virtual_time import run_virtual

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


@given(st.lists(st.tuples(st.integers(0, 100), members), min_size=2, max_size=7))
def test_a_fork_on_any_number_of_sides_ends_and_two_never_change_places(found: list[tuple[int, int]]) -> None:
    sides = [Side(bytes([number]), tokens, size) for number, (tokens, size) in enumerate(found)]
    while len(sides) > 1:
        num_known = sum(side.num_members for side in sides)
        moves = []
        for own, other in itertools.permutations(sides, 2):
            num_elsewhere = max((one.num_members for one in sides if one not in (own, other)), default=0)
            if replaces(own, other, num_known, are_comparable=True, num_elsewhere=num_elsewhere):
                moves.append((own, other))
        assert moves
        assert not {(one, other) for one, other in moves} & {(other, one) for one, other in moves}
        own, other = moves[0]
        grown = replace(other, num_members=other.num_members + own.num_members)
        sides = [grown if side is other else side for side in sides if side is not own]


@given(st.integers(0, 2**60), st.integers(0, 2**40), st.integers(1, 10), st.integers(0, 30), st.booleans())
def test_a_quarter_of_the_members_moves_nobody(
    tokens: int, version: int, num_hostile: int, num_more: int, are_comparable: bool
) -> None:
    """Whatever they sign and claim, and also where commits are compared."""
    num_honest = 3 * num_hostile + num_more
    own, other = Side(b"own", 1, num_honest, 7), Side(b"theirs", tokens, num_hostile, version)
    assert not replaces(own, other, num_hostile + num_honest, are_comparable=are_comparable)


# --- numbers near the limits ---


@pytest.mark.parametrize(
    ("versions", "tokens"),
    [((2**53 + 1, 0), (0, 0)), ((0, 0), (2**60 + 1, 0)), ((2**63 - 1, 3), (2**63 - 1, 3))],
)
def test_a_record_beyond_what_messages_carry_is_refused(versions: tuple[int, int], tokens: tuple[int, int]) -> None:
    """What its peer says in a round could not be sent on."""
    alice = Identity.generate()
    record = make_record(alice.peer_id, versions=versions, digests=(bytes(8), bytes(8)), lineage_tokens=tokens)
    with pytest.raises(ValueError, match="expected a whole number from 0 to"):
        encode_peer_record(record, alice)


@pytest.mark.parametrize(("version", "tokens"), [(2**40 + 1, 0), (0, 2**60 + 1), (2**53, 0)])
def test_a_state_beyond_what_rounds_can_count_on_from_is_refused(version: int, tokens: int) -> None:
    """Near the limit of messages its takers would part from the others with the next round."""

    async def play(scene: Scene) -> None:
        donor = scene.donors[0]
        honest = donor.snapshot

        async def boast(fragment: int) -> Snapshot | None:
            snapshot = await honest(fragment)
            return None if snapshot is None else replace(snapshot, version=version, lineage_tokens=tokens)

        donor.snapshot = boast  # type: ignore[method-assign]
        assert await scene.fetcher.fetch(0, NUM_VALUES, [donor.peer_id]) is None

    in_scene(1, play)


@pytest.mark.parametrize(
    ("num_donors", "version", "is_taken"), [(2, 2**40 + 9, True), (2, 2**53, False), (1, 2**40, True)]
)
def test_what_a_swarm_counted_on_from_a_liars_version_is_fetched(num_donors: int, version: int, is_taken: bool) -> None:
    """Else one liar that met a lone peer would close the run to every newcomer after it."""

    async def play(scene: Scene) -> None:
        for donor in scene.donors:
            donor.versions[0] = version - 1
            donor.advance(0)
        names = [donor.peer_id for donor in scene.donors]
        assert (await scene.fetcher.fetch(0, NUM_VALUES, names) is not None) == is_taken

    in_scene(num_donors, play)


@pytest.mark.parametrize("are_comparable", [True, False])
def test_a_version_that_nobody_can_have_counted_up_to_needs_more_than_half(are_comparable: bool) -> None:
    own = Side(b"own", 1, 1)
    for num_members, num_known in ((1, 2), (2, 4), (2, 5)):
        other = Side(b"theirs", 2**50, num_members, 2**40 + 1)
        assert not replaces(own, other, num_known, are_comparable=are_comparable)
    assert replaces(own, Side(b"theirs", 2**50, 3, 2**40 + 1), 5, are_comparable=are_comparable)


# --- members that do not answer ---


class SlowWitnesses(Claims):
    """Members that answer after so many seconds; with None they sleep, and a stream to them fails after 15 s."""

    def __init__(self, seconds: list[float | None]) -> None:
        self._seconds = {f"peer{number}": one for number, one in enumerate(seconds)}

    async def _ask(self, member: str, fragment: int, version: int) -> bytes:
        seconds = self._seconds[member]
        await asyncio.sleep(15.0 if seconds is None else seconds)
        if seconds is None:
            raise PeerFault(member, "did not answer")
        return member.encode()

    async def play(self) -> tuple[set[str], float]:
        """(who answered, after how many seconds)."""
        clock = asyncio.get_running_loop().time
        began_at = clock()
        digests = await self.digests_of(sorted(self._seconds), 0, 7)
        assert all(digest == name.encode() for name, digest in digests.items())
        return set(digests), clock() - began_at


@pytest.mark.parametrize(
    ("seconds", "most_seconds", "num_answers"),
    [
        ([0.2, 0.3, 0.4, None], 4.0, 3),  # one that sleeps costs a moment
        ([1.0, 1.5, 5.0, None, 1.2], 6.0, 4),  # on slow lines, a longer one
        ([0.2, 0.3, None, None], 15.0, 2),  # half is not most: they may be those that lie
        ([0.2, 9.0, 9.5], 9.5, 3),
        ([None, None], 15.0, 0),
        ([], 0.0, 0),
    ],
)
def test_a_member_that_sleeps_is_not_waited_for_once_most_have_answered(
    seconds: list[float | None], most_seconds: float, num_answers: int
) -> None:
    answered, took_seconds = run_virtual(SlowWitnesses(seconds).play())
    assert len(answered) == num_answers
    assert took_seconds == pytest.approx(most_seconds, abs=0.1)
