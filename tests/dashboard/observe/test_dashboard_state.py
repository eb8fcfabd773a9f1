"""The dashboard's fold of records, its labels and its chart."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.history.trend import MAX_POINTS, Trend
from dashboard.observe.dashboard_state import MAX_ROUNDS, DashboardState, fold
from dashboard.observe.join_addresses import JoinRule, join_addresses
from dashboard.observe.listed_peers import MAX_PEERS, Look
from dashboard.observe.shown_manifest import run_facts
from dashboard.observe.strangers_words import label_text
from dashboard.observe.swarm_observer import SwarmObserver
from dashboard.page.page import render_sections
from dht.records.evaluation import Evaluation
from tests.kit.clock import Clock
from tests.kit.dashboard.records import (
    NOW,
    PEERS,
    RUN_ID,
    RUN_RECORD,
    FakeStore,
    TextOnly,
    bare_record,
    empty_state,
    history_of,
    record_of,
    state_with,
)

ADDRESS = "/ip4/203.0.113.5/tcp/4001/p2p/12D3KooWLLT8g5ttNUeZqSADrztTvkAVvFuU56quYDCpwHy4wKaA"


def measured(state: DashboardState) -> tuple[Evaluation | None, float | None]:
    return state.view.evaluation, state.view.evaluated_at


def test_a_peer_is_listed_counted_and_then_silent() -> None:
    state = state_with(record_of(PEERS[0]), record_of(PEERS[1], role="seed", state="serving", train_loss=None))
    assert (len(state.here), len(state.trainers), state.phase) == (2, 1, "live")
    assert state.view.committed_tokens == 9000
    later = fold(state, Look(now=NOW + 60.0, num_members=3))
    assert later.phase == "silent"
    assert [row.condition for row in later.peers] == ["silent", "silent"]
    assert later.heard_at == NOW
    # What was measured stays, with its time.
    assert measured(later) == (Evaluation(2.75, 5), NOW)
    assert later.view.train_loss is None


def test_a_killed_peer_is_late_within_three_announcements_and_counts_no_more() -> None:
    run = run_facts(RUN_RECORD)
    alive, killed = (record_of(one, expires_at=NOW + 98.0) for one in PEERS[:2])
    state = fold(empty_state(), Look(now=NOW, num_members=3, run=run, records=[alive, killed]))
    history = [state]
    for step in range(1, 6):
        now = NOW + 8.0 * step
        # The run goes on fast: what the killed one had is soon versions behind.
        alive = replace(alive, sequence=1 + step, expires_at=now + 98.0, versions=(3 + 9 * step, 2 + 9 * step))
        history.append(fold(history[-1], Look(now=now, num_members=3, records=[alive, killed])))
    conditions = [{row.record.peer_id: row.condition for row in state.peers}[killed.peer_id] for state in history]
    assert conditions == ["here", "here", "here", "here", "late", "late"]
    late = history[-1]
    assert (len(late.trainers), late.view.tokens_per_second, late.phase) == (1, 1000.0, "live")
    assert "1 unresponsive" in TextOnly(render_sections(late, history_of(late))["figures"]).text
    # A look that fails says nothing about anybody; a peer that comes back is here again.
    failed = fold(state, Look(now=NOW + 50, num_members=0, problem="no network"))
    assert [row.condition for row in failed.peers] == ["here", "here"]
    back = record_of(PEERS[1], sequence=9, expires_at=NOW + 143)
    assert len(fold(late, Look(now=NOW + 45, num_members=3, records=[back])).here) == 2


def test_the_code_of_a_custom_run_is_a_text_of_bounded_length() -> None:
    manifest = json.loads(RUN_RECORD.manifest) | {"code": "x\u202ey" * 900}
    manifest["model"]["layout_digest"] = "ab" * 32
    run = run_facts(replace(RUN_RECORD, manifest=json.dumps(manifest).encode()))
    assert run.model_kind == "custom"
    assert run.code.isprintable()
    assert len(run.code) <= 400
    other = json.dumps(manifest | {"code": 3, "model": None}).encode()
    run = run_facts(replace(RUN_RECORD, manifest=other))
    assert (run.model_kind, run.code) == ("gpt", "")


def test_a_run_that_rests_stalls_or_ends_keeps_its_result() -> None:
    run = run_facts(RUN_RECORD)
    both = [record_of(PEERS[0]), record_of(PEERS[1], role="seed", state="serving", train_loss=None)]
    live = fold(empty_state(), Look(now=NOW, num_members=3, run=run, records=both))
    still = [replace(record, sequence=2, expires_at=NOW + 2000) for record in both]
    assert fold(live, Look(now=NOW + 119, num_members=3, records=still)).phase == "live"
    stalled = fold(live, Look(now=NOW + 121, num_members=3, records=still))
    goodbye = replace(both[0], sequence=3, expires_at=NOW + 2001, state="left")
    resting = fold(stalled, Look(now=NOW + 122, num_members=3, records=[goodbye, still[1]]))
    back = replace(goodbye, sequence=4, expires_at=NOW + 3000, state="training")
    assert fold(resting, Look(now=NOW + 400, num_members=3, records=[back, still[1]])).phase == "live"
    # A trainer that was killed while a seed is heard: the page has its connection, and nobody trains.
    killed = fold(live, Look(now=NOW + 40, num_members=3, records=[replace(both[1], sequence=2, expires_at=NOW + 99)]))
    assert (killed.phase, {row.condition for row in killed.peers}) == ("resting", {"silent", "here"})
    ended = fold(resting, Look(now=NOW + 123, num_members=3, run=replace(run, end_version=2)))
    not_yet = fold(live, Look(now=NOW + 1, num_members=3, run=replace(run, end_version=3)))
    assert [one.phase for one in (live, stalled, resting, ended, not_yet)] == [
        *("live", "stalled", "resting", "ended", "live")
    ]
    for state, words in (
        (stalled, "no exchange has been completed; the last progress was seen"),
        (resting, "1 seed keeps the model"),
        (ended, "Finished"),
    ):
        sections = {key: TextOnly(html).text for key, html in render_sections(state, history_of(state)).items()}
        assert words in sections["status"]
        assert "9000 tokens, validation loss 2.750" in sections["status"]
        assert "2.750" in sections["figures"]
        assert ("peer join" in sections["join"]) != (state is ended)
        assert ("but exchange nothing" in sections["figures"]) == (state is stalled)
    # The last of all has nobody who passes its goodbye on; that it was leaving is enough.
    alone = state_with(record_of(PEERS[0], state="leaving", expires_at=NOW + 98))
    assert fold(alone, Look(now=NOW + 40, num_members=0)).phase == "resting"


def test_a_page_of_an_ended_run_says_so_also_after_a_restart_with_nobody_there() -> None:
    async def look() -> DashboardState:
        store = FakeStore()
        store.num_members, store.run = 0, None
        run = replace(run_facts(RUN_RECORD), end_version=3)
        observer = SwarmObserver(RUN_ID, store, [], wall_clock=Clock(NOW), on_state=lambda state: None)
        observer.state = replace(observer.state, run=run, view=before.view)
        await observer.look()
        return observer.state

    before = state_with(record_of(PEERS[0]))
    state = asyncio.run(look())
    assert state.phase == "ended"
    text = TextOnly(render_sections(state, history_of(before))["status"]).text
    assert "Finished" in text
    assert "9000 tokens, validation loss 2.750" in text


def test_only_addresses_of_seeds_that_answer_are_shown() -> None:
    seed, trainer = record_of(PEERS[0], role="seed", state="serving"), record_of(PEERS[1])
    state = state_with(seed, trainer)
    near = f"/ip4/127.0.0.1/tcp/1/p2p/{PEERS[0].peer_id}"
    far, volunteer = (f"/ip4/203.0.113.5/tcp/1/p2p/{one.peer_id}" for one in PEERS[:2])
    dialled = [volunteer, near, far]
    assert join_addresses(state, dialled, (), JoinRule()) == (near, far)
    assert join_addresses(state, dialled, (), JoinRule(is_of_one_machine=False)) == (far,)
    assert join_addresses(state, dialled, (far,), JoinRule()) == (near,)
    assert join_addresses(state, dialled, (), JoinRule(shows_seeds=False)) == ()
    assert join_addresses(state, dialled, (), JoinRule(asked=(volunteer,))) == (volunteer,)
    # A seed that is down for a moment stays in the command.
    assert join_addresses(replace(state, join_addresses=(far,)), dialled, dialled, JoinRule()) == (far,)
    # One that said goodbye, or was not heard for long, does not; and a volunteer's address never takes its place.
    left = Look(now=NOW + 2, num_members=2, records=[replace(seed, state="left", sequence=2)])
    unheard = Look(now=NOW + 60, num_members=2)
    for look in (left, unheard):
        gone = replace(fold(state, look), join_addresses=(far,))
        assert join_addresses(gone, dialled, (), JoinRule()) == ()


def test_before_the_first_trainer_whoever_answers_is_shown() -> None:
    run, other = run_facts(RUN_RECORD), ADDRESS.replace("203.0.113.5", "203.0.113.6")
    fresh = fold(empty_state(), Look(now=NOW, num_members=1, run=run))
    assert fresh.phase == "empty"
    assert join_addresses(fresh, [ADDRESS, other], (other,), JoinRule()) == (ADDRESS,)
    assert join_addresses(fresh, [ADDRESS], (), JoinRule(shows_seeds=False)) == ()
    sections = render_sections(replace(fresh, join_addresses=(ADDRESS,)), history_of(fresh))
    assert "the first machine to join starts it" in TextOnly(sections["status"]).text
    assert "peer join murmuration://" in TextOnly(sections["join"]).text
    # Volunteers are told from seeds as soon as somebody has said what they are.
    trains = fold(fresh, Look(now=NOW + 1, num_members=1, records=[record_of(PEERS[1])]))
    assert join_addresses(trains, [ADDRESS], (), JoinRule()) == ()


def test_who_said_goodbye_has_left_and_is_not_silent() -> None:
    state = state_with(record_of(PEERS[0]))
    gone = record_of(PEERS[0], sequence=2, now=NOW + 1, state="left")
    state = fold(state, Look(now=NOW + 1, num_members=3, records=[gone]))
    assert fold(state, Look(now=NOW + 500, num_members=3)).peers[0].condition == "left"


def test_an_older_record_never_replaces_a_newer_one() -> None:
    newer, older = record_of(PEERS[0], sequence=9, now=NOW + 5, tokens=900), record_of(PEERS[0], sequence=8, tokens=800)
    state = fold(state_with(newer, now=NOW + 5), Look(now=NOW + 6, num_members=3, records=[older]))
    assert state.peers[0].record.tokens == 900
    assert state.peers[0].heard_at == NOW + 5


@pytest.mark.parametrize(
    ("num_members", "run", "phase"), [(0, False, "looking"), (2, False, "no run"), (2, True, "empty")]
)
def test_each_empty_state_has_its_words(num_members: int, run: bool, phase: str) -> None:
    async def look() -> DashboardState:
        store = FakeStore()
        store.num_members = num_members
        store.run = store.run if run else None
        observer = SwarmObserver(RUN_ID, store, [ADDRESS], wall_clock=Clock(NOW), on_state=lambda state: None)
        await observer.look()
        return observer.state

    state = asyncio.run(look())
    assert state.phase == phase
    text = TextOnly(render_sections(state, history_of(state))["status"]).text
    assert {"looking": "tries again", "no run": "check the run id", "empty": "The run is ready"}[phase] in text


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(0, 3 * MAX_PEERS), max_size=900), max_size=4))
def test_rows_are_bounded_and_a_flood_does_not_push_out_who_was_there_first(floods: list[list[int]]) -> None:
    state = state_with(bare_record("first"))
    for step, flood in enumerate(floods, 1):
        now = NOW + step
        records = [bare_record("first", now=now), *(bare_record(f"flood{key}", now=now) for key in flood)]
        state = fold(state, Look(now=now, num_members=3, records=records))
        assert len(state.peers) <= MAX_PEERS
        assert len(state.peers) + state.num_unlisted >= len({record.peer_id for record in records})
        assert "first" in [row.record.peer_id for row in state.peers]


def test_newcomers_take_the_rows_of_those_who_went_longest_ago() -> None:
    old = [bare_record(f"old{index}") for index in range(MAX_PEERS)]
    state = state_with(*old)
    new = [bare_record(f"new{index}", now=NOW + 100) for index in range(3)]
    state = fold(state, Look(now=NOW + 100, num_members=3, records=new))
    assert len(state.peers) == MAX_PEERS
    assert state.num_unlisted == 0
    assert {row.record.peer_id for row in state.here} == {"new0", "new1", "new2"}


def test_peers_of_another_manifest_are_listed_and_not_counted() -> None:
    async def look() -> DashboardState:
        store = FakeStore()
        store.put(PEERS[0])
        store.put(PEERS[1], manifest_hash=b"x" * 32)
        observer = SwarmObserver(RUN_ID, store, [], wall_clock=Clock(NOW), on_state=lambda state: None)
        await observer.look()
        return observer.state

    state = asyncio.run(look())
    assert (len(state.peers), len(state.trainers)) == (2, 1)
    assert "different manifest" in render_sections(state, history_of(state))["peers"]


def test_equal_versions_with_other_anchors_are_shown_as_differing() -> None:
    state = state_with(
        record_of(PEERS[0]), record_of(PEERS[1]), record_of(PEERS[2], digests=(b"z" * 8, b"b" * 8)), record_of(PEERS[3])
    )
    assert [row.num_forked for row in state.fragments] == [1, 0]
    assert "1 peer differ" in render_sections(state, history_of(state))["fragments"]


def test_rounds_without_receipts_come_from_versions() -> None:
    state = state_with(record_of(PEERS[0]))
    assert state.rounds == ()
    assert state.view.num_rounds == 5
    later = record_of(PEERS[0], sequence=2, now=NOW + 3, versions=(3, 4), lineage_tokens=(9000, 15000))
    state = fold(state, Look(now=NOW + 3, num_members=3, records=[later]))
    (row,) = state.rounds
    assert (row.fragment, row.version, row.num_rounds, row.seen_at) == (1, 3, 2, NOW + 3)
    assert "2 rounds committed" in TextOnly(render_sections(state, history_of(state))["rounds"]).text


def test_rounds_and_points_are_bounded_over_a_long_watch() -> None:
    state, trend = empty_state(), Trend()
    for step in range(3 * MAX_POINTS + 17):
        now = NOW + step
        record = record_of(
            PEERS[0],
            sequence=step,
            now=now,
            versions=(step, step),
            lineage_tokens=(100 * step, 100 * step),
            evaluation=Evaluation(5.0 / (1 + step), step),
        )
        state = fold(state, Look(now=now, num_members=1, records=[record]))
        trend.look(state, 0, 0.0, ())
        assert len(trend.points) <= MAX_POINTS
        assert len(state.rounds) <= MAX_ROUNDS
        assert trend.points[-1].tokens == 100 * step
    tokens = [point.tokens for point in trend.points]
    assert tokens[0] == 0
    assert tokens == sorted(set(tokens))
    # Evenly thinned: no gap is wider than the stride that keeps the whole watch within the limit.
    assert max(right - left for left, right in itertools.pairwise(tokens)) <= 100 * trend.stride


@given(st.text(max_size=80))
def test_labels_are_short_printable_and_have_no_towers_of_marks(text: str) -> None:
    shown = label_text(text, 40)
    assert len(shown) <= 40
    assert shown.isprintable()
    assert label_text("a" + "\u0301" * 30, 40) == "a\u0301\u0301"
    assert label_text("evil\u202egnp.exe\x1b[2J", 40) == "evilgnp.exe[2J"


def test_the_run_record_is_read_again_as_often_as_peers_announce() -> None:
    async def reads(seconds: float, back_seconds: float = 0.0) -> int:
        store, clock = FakeStore(), Clock(NOW)
        times: list[float] = []
        fetch = store.fetch_run

        async def fetch_run(run_id: str) -> bytes | None:
            times.append(clock())
            return await fetch(run_id)

        store.fetch_run = fetch_run  # type: ignore[method-assign]
        observer = SwarmObserver(RUN_ID, store, [ADDRESS], wall_clock=clock, on_state=lambda state: None)
        for look in range(round(seconds / 2)):
            clock.now = NOW + 2.0 * look - (back_seconds if look > 11 else 0.0)
            await observer.look()
        return len(times)

    assert asyncio.run(reads(60.0)) == 6
    # A clock that was set back does not keep the page from looking.
    assert asyncio.run(reads(60.0, back_seconds=86_400.0)) == 7
