"""A few members that announce or give nonsense change neither where the page says the run is nor what it collects."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from averaging.signing.commit_credit import MachineShare
from dashboard.collect.commit_fetcher import (
    DONOR_SECONDS,
    INVENTED_VERSIONS,
    MAX_TRIES,
    Gatherer,
    SignedCommits,
    donors,
)
from dashboard.credit.credited_members import CommitCredit
from dashboard.history.history import History
from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.listed_peers import Look
from dashboard.page.page import render_sections
from dht.ground.host import PeerId
from dht.identity.keys import Identity
from dht.records.peer_record import PeerRecord
from tests.kit.clock import Clock, nothing_for
from tests.kit.dashboard.history import check_raw, usual_commit
from tests.kit.dashboard.members import Members, in_history, versions_of
from tests.kit.dashboard.records import NOW, TextOnly, empty_state, history_of, record_of

ALL = sorted((Identity.from_seed(bytes([number]) * 32) for number in range(1, 12)), key=lambda one: one.peer_id)
BOAST = 1_000_000


def announcing(identity: Identity, version: int, **changes: object) -> PeerRecord:
    return record_of(identity, versions=(version, 0), lineage_tokens=(version * 100 + 1, 1), **changes)


def seen(
    honest: int, boasters: int, head: int = 5, boast: int = BOAST, vouched: Collection[str] = ()
) -> DashboardState:
    """The boasters' keys come first in every order of PeerIds."""
    records = [announcing(identity, boast) for identity in ALL[:boasters]]
    records += [announcing(identity, head, reachable=False) for identity in ALL[boasters : boasters + honest]]
    return fold(empty_state(), Look(now=NOW, num_members=3, records=records, vouched=vouched))


def members_of(honest: int, boasters: int, head: int = 5) -> Members:
    """Boasters do not answer."""
    return Members({identity.peer_id: list(range(head)) for identity in ALL[boasters : boasters + honest]})


@pytest.mark.parametrize(("honest", "boasters"), [(1, 1), (2, 1), (3, 2), (6, 5)])
def test_the_head_is_where_most_are(honest: int, boasters: int) -> None:
    state = seen(honest, boasters)
    assert [row.version for row in state.fragments] == [5, 0]
    assert state.view.num_rounds == 5
    assert state.view.committed_tokens < 1000
    assert "2,000,000" not in TextOnly(render_sections(state, history_of(state))["fragments"]).text
    # What they announce next moves nothing either.
    later = [announcing(one, 2**50, sequence=2) for one in ALL[:boasters]]
    after = fold(state, Look(now=NOW + 2, num_members=3, records=later))
    assert after.view.num_rounds == 5
    assert after.rounds == ()


def test_strangers_in_the_majority_say_nothing_beside_members_of_signed_rounds() -> None:
    vouched = {identity.peer_id for identity in ALL[9:]}
    state = seen(2, 9)
    assert state.view.num_rounds == BOAST
    state = seen(2, 9, vouched=vouched)
    assert state.view.num_rounds == 5
    assert donors(state, 0, 5)[:2] == [identity.peer_id for identity in ALL[9:]]
    assert len(state.trainers) == 2
    figures = TextOnly(render_sections(state, history_of(state))["figures"]).text
    assert "2machines" in figures
    assert "newcomers" not in figures, "the others train as well, as they say"
    # And those that said it before there was a signed round have not left a mark.
    first, second = seen(2, 9), Look(now=NOW + 2, num_members=3, vouched=vouched)
    assert fold(first, second).view.num_rounds == 5
    assert fold(first, second).view.committed_tokens < 1000


def test_a_newcomer_to_a_run_that_rests_stalls_nothing() -> None:
    rests, newcomer = record_of(ALL[0], state="serving"), record_of(ALL[1])
    first = fold(empty_state(), Look(now=NOW, num_members=3, records=[rests], vouched=[rests.peer_id]))
    later = replace(rests, sequence=2, expires_at=NOW + 1030), replace(newcomer, expires_at=NOW + 1030)
    state = fold(first, Look(now=NOW + 1000, num_members=3, records=later, vouched=[rests.peer_id]))
    assert (len(state.here), len(state.trainers), state.phase) == (2, 0, "live")


