"""State transfer from several donors in virtual time: every way a donor can fail, and the bits that arrive."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from averaging.transfer.many_donors import DONORS_AT_ONCE
from averaging.transfer.snapshots import HeldSnapshots, Snapshot
from dht.ground.host import PeerId, Stream
from peer.network.anchors.fetcher import Fetched
from tests.kit.network.memory_networks import MIB, named, now
from tests.kit.rounds.donor_scene import JOINER, NUM_VALUES, Scene, assert_same, empty_state, in_scene


def seconds_of(num_donors: int, **slow: float) -> tuple[float, Fetched]:
    async def play(scene: Scene) -> tuple[float, Fetched]:
        began = now()
        found = await scene.fetch()
        return now() - began, found

    return in_scene(num_donors, play, **slow)


# ------------------------------------------------------------------------------------------------------ many donors


def test_more_donors_are_faster_and_the_bits_are_the_same() -> None:
    alone, found_alone = seconds_of(1)
    two, found_two = seconds_of(2)
    five, found_five = seconds_of(5)
    assert [len(found.donors) for found in (found_alone, found_two, found_five)] == [1, 2, 5]
    assert len(found_five.confirmed_by) == 5
    assert two < 0.65 * alone
    assert five < 0.4 * alone


@pytest.mark.parametrize("num_donors", [2, 5])
def test_a_donor_that_dies_half_way_only_slows_it_down(num_donors: int) -> None:
    async def play(scene: Scene) -> tuple[Fetched, list[PeerId]]:
        fetching = asyncio.ensure_future(scene.fetch())
        await scene.until_arrived(4 * NUM_VALUES)
        scene.network.crash(scene.donors[0].peer_id)
        return await fetching, scene.company.suspected

    found, suspected = in_scene(num_donors, play)
    assert suspected == [named(10)]
    assert found.snapshot.version == 5


@pytest.mark.parametrize("num_donors", [2, 5])
def test_a_donor_that_falls_silent_is_left_for_the_others(num_donors: int) -> None:
    async def play(scene: Scene) -> float:
        began = now()
        fetching = asyncio.ensure_future(scene.fetch())
        await scene.until_arrived(4 * NUM_VALUES)
        scene.network.stall(scene.donors[0].peer_id)
        await fetching
        return now() - began

    alone, _ = seconds_of(1)
    assert in_scene(num_donors, play) < alone + 5.0


def test_donors_that_confirm_and_then_say_nothing_hold_up_one_fragment_and_not_each() -> None:
    async def play(scene: Scene) -> None:
        silent = scene.fetcher.donors.in_own_order([donor.peer_id for donor in scene.donors])[:DONORS_AT_ONCE]
        for donor in scene.donors:
            if donor.peer_id in silent:
                donor.server._in_turn = lambda *_: asyncio.sleep(1000)  # type: ignore[method-assign]
        began = now()
        await scene.fetch()
        assert now() - began < 30.0
        assert set(scene.company.suspected) == set(silent)
        began = now()
        await scene.fetch(1)
        assert now() - began < 10.0

    in_scene(DONORS_AT_ONCE + 3, play)


@pytest.mark.parametrize("num_donors", [2, 5])
def test_a_corrupt_chunk_is_refused_and_its_donor_avoided(num_donors: int) -> None:
    async def play(scene: Scene) -> Fetched:
        liar = scene.donors[0]
        send_chunk = liar.server._send_chunk

        async def send_corrupted(stream: Stream, chunk: memoryview) -> None:
            await send_chunk(stream, memoryview(bytes(len(chunk))))

        liar.server._send_chunk = send_corrupted  # type: ignore[method-assign]
        found = await scene.fetch()
        await scene.fetch(1)
        return found

    found = in_scene(num_donors, play)
    assert named(10) not in found.donors


# ------------------------------------------------------------------------------------------------- versions move on


def test_donors_keep_the_version_that_is_being_fetched() -> None:
    async def play(scene: Scene) -> None:
        fetching = asyncio.ensure_future(scene.fetch())
        await scene.until_arrived(4 * NUM_VALUES)
        for donor in scene.donors:
            donor.advance(0)
        found = await fetching
        assert found.snapshot.version == 5
        assert scene.arrived == sorted(scene.arrived)

    in_scene(3, play)


def test_when_nobody_has_the_version_any_more_only_that_fragment_begins_again() -> None:
    async def play(scene: Scene) -> None:
        states = {fragment: empty_state() for fragment in (0, 1)}
        found: dict[int, Fetched] = {}
        progress: list[tuple[int, int]] = []

        async def adopt(index: int, fetched: Fetched) -> None:
            found[index] = fetched

        fetching = asyncio.ensure_future(
            scene.fetcher.fetch_better(states, adopt, lambda *arrived: progress.append(arrived))
        )
        while not progress or progress[-1][0] < 8 * NUM_VALUES:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.05)
        for donor in scene.donors:
            donor.advance(0)
            donor.server._snapshots = HeldSnapshots(donor)
        donors = await fetching
        assert {index: fetched.snapshot.version for index, fetched in found.items()} == {0: 6, 1: 5}
        for index, fetched in found.items():
            assert_same(fetched.snapshot, scene.world.state("main", index, fetched.snapshot.version))
        assert set(donors) == {0, 1}
        totals = [done_bytes for done_bytes, _ in progress]
        assert totals[-1] == progress[-1][1] == 16 * NUM_VALUES
        assert totals != sorted(totals)

    in_scene(2, play)


def test_nothing_is_fetched_when_nobody_has_more() -> None:
    async def not_called(index: int, fetched: Fetched) -> None:
        raise AssertionError(f"fragment {index} was fetched")

    async def play(scene: Scene) -> None:
        same = scene.world.state("main", 0, 5)
        state = empty_state()
        state.adopt(same.anchor.copy(), same.momentum.copy(), same.version, same.lineage_tokens, same.digest)
        assert await scene.fetcher.fetch_better({0: state}, not_called) == {}
        # One member that boasts does not make us fetch what the others have and we have too.
        scene.donors[0].extra_tokens = 10**9
        scene.donors[0].lineage = "invented"
        before = scene.network.received_bytes(named(JOINER))
        assert await scene.fetcher.fetch_better({0: state}, not_called) == {}
        assert scene.network.received_bytes(named(JOINER)) - before < MIB

    in_scene(3, play)


# ------------------------------------------------------------------------------------------------- who is believed


def test_one_member_alone_is_not_believed_against_two() -> None:
    async def play(scene: Scene) -> None:
        liar = scene.donors[0]
        liar.lineage, liar.extra_tokens = "invented", 10**12
        liar.known.clear()
        liar._note(0)
        found = await scene.fetcher.fetch(0, NUM_VALUES, [liar.peer_id])
        assert found is None
        names = scene.fetcher.donors.best_first(0)
        assert liar.peer_id not in names[:1]
        assert liar.peer_id not in (await scene.fetch()).donors

    in_scene(3, play)


@pytest.mark.parametrize("num_claiming", [1, 2])
def test_tokens_that_few_claim_do_not_outweigh_what_most_have(num_claiming: int) -> None:
    """2**50 tokens and a version of their own: the side of more than half of the members is fetched."""

    async def play(scene: Scene) -> None:
        for donor in scene.donors[:num_claiming]:
            donor.lineage, donor.extra_tokens = "invented", 2**50
            donor.versions = [1000, 1000]
            donor.known.clear()
            donor._note(0)
        found = await scene.fetcher.fetch(0, NUM_VALUES, scene.fetcher.donors.best_first(0))
        assert found is not None
        assert (found.snapshot.version, found.snapshot.lineage_tokens) == (5, 5000)
        assert len(found.confirmed_by) == 5 - num_claiming
        # Nor when nobody else is asked first.
        assert await scene.fetcher.fetch(0, NUM_VALUES, [scene.donors[0].peer_id]) is None

    in_scene(5, play)


def test_a_donor_that_is_a_round_ahead_is_waited_for() -> None:
    async def play(scene: Scene) -> None:
        scene.donors[0].advance(0)
        fetching = asyncio.ensure_future(scene.fetcher.fetch(0, NUM_VALUES, [scene.donors[0].peer_id]))
        await asyncio.sleep(2.5)
        assert not scene.arrived
        for donor in scene.donors[1:]:
            donor.advance(0)
        found = await fetching
        assert found is not None
        assert found.snapshot.version == 6
        assert len(found.confirmed_by) == 3

    in_scene(3, play)


def test_the_tokens_of_a_lineage_are_those_that_members_announce() -> None:
    async def play(scene: Scene) -> None:
        donor = scene.donors[0]
        honest = donor.snapshot

        async def boast(fragment: int) -> Snapshot | None:
            snapshot = await honest(fragment)
            assert snapshot is not None
            return replace(snapshot, lineage_tokens=2**50)

        donor.snapshot = boast  # type: ignore[method-assign]
        found = await scene.fetcher.fetch(0, NUM_VALUES, [donor.peer_id])
        assert found is not None
        assert found.snapshot.lineage_tokens == 5000

    in_scene(3, play)
