"""Credit has one rule: page, API and proof show the totals of `averaging.signing.commit_credit`, in whatever
order it came."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.signing.commit_credit import (
    MAX_FORKS,
    MAX_SHARE_MILLI,
    CreditedRound,
    MachineShare,
    counted,
    milli,
    totals,
)
from dashboard.credit.contributor_ledger import Ledger
from dashboard.credit.credited_members import CommitCredit
from dashboard.credit.heaviest_commit_chains import Counting
from dashboard.credit.work_log import curve_of
from dashboard.history.history import History, open_history
from dashboard.observe.dashboard_state import fold
from dashboard.observe.listed_peers import Look
from dashboard.server.api_answers import run as run_answer
from dashboard.server.api_queries import Query
from dashboard.server.handler_context import SITE, Site
from dashboard.server.live_updates import Live
from dashboard.server.routes import make_app
from dht.ground.host import PeerId
from tests.kit.dashboard.records import NOW, RUN_ID, empty_state
from tests.kit.tiers import examples

NAMES = [PeerId(f"peer-{number}") for number in range(6)]
Totals = dict[str, tuple[int, int, int, int]]


# --- with any commits ---


@dataclass(frozen=True)
class Made:
    """A commit out of nothing, as both sides of this test see it."""

    round_: CreditedRound

    @property
    def credit(self) -> CommitCredit:
        one = self.round_
        known = {field.name: getattr(one, field.name) for field in fields(one)}
        return CommitCredit(**known)

    @property
    def raw(self) -> bytes:
        return repr(self.round_).encode()


shares = st.lists(
    st.builds(
        MachineShare,
        st.sampled_from(NAMES),
        st.sampled_from([0, 1, 500, 1000, 300_000, 400_000, MAX_SHARE_MILLI]) | st.integers(0, 2000),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda share: share.peer_id,
).map(lambda found: tuple(sorted(found, key=lambda share: share.peer_id)))


@st.composite
def histories(draw: st.DrawFn) -> list[Made]:
    """Commits whose parents are known, unknown or not told; forks, gaps, crowds of one version."""
    made: list[Made] = []
    last_version = draw(st.sampled_from([3, 8, 30]))
    for number in range(draw(st.integers(1, 45))):
        fragment = draw(st.sampled_from([0, 0, 0, 1]))
        version = draw(st.integers(0, last_version))
        below = [one.round_ for one in made if (one.round_.fragment, one.round_.version) == (fragment, version - 1)]
        parents = [b"", b"unknown parent!!", *(one.digest[:16] for one in below)]
        previous = draw(st.sampled_from(parents[::-1]))
        members = draw(shares)
        tokens = draw(st.sampled_from([1, 300, 400, 10**6]))
        digest = hashlib.sha256(f"{number}".encode()).digest()
        made.append(Made(CreditedRound(fragment, version, digest, previous, members[0].peer_id, tokens, members)))
    return made


def expected_of(made: Sequence[Made]) -> Totals:
    rows = totals(counted([one.round_ for one in made]))
    return {row.peer_id: (row.milli_witnessed, row.milli_reported, row.rounds, row.rounds_missed) for row in rows}


def held_by(ledger: Ledger) -> Totals:
    return {
        machine.peer_id: (
            machine.milli_tokens_witnessed,
            machine.milli_tokens_reported,
            machine.rounds,
            machine.rounds_missed,
        )
        for machine in ledger.machines.values()
        if machine.milli_tokens_reported or machine.rounds or machine.rounds_missed
    }


@settings(max_examples=examples(100), deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_one_commit_after_the_other_gives_what_the_whole_file_gives(made: list[Made], chance: random.Random) -> None:
    order = made + chance.choices(made, k=len(made) // 2)
    chance.shuffle(order)
    assert counted([one.round_ for one in order]) == counted([one.round_ for one in made])
    ledger = Ledger()
    for number, one in enumerate(order):
        ledger.put(one.credit, NOW, number)
        if chance.random() < 0.4:
            ledger.settle()
            assert held_by(ledger) == expected_of(order[: number + 1])
    ledger.settle()
    assert held_by(ledger) == expected_of(made)
    assert ledger.num_rounds == len(counted([one.round_ for one in made]))


@settings(max_examples=examples(30), deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_page_api_and_proof_show_the_same_over_restarts(made: list[Made], chance: random.Random) -> None:
    by_raw = {one.raw: one for one in made}
    order = made + chance.choices(made, k=len(made) // 3)
    chance.shuffle(order)
    cuts = sorted(chance.choices(range(len(order) + 1), k=3))
    parts = [order[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(order)])]
    expected = expected_of(made)

    async def check(path: Path) -> None:
        for part in parts:
            async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as history:
                for one in part:
                    history.add_commit(one.raw, one.credit, NOW)
                    if chance.random() < 0.1:
                        history.look(fold(empty_state(), Look(now=NOW, num_members=1)))
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as history:
            assert held_by(history.ledger) == expected
            await _everywhere(history, by_raw, expected)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder) / "run.sqlite"))


async def _everywhere(history: History, by_raw: dict[bytes, Made], expected: Totals) -> None:
    state = fold(empty_state(), Look(now=NOW, num_members=1))
    witnessed = sum(one[0] for one in expected.values())
    site = make_app(Site(Live(state, "boot", history.view), history))[SITE]
    assert (await run_answer(site, Query())).milli_tokens_witnessed == witnessed
    assert {row.contributor_id for row in history.view.contributors} == {
        key for key, one in expected.items() if any(one)
    }
    for row in history.view.contributors:
        shown = (row.milli_tokens_witnessed, row.milli_tokens_reported, row.rounds, row.rounds_missed)
        assert shown == expected[row.contributor_id]
        logs = history.ledger.logs_of(row)
        proof = [by_raw[raw] async for raw in history.proof(logs)]
        assert expected_of(proof)[row.contributor_id] == shown
        curve = curve_of(logs, row.first_at, NOW)
        assert (curve[-1].tokens_witnessed, curve[-1].tokens_reported) == (shown[0] / 1000, shown[1] / 1000)


def test_a_round_that_counts_only_after_a_restart_is_shown(tmp_path: Path) -> None:
    def made(number: int, version: int, tokens: int, previous: bytes = b"") -> Made:
        digest = hashlib.sha256(b"%d" % number).digest()
        members = (MachineShare(NAMES[number], 1000 * tokens, True),)
        return Made(CreditedRound(0, version, digest, previous, NAMES[number], tokens, members))

    first, light, heavy = made(0, 0, 10), made(1, 1, 10), made(2, 1, 20)
    later = made(3, 2, 900, previous=light.round_.digest[:16])

    async def contributors(*commits: Made) -> dict[int, tuple[str, ...]]:
        async with open_history(tmp_path / "run.sqlite", RUN_ID, clock=lambda: NOW, warn=print) as history:
            for one in commits:
                history.add_commit(one.raw, one.credit, NOW)
            return {row.version: row.contributors for row in history.view.rounds}

    assert asyncio.run(contributors(first, light, heavy)) == {0: (NAMES[0],), 1: (NAMES[2],)}
    expected = {0: (NAMES[0],), 1: (NAMES[1],), 2: (NAMES[3],)}
    assert asyncio.run(contributors(later)) == expected
    assert asyncio.run(contributors()) == expected


# --- limits ---


def test_a_flood_of_forks_is_bounded_and_leaves_the_heaviest() -> None:
    def commit(number: int) -> Made:
        members = (MachineShare(NAMES[0], 1000 + number, True),)
        digest = hashlib.sha256(b"%d" % number).digest()
        return Made(CreditedRound(0, 5, digest, b"", NAMES[0], 10, members))

    made = [commit(number) for number in range(60)]
    random.Random(1).shuffle(made)
    counting = Counting()
    for number, one in enumerate(made):
        counting.put(one.credit, NOW, number)
    (booking,) = counting.settle()
    assert booking.shares[0].milli_tokens == 1059
    released = set(counting.released())
    kept = [number for number, one in enumerate(made) if one.round_.milli_witnessed >= 1060 - MAX_FORKS]
    assert not released & set(kept)
    assert counting.put(commit(0).credit, NOW, 99) == "crowded"


@given(st.integers(0, 2**50), st.integers(0, 2**40), st.integers(1, 2**40))
def test_a_share_is_rounded_exactly_and_saturates(tokens: int, num_values: int, num_parameters: int) -> None:
    found = milli(tokens, num_values, num_parameters)
    assert 0 <= found <= MAX_SHARE_MILLI
    if found < MAX_SHARE_MILLI:
        assert abs(2 * (found * num_parameters - 1000 * tokens * num_values)) <= num_parameters