def test_the_clock_does_not_fall_when_the_first_signed_work_arrives() -> None:
    """Of three records the middle one counts, and of the two that have worked the lower one."""
    records = [
        record_of(one, lineage_tokens=(tokens, 0)) for one, tokens in zip(ALL[:3], (8000, 9000, 9500), strict=True)
    ]
    first = fold(empty_state(), Look(now=NOW, num_members=3, records=records))
    assert first.view.committed_tokens == 9000
    vouched = [ALL[0].peer_id, ALL[2].peer_id]
    assert fold(first, Look(now=NOW + 2, num_members=3, records=records, vouched=vouched)).view.committed_tokens == 9000


@pytest.mark.parametrize(("honest", "boasters"), [(1, 1), (1, 2), (3, 3)])
def test_collection_goes_on_beside_boasters(honest: int, boasters: int) -> None:
    async def check(history: History) -> None:
        members, clock = members_of(honest, boasters), Clock(NOW)
        gatherer = Gatherer(history, clock)
        # A majority of boasters counts until there is a signed round.
        vouched = {identity.peer_id for identity in ALL[boasters:]} if boasters > honest else set()
        await gatherer.gather(members.source, seen(honest, boasters))
        # However few honest ones there are, and although the clock hardly moves: versions come as they are committed.
        for head in range(5, 12):
            for kept in members.kept.values():
                kept[:] = range(head)
            for _ in range(MAX_TRIES + 1):
                await gatherer.gather(members.source, seen(honest, boasters, head, vouched=vouched))
            assert versions_of(history) == list(range(head))
            clock.now += 2

    in_history(check)


def test_a_boast_that_was_believed_once_stops_nothing() -> None:
    async def check(history: History) -> None:
        members, gatherer = members_of(2, 9), Gatherer(history, Clock(NOW))
        for _ in range(MAX_TRIES + 1):
            await gatherer.gather(members.source, seen(2, 9))
        for kept in members.kept.values():
            kept.append(5)
        vouched = {identity.peer_id for identity in ALL[9:]}
        await gatherer.gather(members.source, seen(2, 9, head=6, vouched=vouched))
        assert versions_of(history) == list(range(6))

    in_history(check)


@pytest.mark.parametrize(
    "given_back",
    [
        [b"rubbish"],
        [],
        [usual_commit(0, ["x", "y"])],
        [usual_commit(4, ["x", "y"], tokens=9e9), usual_commit(4, ["x", "z"], tokens=9e9)],
        [usual_commit(3 + INVENTED_VERSIONS, ["x", "y"])],
        [usual_commit(4, ["x", "y"], fragment=1)],
    ],
    ids=["rubbish", "nothing", "not asked for", "two of a version", "far beyond", "another fragment"],
)
def test_who_gives_garbage_is_asked_last(given_back: list[bytes]) -> None:
    async def check(history: History) -> None:
        members, gatherer = members_of(2, 5), Gatherer(history, Clock(NOW))
        liars = {identity.peer_id for identity in ALL[:5]}
        state = seen(2, 5, head=7, boast=7)
        for version in range(4):
            history.add_commit(usual_commit(version, ["a", "b"]), check_raw(usual_commit(version, ["a", "b"])), NOW)

        async def fetch(donor: PeerId, fragment: int, at: int) -> Sequence[bytes]:
            members.asked.append((donor, fragment, at))
            if donor not in liars:
                return [usual_commit(version, ["a", "b"]) for version in range(7) if version >= at]
            return given_back

        source = SignedCommits(fetch, check_raw)
        for _ in range(4):
            await gatherer.gather(source, state)
        assert versions_of(history) == list(range(7))
        assert {machine.peer_id for row in history.view.contributors for machine in row.machines} == {"a", "b"}

    in_history(check)


