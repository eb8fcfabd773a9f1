"""What an observer loads, with a real daemon and without one."""

from __future__ import annotations

import pytest

from dht.observer.host_choice import HostBackend
from tests.kit.fresh_interpreter import HEAVY, run

OBSERVER = """
import asyncio
from dht.observer.network import observer_network

async def look():
    async with observer_network({backend!r}, ["/ip4/127.0.0.1/tcp/1"]) as (host, store):
        assert await store.bootstrap([]) == 0

asyncio.run(look())
assert "hivemind.dht.node" in sys.modules
assert not heavy(), heavy()
"""


@pytest.mark.parametrize("backend", ["p2pd", "libp2p"])
def test_an_observer_loads_little(backend: HostBackend):
    if backend == "libp2p":
        pytest.importorskip("libp2p", reason="the observer extra is not installed: pip install '.[observer]'")
    run(HEAVY + OBSERVER.format(backend=backend))
