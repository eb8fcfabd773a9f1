"""One DHT of p2pd peers and pure-Python hosts, for real on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from dht.ground.errors import PeerUnreachable
from dht.ground.host import Host, StreamHandler
from dht.identity.keys import Identity
from dht.identity.multiaddr import parse_multiaddr
from dht.p2pd.host import P2pdHost
from dht.records.signed_manifest import run_key
from tests.kit.host_contract import (
    CONTRACT,
    ECHO,
    Check,
    HostNetwork,
    assert_echo,
    both_sides_can_open,
    echo,
    run_check,
)

pytest.importorskip("libp2p", reason="the observer extra is not installed: pip install '.[observer]'")
pytest.importorskip("hivemind")

from hivemind.p2p import PeerID

from dht.kademlia.dht_guards import key_id_of
from dht.pylibp2p import connections
from dht.pylibp2p.host import Libp2pHost
from tests.kit.network.dht_members import CHECK_SECONDS, LOOPBACK, Members, with_members
from tests.kit.network.signed_records import RUN_ID, open_admission, run_record

AnyHost = P2pdHost | Libp2pHost


class MixedNetwork(HostNetwork):
    """An observer's host, and p2pd hosts that it dials."""

    def __init__(self) -> None:
        self.hosts: list[AnyHost] = []

    async def host(self, handlers: Mapping[str, StreamHandler]) -> Host:
        identity = Identity.generate()
        host = P2pdHost(identity, LOOPBACK) if self.hosts else Libp2pHost(identity)
        for protocol, handler in handlers.items():
            host.handle(protocol, handler)
        self.hosts.append(host)
        await host.__aenter__()
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


@pytest.mark.parametrize(
    "check", [check for check in CONTRACT if check is not both_sides_can_open], ids=lambda it: it.__name__
)
def test_contract_between_both_kinds(check: Check) -> None:
    asyncio.run(run_check(check, MixedNetwork()))


def test_an_observer_reads_everything_and_is_in_nobodys_way() -> None:
    async def check(members: Members) -> None:
        swarm = await members.swarm(3)
        for member in swarm:
            await member.publish(80.0)
        records = {member.record for member in swarm}
        await swarm[0].store.publish_run(RUN_ID, run_record(1), time.time() + 60)
        before = [member.knows() for member in swarm]
        observer = await members.add(Libp2pHost)
        assert observer.host.addresses() == []
        assert await observer.store.bootstrap(swarm[1].host.addresses()) >= 1
        assert await observer.seen() == records
        assert await observer.store.fetch_run(RUN_ID) == run_record(1)
        # The peers look around, and may ask whom they are connected with.
        for member in swarm:
            await member.store.bootstrap([])
        assert [member.knows() for member in swarm] == before
        assert len(observer.store._member.storage) == 0
        # Through one address it has found the others, by id, and goes on without that one.
        await swarm[1].store.close()
        await swarm[1].host.close()
        for member in (swarm[0], swarm[2]):
            await member.publish(82.0, sequence=2)
        assert {swarm[0].record, swarm[2].record} <= await observer.seen()

    with_members(check)


def test_strangers_are_kept_out_whatever_carries_their_calls() -> None:
    async def check(members: Members) -> None:
        strangers = [await members.add(kind) for kind in (P2pdHost, Libp2pHost)]
        admission = open_admission(*(stranger.identity.peer_id for stranger in strangers))
        guarded = await members.add(P2pdHost, admission=admission)
        await guarded.publish()
        for stranger in strangers:
            assert await stranger.store.bootstrap(guarded.host.addresses()) == 0
            assert await stranger.seen() == set()
            answer = await (await stranger.store._member.ready()).protocol.call_find(
                PeerID.from_base58(guarded.identity.peer_id), [key_id_of(run_key(RUN_ID))]
            )
            assert answer is None
        assert guarded.store._member.num_members == 0

    with_members(check)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other tasks do; the check's own deadline ends it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


Meddle = Callable[[bytes], bytes]


