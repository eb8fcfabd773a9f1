"""One DHT of p2pd peers and pure-Python hosts, for real on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import pytest

from dht.errors import PeerUnreachable
from dht.host import Host, PeerId, StreamHandler
from dht.identity.keys import Identity
from dht.p2pd.host import P2pdHost
from dht.records.signed_records import run_key
from tests.kit.host_contract import CONTRACT, ECHO, Check, HostNetwork, echo, run_check

pytest.importorskip("libp2p", reason="the observer extra is not installed: pip install 'murmuration-swarm[observer]'")
pytest.importorskip("hivemind")

from hivemind.p2p import P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import dht_pb2

from dht.kademlia.dht_guards import key_id_of
from dht.kademlia.store import HivemindStore
from dht.p2pd.control import P2pdControl
from dht.p2pd.daemon import DaemonOptions
from dht.pylibp2p.host import Libp2pHost
from tests.kit.network.signed_records import RUN_ID, run_record, signed_record

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
CHECK_SECONDS = 90.0
AnyHost = P2pdHost | Libp2pHost


async def send_bytes(host: AnyHost, to: Host, protocol: str, data: bytes) -> None:
    """Send bytes that are no frame, and end the stream."""
    if isinstance(host, P2pdHost):
        writer = await P2pdControl(host.control_socket).open_stream(to.peer_id, protocol, 10.0)
        writer.write(data)
        writer.close()
        await writer.wait_closed()
    else:
        stream = await host.open_bytes(to.peer_id, protocol, 10.0)
        stream.write(data)
        stream.close()
        await stream.wait_closed()


class MixedNetwork(HostNetwork):
    """Hosts of both kinds in turn."""

    def __init__(self, *kinds: type[AnyHost]) -> None:
        self._kinds = kinds
        self.hosts: list[AnyHost] = []

    async def host(self, handlers: Mapping[str, StreamHandler]) -> Host:
        kind = self._kinds[len(self.hosts) % len(self._kinds)]
        host = kind(Identity.generate(), LOOPBACK)
        for protocol, handler in handlers.items():
            host.handle(protocol, handler)
        self.hosts.append(host)
        await host.start()
        return host

    async def send_partial_frame(self, host: Host, to: Host, protocol: str, data: bytes) -> bool:
        assert isinstance(host, AnyHost)
        await send_bytes(host, to, protocol, data)
        return True

    async def close(self) -> None:
        for host in self.hosts:
            await host.close()


@pytest.mark.parametrize("kinds", [(Libp2pHost, P2pdHost), (P2pdHost, Libp2pHost)], ids=["libp2p-calls", "p2pd-calls"])
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract_between_both_kinds(check: Check, kinds: tuple[type[AnyHost], ...]) -> None:
    asyncio.run(run_check(check, MixedNetwork(*kinds)))


class Members:
    """Members of both kinds; all are closed at the end."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()

    async def add(
        self, kind: type[AnyHost], *, observes: bool = False, admit: Callable[[PeerId], bool] = lambda peer_id: True
    ) -> Member:
        identity = Identity.generate()
        host = Libp2pHost(identity) if observes else kind(identity, LOOPBACK)
        await self._stack.enter_async_context(host)
        store = HivemindStore(host, admit=admit, serves=not observes)
        await store.start()
        self._stack.push_async_callback(store.close)
        return Member(identity, host, store)

    async def p2pd_swarm(self, num_members: int) -> list[Member]:
        members = [await self.add(P2pdHost) for _ in range(num_members)]
        for member in members[1:]:
            assert await member.store.bootstrap(members[0].host.addresses()) >= 1
        return members

    async def enter(self, host: P2pdHost) -> None:
        await self._stack.enter_async_context(host)

    async def close(self) -> None:
        await self._stack.aclose()


@dataclass
class Member:
    identity: Identity
    host: AnyHost
    store: HivemindStore

    async def publish(self, sequence: int = 1) -> bytes:
        record, expires_at = signed_record(self.identity, 80.0 + sequence, sequence)
        await self.store.publish_peer(RUN_ID, self.identity.peer_id, record, expires_at)
        return record

    async def seen(self) -> set[bytes]:
        return set(await self.store.fetch_peers(RUN_ID))

    def knows(self) -> set[str]:
        """PeerIds in the DHT's routing table."""
        table = self.store._member._node.protocol.routing_table
        return {peer.to_base58() for peer in table.uid_to_peer_id.values()}


def with_members(check: Callable[[Members], Awaitable[None]]) -> None:
    async def run() -> None:
        members = Members()
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await check(members)
        finally:
            await members.close()

    asyncio.run(run())


