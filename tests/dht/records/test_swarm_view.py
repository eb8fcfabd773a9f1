"""SwarmView: the same records give the same view, in any order, and the view never lags behind what it knows."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.host import PeerId
from dht.records.peer_record import PEER_STATES, PeerRecord
from dht.records.swarm_view import MAX_SESSIONS, SwarmView
from tests.kit.records import LIFE_SECONDS, NOW, RUN_ID, anchored, make_record


@st.composite
def any_records(draw: st.DrawFn) -> PeerRecord:
    session = draw(st.integers(1, 3))
    num_fragments = draw(st.integers(0, 2))
    return make_record(
        draw(st.sampled_from("ABC")),
        session=session,
        sequence=draw(st.integers(0, 3)),
        expires_at=NOW + draw(st.integers(-10, 100)),
        started_at=NOW - draw(st.sampled_from([5.0, 5.0, 10.0])) * session,
        state=draw(st.sampled_from(PEER_STATES)),
        role=draw(st.sampled_from(["trainer", "seed"])),
        versions=(draw(st.integers(0, 2)),) * num_fragments,
        digests=(draw(st.sampled_from([b"1" * 8, b"2" * 8])),) * num_fragments,
        lineage_tokens=(draw(st.integers(0, 2)),) * num_fragments,
    )


def view_of(*records: PeerRecord, now: float = NOW) -> SwarmView:
    return SwarmView(RUN_ID).merge(records, now)


def names(records: tuple[PeerRecord, ...]) -> str:
    return "".join(record.peer_id for record in records)


def trainers(view: SwarmView, now: float = NOW) -> tuple[PeerRecord, ...]:
    return tuple(record for record in view.members(now) if record.is_training)


def picture(view: SwarmView, now: float = NOW) -> Any:
    return (
        view.members(now),
        trainers(view, now),
        [view.duplicate_sessions(PeerId(peer), now) for peer in "ABC"],
        view.differing(now),
    )


@given(st.lists(any_records(), max_size=12), st.randoms(use_true_random=False))
def test_order_batches_and_repetition_do_not_matter(records: list[PeerRecord], randomness: random.Random) -> None:
    at_once = view_of(*records)
    shuffled = [*records, *records[:3]]
    randomness.shuffle(shuffled)
    one_by_one = SwarmView(RUN_ID)
    for record in shuffled:
        one_by_one = one_by_one.merge([record], NOW)
    assert picture(one_by_one) == picture(at_once)


@given(st.lists(any_records(), max_size=8), st.lists(any_records(), max_size=8), st.integers(0, 120))
def test_changes_add_up(first: list[PeerRecord], second: list[PeerRecord], later: int) -> None:
    before = view_of(*first)
    after = before.merge(second, NOW + later)
    peers = [PeerId(peer) for peer in "ABC"]
    differ = [peer for peer in peers if before.get(peer, NOW) != after.get(peer, NOW + later)]
    assert set(differ) <= set(after.changed)
    assert list(after.changed) == sorted(after.changed)
    for peer in after.changed:
        shown, was = after.get(peer, NOW + later), before.get(peer, NOW)
        has_left = any(record.peer_id == peer and record.state == "left" for record in [*first, *second])
        assert shown is not was or has_left
    assert after.merge(second, NOW + later).changed == ()


@given(st.lists(st.tuples(st.lists(any_records(), max_size=5), st.integers(0, 40)), max_size=6))
def test_views_that_follow_each_other_keep_what_a_plain_fold_keeps(
    batches: list[tuple[list[PeerRecord], int]],
) -> None:
    view, now = SwarmView(RUN_ID), NOW
    newest: dict[tuple[PeerId, int], PeerRecord] = {}
    for records, seconds in batches:
        now += seconds
        view = view.merge(records, now)
        newest = {key: record for key, record in newest.items() if record.expires_at > now}
        for record in records:
            held = newest.get(key := (record.peer_id, record.session))
            if record.expires_at > now and (
                held is None
                or (record.sequence, record.expires_at, repr(record)) > (held.sequence, held.expires_at, repr(held))
            ):
                newest[key] = record
        for peer in "ABC":
            of_peer = [record for (owner, _), record in newest.items() if owner == peer]
            expected = max(of_peer, key=lambda record: (record.started_at, record.session), default=None)
            is_member = expected is not None and expected.state != "left"
            assert view.get(PeerId(peer), now) == (expected if is_member else None)
        assert names(view.members(now)) == "".join(peer for peer in "ABC" if view.get(PeerId(peer), now) is not None)


def test_of_many_sessions_of_one_peer_the_last_few_are_kept_in_whatever_order_they_come() -> None:
    records = [make_record(session=number, started_at=float(number)) for number in range(1, 50)]
    for ordered in (records, records[::-1]):
        view = SwarmView(RUN_ID)
        for record in ordered:
            view = view.merge([record], NOW)
        assert len(view._several[PeerId("A")]) == MAX_SESSIONS
        assert view.members(NOW)[0].session == 49
    # All of them go on beside each other: whose key it is is told.
    for record in records:
        view = view.merge([dataclasses.replace(record, sequence=9, expires_at=record.expires_at + 9)], NOW)
    assert view.duplicate_sessions(PeerId("A"), NOW) == tuple(range(50 - MAX_SESSIONS, 50))


def test_a_restart_is_no_duplicate() -> None:
    """The old process published at 980, was killed, and the new one began at 990."""
    old = make_record(session=7, started_at=500.0, expires_at=980.0 + LIFE_SECONDS)
    new = make_record(session=2, started_at=990.0, expires_at=990.0 + LIFE_SECONDS)
    view = view_of(old, new)
    view = view.merge([dataclasses.replace(new, sequence=2, expires_at=1020.0 + LIFE_SECONDS)], 1020.0)
    assert view.duplicate_sessions(PeerId("A"), 1020.0) == ()
    assert view.duplicate_sessions(PeerId("nobody"), 1020.0) == ()


def test_two_processes_with_one_key_are_seen() -> None:
    old = make_record(session=7, started_at=500.0, expires_at=980.0 + LIFE_SECONDS)
    new = make_record(session=2, started_at=990.0, expires_at=990.0 + LIFE_SECONDS)
    again = dataclasses.replace(old, sequence=2, expires_at=1005.0 + LIFE_SECONDS)
    view = view_of(old, new, again, make_record("B", session=8))
    assert view.duplicate_sessions(PeerId("A"), NOW) == (7, 2)
    assert view.duplicate_sessions(PeerId("B"), NOW) == ()
    assert names(view.members(NOW)) == "AB"
    assert view.duplicate_sessions(PeerId("A"), 990.0 + LIFE_SECONDS) == ()
    left = view.merge([dataclasses.replace(old, sequence=3, state="left")], NOW)
    assert left.duplicate_sessions(PeerId("A"), NOW) == ()


def test_another_runs_record_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="expected tiny"):
        view_of(make_record(run_id="other.abcdefghij234567abcd"))


def test_whose_anchor_differs_is_seen_among_those_at_one_version() -> None:
    view = view_of(
        anchored("A", 9, b"z", 900),
        anchored("B", 9, b"b", 100),
        anchored("C", 9, b"b", 100),
        anchored("D", 8, b"d", 90),
        anchored("E", 9, b"e", 100, state="joining"),
    )
    assert view.differing(NOW) == {PeerId("A"): (1,)}
    assert view_of(anchored("A", 9, b"z", 9), anchored("B", 9, b"b", 10)).differing(NOW) == {PeerId("A"): (1,)}
