"""A peer that is asked to leave before it has begun: a joiner in mid-download, a seed that nobody has a state for."""

from __future__ import annotations

import asyncio
import random

import pytest

from dht.admission.handshake_frames import AccessRule
from dht.ground.compute import compute_inline
from dht.identity.keys import Identity
from peer.events.peer_events import Event, JoinedRun, LeftRun
from peer.mailbox.mailbox import Mailbox
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.node.node import Node
from peer.network.node.node_inputs import NodeIdentity, NodePorts
from tests.kit.network.memory_networks import fixed_network
from tests.simulator.network.host import MemoryHost
from tests.simulator.network.store import MemoryRecords, MemoryStore
from tests.simulator.scenarios.spec import tiny_manifest
from tests.simulator.virtual_time import run_virtual

RUN_ID = "tiny.abcdefghij234567abcd"


@pytest.mark.parametrize("role", ["seed", "trainer"])
def test_it_leaves_at_once(role: str) -> None:
    """The trainer of this peer never posts its parameters, as when its module is refused."""
    seen: list[Event] = []

    async def scene() -> float:
        loop = asyncio.get_running_loop()
        manifest = tiny_manifest(0)
        identity = Identity.from_seed(bytes(32))
        network = fixed_network()
        host = MemoryHost(network, identity.peer_id)
        who = NodeIdentity(identity, RUN_ID, 7, role, "test", "", "test")
        ports = NodePorts(
            host,
            MemoryStore(MemoryRecords(network, lambda: 1e9 + loop.time()), host),
            RunHandshakePolicy(AccessRule(RUN_ID, manifest.hash, "test", manifest.rules), identity.peer_id, role),
            lambda: 1e9 + loop.time(),
            loop.time,
            compute_inline,
            seen.append,
            random.Random(1),
        )
        node = Node(who, manifest, ports, Mailbox.in_process((64, 64)))
        running = asyncio.create_task(node.run())
        await asyncio.sleep(30.0)
        assert not running.done()
        began = loop.time()
        node.leave("asked to stop")
        await running
        return loop.time() - began

    assert run_virtual(scene()) < 1.0
    assert [type(event.fact) for event in seen if isinstance(event.fact, JoinedRun | LeftRun)] == [LeftRun]