def test_a_donor_that_is_slow_for_ever_costs_one_turn() -> None:

    async def check(history: History) -> None:
        members = members_of(1, 1)

        async def fetch(donor: PeerId, fragment: int, at: int) -> Sequence[bytes]:
            if donor == ALL[0].peer_id:
                await nothing_for(DONOR_SECONDS)
            return await members.fetch(donor, fragment, at)

        async with asyncio.timeout(1.5 * DONOR_SECONDS):
            await Gatherer(history, Clock(NOW)).gather(SignedCommits(fetch, check_raw), seen(1, 1, boast=5))
        assert versions_of(history) == list(range(5))

    in_history(check)


def test_a_donor_that_dribbles_is_asked_last() -> None:
    asked: list[PeerId] = []

    async def check(history: History) -> None:
        async def fetch(donor: PeerId, fragment: int, at: int) -> Sequence[bytes]:
            asked.append(donor)
            if donor == ALL[0].peer_id and at:
                await nothing_for(DONOR_SECONDS)
            return [usual_commit(version, ["a", "b"]) for version in range(8) if version >= at][:1]

        source, gatherer = SignedCommits(fetch, check_raw), Gatherer(history, Clock(NOW))
        async with asyncio.timeout(1.5 * DONOR_SECONDS):
            await gatherer.gather(source, at_head(5, 3))
            assert asked[0] == ALL[0].peer_id
            asked.clear()
            await gatherer.gather(source, at_head(8, 3))
        assert asked[0] == ALL[1].peer_id
        assert versions_of(history) == list(range(8))

    in_history(check)


# --- forged rounds: two keys sign any number of tokens for one another ---

LIAR, *HONEST = (identity.peer_id for identity in ALL[:4])


def from_donors(given_by: dict[PeerId, dict[int, bytes]]) -> SignedCommits:
    async def fetch(donor: PeerId, fragment: int, at: int) -> Sequence[bytes]:
        return [raw for version, raw in sorted(given_by[donor].items()) if version >= at]

    return SignedCommits(fetch, check_raw)


def genuine(version: int) -> bytes:
    return usual_commit(version, ["a", "b"])


def forged(version: int, tokens: float = 1e12) -> bytes:
    return usual_commit(version, ["x", "y"], tokens=tokens)


def at_head(head: int, num_donors: int) -> DashboardState:
    """All of one kind, the liar's key first."""
    records = [announcing(identity, head) for identity in ALL[:num_donors]]
    return fold(empty_state(), Look(now=NOW, num_members=3, records=records))


def credited(history: History) -> set[str]:
    return {
        machine.peer_id for row in history.view.contributors for machine in row.machines if row.milli_tokens_reported
    }


@pytest.mark.parametrize("num_donors", [2, 3, 4])
@pytest.mark.parametrize("tokens", [1.0, 100.0, 1e12])
def test_one_liar_puts_no_forged_round_on_the_page(num_donors: int, tokens: float) -> None:
    """Its key comes first, it has been there from the beginning, and it forges every version."""

    async def check(history: History) -> None:
        gatherer = Gatherer(history, Clock(NOW))
        if num_donors == 2:
            # Of two nobody can tell who lies, but by whose signature was there before.
            for version in range(3):
                history.add_commit(genuine(version), check_raw(genuine(version)), NOW)
        for head in range(3, 9):
            honest = {version: genuine(version) for version in range(head)}
            lies = {version: forged(version, tokens) for version in range(head + 3)}
            given_by = dict.fromkeys(HONEST, honest) | {LIAR: lies}
            await gatherer.gather(from_donors(given_by), at_head(head, num_donors))
            assert versions_of(history) == list(range(head))
            assert credited(history) == {"a", "b"}
            assert history.view.num_rounds == head

    in_history(check)


def test_what_is_beyond_the_head_waits_for_a_second_member() -> None:
    async def check(history: History) -> None:
        gatherer = Gatherer(history, Clock(NOW))
        honest = {version: genuine(version) for version in range(5)}
        early = honest | {5: genuine(5)}
        given_by = {LIAR: honest | {5: forged(5)}, HONEST[0]: early, HONEST[1]: honest}
        await gatherer.gather(from_donors(given_by), at_head(5, 3))
        assert versions_of(history) == list(range(5))
        given_by[HONEST[1]] = early
        await gatherer.gather(from_donors(given_by), at_head(6, 3))
        assert versions_of(history) == list(range(6))
        assert credited(history) == {"a", "b"}

    in_history(check)


