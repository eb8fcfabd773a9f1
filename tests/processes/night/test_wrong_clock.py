"""A real peer on a machine whose clock is wrong, and is set while it trains."""

from __future__ import annotations

import pytest

from peer.events.peer_events import ClockIsWrong, JoinedRun
from tests.kit.processes.process_swarm import process_swarm

HOUR = 3600.0
SET_TIME = """
import os, time
real = time.time
path = os.environ["TEST_CLOCK"]
time.time = lambda: real() + float(open(path).read())
"""
"""Runs at the start of each Python process of the peer: each sees the clock of this machine as a wrong one."""


@pytest.mark.parametrize("wrong", [-HOUR, HOUR])
def test_a_peer_with_a_wrong_clock_says_so_waits_and_takes_part_once_it_is_set(tmp_path, wrong):
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(SET_TIME)
    clock = tmp_path / "clock"
    clock.write_text(str(wrong))
    with process_swarm() as swarm:
        right = swarm.start("right", has_record=True)
        right.wait_joined()
        environment = {"TEST_CLOCK": str(clock), "PYTHONPATH": str(tmp_path / "hook")}
        late = swarm.start("late", peers=[right.address], environment=environment)
        told = late.wait_for(ClockIsWrong)
        assert told.seconds_ahead == pytest.approx(wrong, abs=5.0)
        assert not any(isinstance(event.fact, JoinedRun) for event in late.events())
        clock.write_text("0.0")
        late.wait_joined()
        late.wait_common_round(right.peer_id, after=0)
        mark = late.mark()
        clock.write_text(str(wrong))
        for _ in range(3):
            late.wait_common_round(right.peer_id, after=mark)
            mark = late.mark()
        assert sum(isinstance(event.fact, ClockIsWrong) for event in late.events()) == 1