@contextlib.asynccontextmanager
async def carrier(called: P2pdHost, upwards: Meddle, downwards: Meddle) -> AsyncIterator[str]:
    """Carries bytes to `called` and back, changed on the way; gives the address with its PeerId."""
    carrying: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, meddle: Meddle) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(meddle(data))
        finally:
            sink.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        carrying.add(task)
        # asyncio takes a handler that ends cancelled for a failure.
        with contextlib.suppress(asyncio.CancelledError):
            port = parse_multiaddr(called.addresses()[0]).port
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(copy(reader, far_writer, upwards), copy(far_reader, writer, downwards))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}/p2p/{called.peer_id}"
    finally:
        server.close()
        # On a busy machine the end of one direction has not come yet when both hosts know that it is over.
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying)


def with_pair(check: Callable[[Libp2pHost, P2pdHost], Awaitable[None]]) -> None:
    """An observer's host, and a p2pd host that echoes."""

    async def run() -> None:
        async with asyncio.timeout(CHECK_SECONDS), P2pdHost(Identity.generate(), LOOPBACK) as called:
            called.handle(ECHO, echo)
            async with Libp2pHost(Identity.generate()) as caller:
                await check(caller, called)

    asyncio.run(run())


def test_bytes_changed_on_the_way_end_the_connection() -> None:
    async def check(caller: Libp2pHost, called: P2pdHost) -> None:
        may_meddle = asyncio.Event()

        def flip_last(data: bytes) -> bytes:
            return data[:-1] + bytes([data[-1] ^ 1]) if may_meddle.is_set() else data

        async with carrier(called, flip_last, flip_last) as address:
            await caller.connect(address, 5.0)
            stream = await caller.open_stream(called.peer_id, ECHO, 5.0)
            may_meddle.set()
            await stream.send(b"hello")
            with pytest.raises(PeerUnreachable):
                await stream.receive(5)
            await until(lambda: not caller._connections.live())

    with_pair(check)


async def talk(caller: Libp2pHost, called: P2pdHost, address: str) -> None:
    await caller.connect(address, 0.2)
    await assert_echo(caller, called)


@pytest.mark.parametrize("is_upwards", [True, False], ids=["from the dialler", "to the dialler"])
def test_a_handshake_with_any_bit_changed_fails(is_upwards: bool) -> None:
    async def check(caller: Libp2pHost, called: P2pdHost) -> None:
        chance = random.Random(3)
        for position in range(0, 360, 24):
            place = position + chance.randrange(24)
            seen_bytes = 0

            def flip_one(data: bytes, place: int = place) -> bytes:
                nonlocal seen_bytes
                start, seen_bytes = seen_bytes, seen_bytes + len(data)
                index = place - start
                if not 0 <= index < len(data):
                    return data
                return data[:index] + bytes([data[index] ^ 1 << chance.randrange(8)]) + data[index + 1 :]

            ways = (flip_one, bytes) if is_upwards else (bytes, flip_one)
            async with carrier(called, *ways) as address:
                with pytest.raises((PeerUnreachable, TimeoutError)):
                    await asyncio.wait_for(talk(caller, called, address), 0.3)
            for connection in caller._connections.live():
                connection.muxer.end("the next try")
            await until(lambda: not caller._connections.live())
        await caller.connect(called.addresses()[0], 5.0)
        await assert_echo(caller, called)

    with_pair(check)


def test_an_idle_connection_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)

    async def check(caller: Libp2pHost, called: P2pdHost) -> None:
        async with P2pdHost(Identity.generate(), LOOPBACK) as other:
            other.handle(ECHO, echo)
            for host in (called, other):
                await caller.connect(host.addresses()[0], 5.0)
                await assert_echo(caller, host)
                await until(lambda: not caller._connections.live()[-1].muxer.num_streams)
            await until(lambda: len(caller._connections.live()) == 1)
            # The one that gave way is dialled again when it is wanted.
            await assert_echo(caller, called)

    with_pair(check)
