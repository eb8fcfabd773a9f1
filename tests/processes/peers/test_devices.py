"""Peers of several processes in a real swarm: one member each, anchors as everybody's, nothing left behind."""

from __future__ import annotations

import os
import signal

import pytest

from peer.events.peer_events import CheckpointSaved, LeftRun, TrainingProgressed
from tests.kit.processes.process_swarm import (
    PeerProcess,
    ProcessInfo,
    RoundKey,
    assert_one_sentence,
    process_swarm,
    wait_until,
)
from tests.kit.tiers import sampled

SOON_SECONDS = 180.0


def ranks_of(peer: PeerProcess) -> list[ProcessInfo]:
    return [process for process in peer.family() if "peer.trainer.loop.rank_process" in process.command]


@pytest.mark.parametrize("returns", sampled([False, True], one_in=2))
def test_a_sharded_peer_trains_with_an_ordinary_one_comes_back_and_dies_as_a_whole(returns: bool) -> None:
    with process_swarm() as swarm:
        first = swarm.start("first", has_record=True)
        pair = swarm.start("pair", "--devices", "2", "--shard", peers=[first.address])
        first.wait_joined(seconds=SOON_SECONDS)
        pair.wait_joined(seconds=SOON_SECONDS)
        assert len(ranks_of(pair)) == 1
        assert sum("peer.network.process.main" in process.command for process in pair.family()) == 1
        pair.wait_common_round(first.peer_id, after=0, seconds=SOON_SECONDS)

        def common_rounds() -> set[RoundKey]:
            return {key for key in pair.outcomes().keys() & first.outcomes().keys() if len(key[2]) == 2}

        wait_until(lambda: bool(common_rounds()), "both show a round", SOON_SECONDS)
        common = common_rounds()
        assert {key: pair.outcomes()[key] for key in common} == {key: first.outcomes()[key] for key in common}

        os.killpg(pair.process.pid, signal.SIGINT)  # Ctrl+C in a terminal reaches all of them
        assert pair.wait_end(SOON_SECONDS) == 0, pair.last_words()
        assert not pair.family()
        assert "Traceback" not in pair.stderr
        assert any(isinstance(event.fact, CheckpointSaved) for event in pair.events())
        assert [event.fact.reason for event in pair.events() if isinstance(event.fact, LeftRun)] == ["asked to stop"]
        if not returns:
            return
        before = pair.inner_steps()

        # It comes back with the whole model on each device: a checkpoint does not depend on how it was held.
        mark = pair.mark()
        again = swarm.start("pair", "--devices", "2", peers=[first.address])
        again.wait_joined(after=mark, seconds=SOON_SECONDS)
        again.wait_for(TrainingProgressed, lambda event: event.inner_steps > before, after=mark, seconds=SOON_SECONDS)
        assert "starts without it" not in again.stderr
        again.wait_common_round(first.peer_id, after=again.mark(), seconds=SOON_SECONDS)
        os.kill(ranks_of(again)[0].pid, signal.SIGKILL)
        assert again.wait_end(SOON_SECONDS) == 1
        assert_one_sentence(again.stderr, "Process 1 of this peer was ended by SIGKILL", "start again")
        assert not again.family()
        wait_until(
            lambda: {process.pid for process in swarm.processes()} == {process.pid for process in first.family()},
            "nothing of the dead peer is left",
        )