def test_both_kinds_are_one_dht() -> None:
    async def check(members: Members) -> None:
        daemons = await members.p2pd_swarm(2)
        first, second = await members.add(Libp2pHost), await members.add(Libp2pHost)
        assert await first.store.bootstrap(daemons[0].host.addresses()) >= 1
        # The second one's only address is that of another pure-Python host; the rest it finds through it.
        assert await second.store.bootstrap(first.host.addresses()) >= 1
        everybody = [*daemons, first, second]
        for member in everybody:
            await member.store.bootstrap([])
        records = {await member.publish() for member in everybody}
        await first.store.publish_run(RUN_ID, run_record(1), time.time() + 60)
        for member in everybody:
            assert await member.seen() == records
            assert await member.store.fetch_run(RUN_ID) == run_record(1)
        # Those without a daemon hold records for the others.
        for member in (first, second):
            assert member.store._member.storage.get(key_id_of(run_key(RUN_ID))) is not None
            assert member.identity.peer_id in daemons[0].knows()

    with_members(check)


def test_an_observer_reads_everything_and_is_in_nobodys_way() -> None:
    async def check(members: Members) -> None:
        swarm = await members.p2pd_swarm(3)
        records = {await member.publish() for member in swarm}
        await swarm[0].store.publish_run(RUN_ID, run_record(1), time.time() + 60)
        before = [member.knows() for member in swarm]
        observer = await members.add(Libp2pHost, observes=True)
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
        renewed = {await member.publish(2) for member in (swarm[0], swarm[2])}
        assert renewed <= await observer.seen()

    with_members(check)


def test_strangers_are_kept_out_whatever_carries_their_calls() -> None:
    async def check(members: Members) -> None:
        guarded = await members.add(Libp2pHost, admit=lambda peer_id: False)
        await guarded.publish()
        for kind in (P2pdHost, Libp2pHost):
            stranger = await members.add(kind)
            assert await stranger.store.bootstrap(guarded.host.addresses()) == 0
            assert await stranger.seen() == set()
            answer = await (await stranger.store._member.ready()).protocol.call_find(
                PeerID.from_base58(guarded.identity.peer_id), [key_id_of(run_key(RUN_ID))]
            )
            assert answer is None
        assert guarded.store.num_members == 0

    with_members(check)


def test_a_daemon_finds_another_through_a_pure_python_host() -> None:
    async def check(members: Members) -> None:
        middle = await members.add(Libp2pHost)
        one, other = await members.add(P2pdHost), await members.add(P2pdHost)
        other.host.handle(ECHO, echo)
        for member in (other, one):
            await member.host.connect(middle.host.addresses()[0], 5.0)
        # The daemons ask whom they have heard to be routers, which takes them a moment after the connection.
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(PeerUnreachable):
                    stream = await one.host.open_stream(other.identity.peer_id, ECHO, 2.0)
                    break
        await stream.send(b"hello")
        assert await stream.receive(5) == b"hello"
        await stream.close()

    with_members(check)


def test_a_member_behind_a_relay_is_reached_through_it() -> None:
    async def check(members: Members) -> None:
        relay = P2pdHost(Identity.generate(), LOOPBACK, options=DaemonOptions(reachability="public"))
        await members.enter(relay)
        options = DaemonOptions(reachability="private", trusted_relays=tuple(relay.addresses()))
        hidden = P2pdHost(Identity.generate(), LOOPBACK, options=options)
        hidden.handle(ECHO, echo)
        await members.enter(hidden)
        observer = await members.add(Libp2pHost, observes=True)
        address = f"{relay.addresses()[0]}/p2p-circuit/p2p/{hidden.peer_id}"
        # A reservation at the relay takes the hidden daemon some seconds.
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(PeerUnreachable):
                    await observer.host.connect(address, 5.0)
                    break
                await asyncio.sleep(0.2)
        stream = await observer.host.open_stream(hidden.peer_id, ECHO, 5.0)
        for frame in (b"hello", bytes(50_000)):
            await stream.send(frame)
            assert await stream.receive(len(frame)) == frame
        await stream.close()
        with pytest.raises(PeerUnreachable, match="relay refused"):
            await observer.host.connect(f"{relay.addresses()[0]}/p2p-circuit/p2p/{Identity.generate().peer_id}", 5.0)

    with_members(check)


@pytest.mark.parametrize("kind", [P2pdHost, Libp2pHost], ids=["p2pd calls", "libp2p calls"])
def test_garbage_in_place_of_a_dht_call_is_refused(kind: type[AnyHost], caplog: pytest.LogCaptureFixture) -> None:
    async def check(members: Members) -> None:
        called, caller = await members.add(Libp2pHost), await members.add(kind)
        await called.publish()
        assert await caller.store.bootstrap(called.host.addresses()) == 1
        assert isinstance(called.host, Libp2pHost)
        for content in (b"", b"\x00", b"\x05hello", b"\xff\xff\xff\xff\x7f" + bytes(99), b"\x80" * 40, bytes(9000)):
            await send_bytes(caller.host, called.host, "DHTProtocol.rpc_find", content)
        line = caller.store._member._line
        assert line is not None
        with pytest.raises((P2PHandlerError, P2PDaemonError)):
            await line.call_protobuf_handler(
                PeerID.from_base58(called.identity.peer_id),
                "DHTProtocol.rpc_store",
                dht_pb2.StoreRequest(keys=[b"short"], values=[b"x"], peer=dht_pb2.NodeInfo(node_id=b"y")),
                dht_pb2.StoreResponse,
            )
        assert len(await caller.seen()) == 1

    with_members(check)
    assert "bug" not in caplog.text
