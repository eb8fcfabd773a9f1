"""From a peer's reports about its rounds, through its record, to a lane of the dashboard's timeline."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.round_facts import CommitTaken, RoundStarted
from averaging.wire.messages import Commit
from dashboard.observe.round_timeline import (
    KEPT_SECONDS,
    MAX_LANE_PEERS,
    MAX_LANES_PER_PEER,
    Lanes,
    end_of,
    merge_lanes,
)
from dht.records.peer_record import RoundTimes, decode_peer_record, encode_peer_record
from peer.network.node.reporter import RoundClock
from tests.kit.dashboard.records import NOW, PEERS, RUN_ID, bare_record, record_of

LEADER = PEERS[1].peer_id
reals = st.floats(0, 1e18)
times = st.builds(RoundTimes, st.integers(0, 3), st.integers(0, 99), reals, reals, reals, reals, reals)


def taken(fragment: int, version: int, receive_seconds: float, apply_seconds: float) -> CommitTaken:
    return CommitTaken(Commit(fragment, version, 0, LEADER, b"", (), (), b""), True, receive_seconds, apply_seconds)


def test_phases_follow_one_another_from_one_round_to_the_next() -> None:
    clock = RoundClock(NOW)
    clock.began(RoundStarted(0, 4, LEADER, 3), NOW + 10)
    clock.applied(taken(0, 4, 1.5, 0.5), NOW + 16)
    assert clock.newest == RoundTimes(0, 4, NOW, 10.0, 4.0, 1.5, 0.5)
    clock.began(RoundStarted(1, 9, LEADER, 3), NOW + 20)
    # A second attempt at the same round is part of it.
    clock.began(RoundStarted(1, 9, LEADER, 3), NOW + 25)
    clock.applied(taken(1, 9, 1.0, 1.0), NOW + 30)
    assert clock.newest == RoundTimes(1, 9, NOW + 16, 4.0, 8.0, 1.0, 1.0)


def test_a_round_that_passed_by_tells_nothing() -> None:
    clock = RoundClock(NOW)
    clock.applied(taken(0, 4, 1.0, 1.0), NOW + 5)
    clock.began(RoundStarted(0, 6, LEADER, 3), NOW + 6)
    clock.applied(taken(0, 5, 1.0, 1.0), NOW + 9)
    assert clock.newest is None


@given(times)
def test_whatever_a_record_says_a_lane_is_in_the_past_and_short(newest: RoundTimes) -> None:
    for (one,) in merge_lanes({}, [replace(bare_record("peer"), newest_round=newest)], NOW).values():
        assert NOW - KEPT_SECONDS <= end_of(one) <= NOW + 1e-3
        assert one.compute_seconds <= KEPT_SECONDS
        assert end_of(one) - one.started_at < 2 * 3600


def test_times_travel_in_the_record_and_are_read_once() -> None:
    newest = RoundTimes(1, 7, NOW - 20, 8.0, 4.0, 2.0, 1.0)
    data = encode_peer_record(record_of(PEERS[0], newest_round=newest), PEERS[0])
    record = decode_peer_record(data, run_id=RUN_ID, now=NOW)
    lanes = merge_lanes({}, [record], NOW)
    assert lanes == {PEERS[0].peer_id: (newest,)}
    assert merge_lanes(lanes, [record], NOW + 2) == lanes
    assert merge_lanes(lanes, [], NOW + KEPT_SECONDS + 60) == {}


def test_a_flood_of_lanes_is_bounded() -> None:
    lanes: Lanes = {}
    for number in range(MAX_LANES_PER_PEER + 20):
        newest = RoundTimes(0, number, NOW - 5, 1.0 + number / 1000, 1.0, 1.0, 1.0)
        peers = [f"peer{index}" for index in range(MAX_LANE_PEERS + 10)] if number < 2 else ["peer0"]
        lanes = merge_lanes(lanes, [replace(bare_record(peer), newest_round=newest) for peer in peers], NOW)
    assert len(lanes) == MAX_LANE_PEERS
    assert len(lanes["peer0"]) == MAX_LANES_PER_PEER
