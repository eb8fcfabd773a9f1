"""The swarm that most tests of real processes share within a file: its peers start when a test first asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.processes.process_swarm import PeerProcess, ProcessSwarm, process_swarm


@pytest.fixture(scope="module")
def swarm() -> Iterator[ProcessSwarm]:
    with process_swarm() as made:
        yield made


@pytest.fixture(scope="module")
def first(swarm: ProcessSwarm) -> PeerProcess:
    peer = swarm.start("first", has_record=True)
    peer.wait_joined()
    return peer


@pytest.fixture(scope="module")
def second(swarm: ProcessSwarm, first: PeerProcess) -> PeerProcess:
    peer = swarm.start("second", peers=[first.address])
    peer.wait_joined()
    return peer
