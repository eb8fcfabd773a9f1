"""An observer weighs words by signed work: free records and made-up commits weigh nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from averaging.wire import frames
from averaging.wire.messages import Commit
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.identity.keys import Identity, verify
from peer.observe.signed_work import DONOR_SECONDS, signed_work
from tests.kit.averages.credited_rounds import RUN, A, B, C, D, after, commit_of
from tests.kit.clock import nothing_for
from tests.kit.records import make_record


def chain(*rounds: tuple[Identity, ...], tokens: int = 100) -> list[Commit]:
    commits: list[Commit] = []
    for version, people in enumerate(rounds):
        previous = after(commits[-1]) if commits else b""
        commits.append(commit_of(version, people, tokens=tokens, previous=previous))
    return commits


def work_with(given: dict[Identity, Sequence[Commit] | None], silent: int = 0) -> dict[PeerId, int]:
    """None: gives bytes that are no commit. `silent`: further members, whose records are all that there is of them."""
    free = [f"free{number}" for number in range(silent)]
    records = [make_record(name, versions=(9, 9)) for name in (*(one.peer_id for one in given), *free)]
    by_id = {one.peer_id: commits for one, commits in given.items()}

    async def fetch(donor: PeerId, fragment: int, from_version: int) -> Sequence[bytes]:
        if donor in free[: silent // 2]:
            await nothing_for(DONOR_SECONDS)
        if donor not in by_id:
            raise PeerFault(donor, "did not answer")
        commits = by_id[donor]
        if commits is None:
            return [b"rubbish"]
        return [frames.encode(one) for one in commits if one.fragment == fragment and one.version >= from_version]

    return asyncio.run(signed_work(records, fetch, RUN, verify, random.Random(1)))


SHARED = chain((A, B), (A, B), (A, B))


@pytest.mark.parametrize("silent", [0, 1, 10])
def test_only_members_with_work_in_signed_commits_count(silent: int) -> None:
    work = work_with({A: SHARED, B: SHARED}, silent)
    assert set(work) == {A.peer_id, B.peer_id}
    assert work[A.peer_id] == work[B.peer_id] > 0


def test_a_member_that_always_leads_and_averages_counts_as_much_as_the_one_that_it_witnessed() -> None:
    led = [commit_of(0, (A, B), shards=((0, (0, 1)),))]
    assert work_with({A: led, B: led}) == {A.peer_id: 30_000, B.peer_id: 30_000}


def test_one_members_made_up_commits_count_for_nothing_beside_those_that_two_members_give() -> None:
    alone = [*SHARED, *(commit_of(version, (C,), tokens=10**9) for version in range(3, 9))]
    for lie in (alone, chain((C,), (C,), tokens=10**9), chain((C, D), (C, D), tokens=10**9), None):
        assert set(work_with({A: SHARED, B: SHARED, C: lie})) == {A.peer_id, B.peer_id}


def test_members_that_train_alone_count_alike() -> None:
    assert work_with({A: chain((A,)), C: chain((C,), (C,), tokens=10**9)}) == {A.peer_id: 1, C.peer_id: 1}


def test_without_any_commit_nobody_has_work() -> None:
    assert work_with({A: []}, silent=3) == {}
    assert work_with({}) == {}
