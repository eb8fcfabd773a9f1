"""Signed commits are fetched from members as far back as they go, checked, and asked for again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from dashboard.collect.commit_fetcher import RETRY_SECONDS, Gatherer, SignedCommits
from dashboard.history.history import History
from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.listed_peers import MAX_PEERS, Look
from dashboard.observe.swarm_observer import SwarmObserver
from dht.ground.host import PeerId
from dht.records.signed_manifest import RunRecord
from tests.kit.clock import Clock
from tests.kit.dashboard.history import check_raw
from tests.kit.dashboard.members import IDS, Members, in_history, versions_of
from tests.kit.dashboard.records import (
    NOW,
    PEERS,
    RUN_ID,
    RUN_RECORD,
    FakeStore,
    bare_record,
    empty_state,
    record_of,
)


def state_at(head: int, num_peers: int = 3) -> DashboardState:
    """Peers that announce `head` for the first fragment and nothing for the second."""
    records = [
        record_of(identity, versions=(head, 0), lineage_tokens=(head * 100 + 1, 1)) for identity in PEERS[:num_peers]
    ]
    return fold(empty_state(), Look(now=NOW, num_members=3, records=records))


def test_pages_are_read_to_the_head_and_older_ones_from_whoever_has_them() -> None:
    async def check(history: History) -> None:
        first, second, third = sorted(IDS[:3])
        members = Members({first: list(range(20, 30)), second: list(range(5, 30)), third: []})
        await Gatherer(history, Clock(NOW)).gather(members.source, state_at(30))
        assert versions_of(history) == list(range(5, 30))
        (missing,) = history.view.missing
        assert (missing.fragment, missing.first_version, missing.last_version) == (0, 0, 4)

    in_history(check)


def test_rounds_of_long_ago_are_listed_over_all_fragments() -> None:
    async def check(history: History) -> None:
        clock = Clock(NOW)
        members = Members({peer_id: list(range(8)) for peer_id in IDS[:3]})

        async def fetch(donor: PeerId, fragment: int, from_version: int) -> Sequence[bytes]:
            clock.now += 1
            return await members.fetch(donor, fragment, from_version)

        records = [record_of(one, versions=(6, 8), lineage_tokens=(601, 801)) for one in PEERS[:3]]
        state = fold(empty_state(), Look(now=NOW, num_members=3, records=records))
        await Gatherer(history, clock).gather(SignedCommits(fetch, check_raw), state)
        newest = [(row.fragment, row.version) for row in history.view.rounds[:4]]
        assert [fragment for fragment, _ in newest] == [0, 1, 0, 1]
        assert newest[0][1] > newest[2][1]

    in_history(check)


def test_nobody_is_asked_when_nothing_is_new_and_missing_ones_are_asked_for_later() -> None:
    async def check(history: History) -> None:
        clock = Clock(NOW)
        members = Members({peer_id: list(range(3, 10)) for peer_id in IDS[:3]})
        gatherer = Gatherer(history, clock)
        await gatherer.gather(members.source, state_at(10))
        num_asked = len(members.asked)
        await gatherer.gather(members.source, state_at(10))
        assert len(members.asked) == num_asked
        # One more round: only the newest are asked for, and of a second member only the new one.
        for kept in members.kept.values():
            kept.append(10)
        await gatherer.gather(members.source, state_at(11))
        first, second, _ = sorted(IDS[:3])
        assert members.asked[num_asked:] == [(first, 0, 7), (second, 0, 10)]
        assert versions_of(history)[-1] == 10
        # A member that was away brings the oldest back.
        members.kept[min(IDS[:3])] = list(range(11))
        clock.now += RETRY_SECONDS
        await gatherer.gather(members.source, state_at(11))
        assert versions_of(history) == list(range(11))
        assert history.view.missing == ()

    in_history(check)


def test_donors_that_are_gone_or_lie_are_passed_over() -> None:
    async def check(history: History) -> None:
        first, second, third = sorted(IDS[:3])
        members = Members({second: [0, 1, 2], third: [0, 1, 2]}, liars=(second,))
        await Gatherer(history, Clock(NOW)).gather(members.source, state_at(3))
        assert [donor for donor, _, _ in members.asked] == [first, second, third]
        assert versions_of(history) == [0, 1, 2]

    in_history(check)


def test_versions_far_beyond_what_is_announced_are_an_invention() -> None:
    async def check(history: History) -> None:
        members = Members({peer_id: [0, 10**9] for peer_id in IDS[:3]})
        await Gatherer(history, Clock(NOW)).gather(members.source, state_at(2))
        assert versions_of(history) == []

    in_history(check)


def test_a_restart_fetches_what_was_committed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    members = Members({peer_id: list(range(10)) for peer_id in IDS[:3]})

    async def before(history: History) -> None:
        await Gatherer(history, Clock(NOW)).gather(members.source, state_at(10))

    async def after(history: History) -> None:
        shown = history.view.contributors
        assert shown[0].rounds == 10
        # Members keep the last twenty: rounds 10 to 19 went unseen and are gone.
        members.kept = {peer_id: list(range(20, 40)) for peer_id in IDS[:3]}
        await Gatherer(history, Clock(NOW)).gather(members.source, state_at(40))
        assert versions_of(history) == [*range(10), *range(20, 40)]
        assert [(row.first_version, row.last_version) for row in history.view.missing] == [(10, 19)]
        assert history.view.contributors[0].rounds == 30

    in_history(before, path)
    in_history(after, path)


@pytest.mark.parametrize("num_peers", [0, 1], ids=["a seed that waits", "a trainer"])
def test_the_observer_gathers_once_it_knows_the_run(num_peers: int) -> None:
    async def watch() -> None:
        store, gathered = FakeStore(), asyncio.Event()
        for peer in PEERS[:num_peers]:
            store.put(peer)

        async def gather(record: RunRecord, state: DashboardState) -> None:
            assert record == RUN_RECORD
            gathered.set()

        observer = SwarmObserver(RUN_ID, store, [], wall_clock=Clock(NOW), on_state=lambda state: None, gather=gather)
        watching = asyncio.create_task(observer.run())
        async with asyncio.timeout(30):
            await gathered.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(watch())


def test_vouched_peers_keep_their_rows_in_a_flood_and_withdrawn_names_are_gone() -> None:
    flood = [bare_record(f"flood-{index:05}") for index in range(MAX_PEERS + 50)]
    state = fold(empty_state(), Look(now=NOW, num_members=3, records=flood))
    assert (len(state.peers), state.num_unlisted) == (MAX_PEERS, 50)
    record = record_of(PEERS[0], name="Ada", now=NOW + 2)
    seen = fold(state, Look(now=NOW + 2, num_members=3, records=[record], vouched={IDS[0]}))
    assert "Ada" in {row.record.name for row in seen.peers}
    assert len(seen.peers) == MAX_PEERS
    hidden = fold(seen, Look(now=NOW + 4, num_members=3, withdrawn={IDS[0]}))
    assert "Ada" not in {row.record.name for row in hidden.peers}
    # Without anybody's word a newcomer finds no room.
    other = record_of(PEERS[1], now=NOW + 2)
    assert fold(state, Look(now=NOW + 2, num_members=3, records=[other])).num_unlisted == 1
