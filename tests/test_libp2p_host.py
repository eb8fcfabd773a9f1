"""Libp2pHost with real sockets on loopback, alone and together with p2pd hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from dht.host import Host, StreamHandler
from dht.identity import Identity
from tests.host_contract import CONTRACT, Check, HostNetwork, run_check

pytest.importorskip("libp2p", reason="the observer extra is not installed: pip install 'murmuration[observer]'")

from dht.libp2p_host import Libp2pHost

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


class Libp2pNetwork(HostNetwork):
    def __init__(self) -> None:
        self.hosts: list[Libp2pHost] = []

    async def host(self, handlers: Mapping[str, StreamHandler]) -> Libp2pHost:
        host = Libp2pHost(Identity.generate(), LOOPBACK)
        for protocol, handler in handlers.items():
            host.handle(protocol, handler)
        self.hosts.append(host)
        await host.start()
        return host

    async def send_partial_frame(self, host: Host, to: Host, protocol: str, data: bytes) -> bool:
        assert isinstance(host, Libp2pHost)
        stream = await host.open_bytes(to.peer_id, protocol, 10.0)
        stream.write(data)
        stream.close()
        await stream.wait_closed()
        return True

    async def close(self) -> None:
        for host in self.hosts:
            await host.close()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(check: Check) -> None:
    asyncio.run(run_check(check, Libp2pNetwork()))
