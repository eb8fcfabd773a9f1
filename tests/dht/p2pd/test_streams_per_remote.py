"""Streams that one remote may have open, and IP versions: real daemons on loopback."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dht.ground.errors import PeerUnreachable
from dht.ground.host import Stream
from dht.identity.keys import Identity
from dht.identity.multiaddr import parse_multiaddr
from dht.p2pd import host
from dht.p2pd.host import P2pdHost
from peer.config.peer_config import has_ipv6
from tests.kit.host_contract import ECHO, echo

LOOPBACK = "/ip4/127.0.0.1/tcp/0"


def test_a_remote_has_no_more_streams_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_INCOMING_STREAMS_PER_PEER", 8)

    async def scene() -> None:
        async with (
            P2pdHost(Identity.generate(), [LOOPBACK]) as called,
            P2pdHost(Identity.generate(), [LOOPBACK]) as caller,
        ):
            called.handle(ECHO, echo)
            await caller.connect(called.addresses()[0], 20.0)
            streams = [await caller.open_stream(called.peer_id, ECHO, 20.0) for _ in range(12)]
            answered = 0
            for stream in streams:
                with contextlib.suppress(PeerUnreachable):
                    await stream.send(b"hello")
                    answered += await stream.receive(5) == b"hello"
            assert answered == 8

    asyncio.run(scene())


def test_a_remote_that_opens_one_stream_after_another_is_served_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "STREAMS_AT_ONCE", 3)
    monkeypatch.setattr(host, "SECONDS_PER_STREAM", 0.5)

    async def scene() -> None:
        async with (
            P2pdHost(Identity.generate(), [LOOPBACK]) as called,
            P2pdHost(Identity.generate(), [LOOPBACK]) as caller,
        ):
            called.handle(ECHO, echo)
            await caller.connect(called.addresses()[0], 20.0)
            began = asyncio.get_running_loop().time()
            for _ in range(6):
                stream = await caller.open_stream(called.peer_id, ECHO, 20.0)
                await stream.send(b"hello")
                assert await stream.receive(5) == b"hello"
                await stream.close()
            assert asyncio.get_running_loop().time() - began >= 1.5

    asyncio.run(scene())


def test_who_has_all_streams_gives_way_to_another_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_INCOMING_STREAMS", 6)

    async def scene() -> None:
        async with (
            P2pdHost(Identity.generate(), [LOOPBACK]) as called,
            P2pdHost(Identity.generate(), [LOOPBACK]) as greedy,
            P2pdHost(Identity.generate(), [LOOPBACK]) as modest,
        ):
            called.handle(ECHO, echo)
            answered, kept = {}, []
            for caller, number in ((greedy, 8), (modest, 1)):
                await caller.connect(called.addresses()[0], 20.0)
                answered[caller] = 0
                for _ in range(number):
                    stream = await caller.open_stream(called.peer_id, ECHO, 20.0)
                    kept.append(stream)
                    with contextlib.suppress(PeerUnreachable):
                        await stream.send(b"hello")
                        answered[caller] += await stream.receive(5) == b"hello"
            assert answered == {greedy: 6, modest: 1}

    asyncio.run(scene())


def test_streams_whose_handlers_do_not_end_give_way_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_INCOMING_STREAMS", 3)

    async def scene() -> None:
        goes_on = asyncio.Event()

        async def busy(stream: Stream) -> None:
            await stream.send(b"here")
            await goes_on.wait()

        async with (
            P2pdHost(Identity.generate(), [LOOPBACK]) as called,
            P2pdHost(Identity.generate(), [LOOPBACK]) as greedy,
            P2pdHost(Identity.generate(), [LOOPBACK]) as modest,
        ):
            called.handle(ECHO, busy)
            served, kept = [], []
            for caller, number in ((greedy, 3), (modest, 4)):
                await caller.connect(called.addresses()[0], 20.0)
                for _ in range(number):
                    stream = await caller.open_stream(called.peer_id, ECHO, 20.0)
                    kept.append(stream)
                    with contextlib.suppress(PeerUnreachable):
                        assert await stream.receive(4) == b"here"
                        served.append(caller)
            # Each has an answer or an end, also when there is nobody left who could give way.
            assert served == [greedy] * 3 + [modest]
            goes_on.set()

    asyncio.run(scene())


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_both_ip_versions_are_listened_on_at_one_port() -> None:
    async def scene() -> None:
        listen = [LOOPBACK, "/ip6/::1/tcp/0"]
        async with P2pdHost(Identity.generate(), listen) as called, P2pdHost(Identity.generate(), listen) as caller:
            called.handle(ECHO, echo)
            by_version = {address.split("/")[1]: address for address in called.addresses()}
            assert set(by_version) == {"ip4", "ip6"}
            assert len({parse_multiaddr(address).port for address in by_version.values()}) == 1
            await caller.connect(by_version["ip6"], 20.0)
            (connection,) = (await caller.connections())[called.peer_id]
            assert connection.ip is not None
            assert connection.ip.version == 6
            stream = await caller.open_stream(called.peer_id, ECHO, 20.0)
            await stream.send(b"hello")
            assert await stream.receive(5) == b"hello"

    asyncio.run(scene())