def test_a_fork_that_most_members_follow_is_followed() -> None:
    async def check(history: History) -> None:
        gatherer = Gatherer(history, Clock(NOW))
        before = {version: genuine(version) for version in range(5)}
        await gatherer.gather(from_donors(dict.fromkeys([LIAR, *HONEST], before)), at_head(5, 3))
        other = usual_commit(4, ["c", "d"], tokens=500.0)
        after = before | {4: other, 5: usual_commit(5, ["c", "d"])}
        given_by = dict.fromkeys(HONEST, after) | {LIAR: before}
        await gatherer.gather(from_donors(given_by), at_head(6, 3))
        assert credited(history) == {"a", "b", "c", "d"}
        rounds = {row.version: row.contributors for row in history.view.rounds}
        assert rounds[4] == ("c", "d")

    in_history(check)


@pytest.mark.parametrize("depth", [2, 5, 30, 200])
def test_the_other_side_of_a_long_fork_is_read_back_to_where_it_began(depth: int) -> None:
    """Members left their side for a heavier one; what they remember of it now takes the credit, as in a whole file."""

    def side(people: tuple[str, str], tokens: int, begin: int, end: int, last: bytes) -> list[CommitCredit]:
        credits = []
        for version in range(begin, end):
            digest = hashlib.sha256(f"{people} {version}".encode()).digest()
            members = tuple(MachineShare(PeerId(peer_id), 1000 * tokens, True) for peer_id in people)
            credit = CommitCredit(0, version, digest, last[:16], PeerId(people[0]), 2 * tokens, members)
            credits.append(credit)
            last = digest
        return credits

    async def check(history: History) -> None:
        common = side(("a", "b"), 100, 0, 10, b"")
        left = side(("c", "d"), 90, 10, 10 + depth, common[-1].digest)
        right = side(("e", "f"), 110, 10, 12 + depth, common[-1].digest)
        by_raw = {credit.digest: credit for credit in (*common, *left, *right)}
        given: list[CommitCredit] = [*common, *left]

        async def fetch(donor: PeerId, fragment: int, at: int) -> Sequence[bytes]:
            return [credit.digest for credit in given if credit.version >= at][:50]

        source, gatherer = SignedCommits(fetch, lambda raw: by_raw[raw]), Gatherer(history, Clock(NOW))
        await gatherer.gather(source, at_head(10 + depth, 3))
        assert credited(history) == {"a", "b", "c", "d"}
        given = [*common, *right]
        for _ in range(8):
            await gatherer.gather(source, at_head(12 + depth, 3))
        assert credited(history) == {"a", "b", "e", "f"}
        assert history.view.milli_tokens_witnessed == 2_000_000 + 220_000 * (depth + 2)

    in_history(check)


def test_a_fork_whose_beginning_nobody_remembers_ends_the_search() -> None:
    async def check(history: History) -> None:
        num_asked = 0

        async def fetch(donor: PeerId, fragment: int, at: int) -> Sequence[bytes]:
            nonlocal num_asked
            num_asked += 1
            return [raw for version, raw in sorted(now.items()) if version >= at]

        def check_orphan(raw: bytes) -> CommitCredit:
            return replace(check_raw(raw), previous=b"never heard of it" if b"100.0" in raw else b"")

        now = {version: usual_commit(version, ["a", "b"], tokens=50.0) for version in range(40)}
        source, gatherer = SignedCommits(fetch, check_orphan), Gatherer(history, Clock(NOW))
        await gatherer.gather(source, at_head(40, 3))
        now = {version: genuine(version) for version in range(38, 44)}
        for _ in range(30):
            await gatherer.gather(source, at_head(44, 3))
        assert versions_of(history) == list(range(44))
        assert num_asked < 60

    in_history(check)
