"""The fold of a peer's events into figures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.round_facts import AppliedCommit
from dht.ground.host import PeerId
from dht.records.evaluation import Evaluation
from peer.events.anchor_events import Fetched
from peer.events.peer_events import Evaluated, Event, LeftRun, MemberChanged, PartRestarted, StateServed, SwarmContact
from peer.view.own_view import NUM_LOSSES
from peer.view.own_view import own_view_after as fold
from tests.kit.peer_events import ME, OTHER, committed, folded, joined, progressed


def test_totals_follow_the_events() -> None:
    state = folded(
        joined(),
        Event(1.0, ME, MemberChanged(remote=OTHER)),
        Event(1.0, ME, MemberChanged(remote=ME)),
        progressed(10.0),
        committed(20.0),
        committed(30.0, contributors=(OTHER,)),
        Event(30.0, ME, AppliedCommit(fragment=1, version=5, digest="ab")),
        Event(30.0, ME, AppliedCommit(fragment=9, version=5, digest="ab")),
        Event(31.0, ME, Evaluated(validation_loss=1.5, version_sum=5)),
    )
    assert (state.num_peers, state.inner_steps, state.tokens) == (2, 10, 10_000)
    assert (state.rounds_committed, state.rounds_contributed) == (2, 1)
    assert (state.versions, state.evaluation, state.phase) == ((0, 5, 0), Evaluation(1.5, 5), "training")
    assert state.bits_per_second(31.0) == (8 * 150_000 / 60, 8 * 300_000 / 60)
    assert state.bits_per_second(85.0) == (8 * 75_000 / 60, 8 * 150_000 / 60)
    assert state.bits_per_second(1000.0) == (0.0, 0.0)


def test_rounds_of_one_member_are_counted_until_one_has_more() -> None:
    state = folded(joined(), *(committed(float(at), (ME,)) for at in range(3)))
    assert state.lone_rounds == 3
    state = fold(fold(state, committed(4.0, (OTHER,))), committed(5.0, (OTHER, PeerId("12D3KooWthird"))))
    assert state.lone_rounds == 4  # also that of another, but nothing that others shared
    assert fold(state, committed(6.0)).lone_rounds == 0
    seed = folded(joined(device="seed"), committed(1.0, (OTHER,)), committed(2.0, (OTHER,)))
    assert seed.lone_rounds == 2


def test_phases() -> None:
    state = folded(Event(0.0, ME, SwarmContact("waiting", 5.0, reason="nobody answers")))
    assert state.phase == "waiting for peers"
    state = fold(state, joined())
    assert state.phase == "training"
    state = fold(fold(state, Event(1.0, ME, MemberChanged(remote=OTHER))), Event(2.0, ME, SwarmContact("lost", 60.0)))
    assert (state.phase, state.num_peers) == ("training alone", 1)
    state = fold(state, Event(3.0, ME, SwarmContact("found", 60.0, 2)))
    assert state.phase == "training"
    state = fold(state, Event(4.0, ME, LeftRun(reason="asked to", inner_steps=7, tokens=9, rounds_contributed=1)))
    assert (state.phase, state.inner_steps) == ("left", 7)


def test_a_restart_that_the_supervisor_reports_does_not_hide_the_peer_id() -> None:
    restarted = Event(9.0, PeerId(""), PartRestarted("network", "it was killed", is_training=True))
    assert fold(folded(joined(0.0)), restarted).peer_id == ME


def test_phases_of_a_seed() -> None:
    state = folded(joined(device="seed"), Event(2.0, ME, StateServed(OTHER, 300_000)))
    assert (state.phase, state.served_bytes, len(state.served)) == ("serving", 300_000, 1)
    # A page or an export takes state too; a newcomer is a member that came.
    assert state.num_newcomers == 0
    assert fold(state, Event(3.0, ME, MemberChanged(remote=OTHER))).num_newcomers == 1
    alone = fold(state, Event(9.0, ME, SwarmContact("lost", 5.0, is_training=False)))
    assert alone.phase == "alone"
    assert fold(alone, Event(9.5, ME, MemberChanged(remote=OTHER))).phase == "serving"


def test_a_download_is_over_when_all_is_there() -> None:
    fact = Fetched(430, 15.0877, total_bytes=1000)
    state = folded(Event(2.0, ME, fact))
    assert state.phase == "catching up"
    assert fact.sentence().endswith("20 s left.")
    last = Fetched(999, 6.2, total_bytes=1000)
    assert last.sentence().endswith(" less than 1 s left.")
    done = Event(4.0, ME, Fetched(1000, 3.0, (OTHER, ME), (0,)))
    assert fold(state, done).phase == "starting"
    assert done.sentence().count(",") == 1


@given(st.lists(st.floats(0, 20), max_size=2000))
def test_the_loss_curve_spans_the_session_in_bounded_memory(losses: list[float]) -> None:
    state = folded(*(progressed(float(at), loss) for at, loss in enumerate(losses)))
    assert len(state.losses) <= NUM_LOSSES
    assert state.losses == tuple(losses[:: state.loss_stride])
    assert state.losses[:1] == tuple(losses[:1])
