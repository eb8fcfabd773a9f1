"""Real processes: network process or daemon is killed as soon as there is one, and the peer joins all the same."""

from __future__ import annotations

import os
import signal

import pytest

from tests.kit.processes.process_swarm import PeerProcess, process_swarm, wait_until


def kill_as_soon_as_it_is_there(peer: PeerProcess, kind: str) -> None:
    def victims() -> list[int]:
        family = peer.family()
        if kind == "network":
            return [process.pid for process in family if "peer.network.process.main" in process.command]
        return [process.pid for process in family if "/p2pd" in process.command.split(" ")[0]]

    wait_until(lambda: bool(victims()), f"the {kind} starts")
    os.kill(victims()[0], signal.SIGKILL)


@pytest.mark.parametrize("kind", ["network", "daemon"])
def test_a_death_at_the_start_is_no_end(kind: str) -> None:
    with process_swarm() as swarm:
        first = swarm.start("first", has_record=True)
        first.wait_joined()
        peer = swarm.start("late", peers=[first.address])
        kill_as_soon_as_it_is_there(peer, kind)
        peer.wait_joined()
        peer.wait_common_round(first.peer_id, after=peer.mark())
