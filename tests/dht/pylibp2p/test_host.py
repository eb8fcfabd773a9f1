"""Libp2pHost with real sockets on loopback, alone and together with p2pd hosts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import LocalFault, PeerUnreachable, UsageFault
from dht.host import Host, Stream, StreamHandler
from dht.identity.keys import Identity
from dht.identity.multiaddr import parse_multiaddr
from dht.observer.backend import choose_backend
from dht.observer.network import observer_network
from dht.pylibp2p.protobuf_clash import make_room_for_libp2p
from tests.kit.host_contract import CONTRACT, ECHO, Check, HostNetwork, echo, run_check

pytest.importorskip("libp2p", reason="the observer extra is not installed: pip install 'murmuration-swarm[observer]'")

from dht.pylibp2p import connections, messages
from dht.pylibp2p import host as libp2p_host
from dht.pylibp2p.handshake import MULTISTREAM, SocketStream, propose
from dht.pylibp2p.host import MAX_INCOMING_STREAMS_PER_PEER, Libp2pHost

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
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(check: Check) -> None:
    asyncio.run(run_check(check, Libp2pNetwork()))


def run_on_network(check: Callable[[Libp2pNetwork], Awaitable[None]]) -> None:
    unseen: list[dict[str, Any]] = []

    async def run() -> None:
        # An exception that ends a task nobody waits for would only be logged.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
        network = Libp2pNetwork()
        try:
            async with asyncio.timeout(60):
                await check(network)
        finally:
            await network.close()

    asyncio.run(run())
    gc.collect(1)
    assert not unseen


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other tasks do; the check's own deadline ends it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def assert_echo(caller: Libp2pHost, called: Libp2pHost) -> None:
    stream = await caller.open_stream(called.peer_id, ECHO, 10.0)
    await stream.send(b"hello")
    assert await stream.receive(5) == b"hello"
    await stream.close()


async def open_socket(host: Libp2pHost) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = parse_multiaddr(host.addresses()[0]).port
    assert port is not None
    return await asyncio.open_connection("127.0.0.1", port)


@contextlib.asynccontextmanager
async def listener(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Somebody on a port of this machine; gives an address with the PeerId of nobody."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}/p2p/{Identity.generate().peer_id}"
    finally:
        server.close()


NOISE = b"\x13/multistream/1.0.0\n\x07/noise\n"


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01" + bytes(500),
        bytes(1000),
        b"\xff" * 1000,
        b"\x13/multistream/1.0.0\n" + b"\x05/tls\n" * 40,
        NOISE + b"\x00\x20" + bytes(32) + b"\x00\x40" + bytes(64),
        NOISE + b"\xff\xff" + bytes(200),
        NOISE + b"\x00\x00" * 50,
        NOISE + random.Random(7).randbytes(3000),
    ],
    ids=["http", "tls", "zeros", "ones", "other protocols", "no key", "long", "empty", "random"],
)
def test_garbage_at_the_port_is_refused_and_disturbs_nobody(content: bytes) -> None:
    async def check(network: Libp2pNetwork) -> None:
        caller, called = await network.host({}), await network.host({ECHO: echo})
        await caller.connect(called.addresses()[0], 5.0)
        reader, writer = await open_socket(called)
        writer.write(content)
        writer.write_eof()
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(4096):
                pass
        writer.close()
        await assert_echo(caller, called)
        assert len(called._connections.live()) == 1

    run_on_network(check)


def test_callers_who_say_nothing_are_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.1)
    monkeypatch.setattr(connections, "MAX_HANDSHAKES", 2)

    async def check(network: Libp2pNetwork) -> None:
        called = await network.host({ECHO: echo})
        for reader, writer in [await open_socket(called) for _ in range(4)]:
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(4096):
                    pass
            writer.close()
        monkeypatch.undo()
        caller = await network.host({})
        await caller.connect(called.addresses()[0], 5.0)
        await assert_echo(caller, called)

    run_on_network(check)


def test_whoever_accepts_and_says_nothing_is_unreachable_in_time() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n" * 9)
        await reader.read()
        writer.close()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def check(network: Libp2pNetwork) -> None:
        caller = await network.host({})
        for serve, sentence in (
            (say_nothing, "did not answer within 0.3 s"),
            (talk_nonsense, "a protocol name|it answered|no libp2p"),
            (hang_up, "it closed the connection|reset"),
        ):
            async with listener(serve) as address:
                with pytest.raises(PeerUnreachable, match=sentence):
                    await caller.connect(address, 0.3 if serve is say_nothing else 5.0)
        async with listener(say_nothing) as address:
            pass
        with pytest.raises(PeerUnreachable, match="nobody listens there"):
            await caller.connect(address, 5.0)
        with pytest.raises(PeerUnreachable, match="network daemon can dial"):
            await caller.connect(f"/ip4/127.0.0.1/udp/1/quic-v1/p2p/{Identity.generate().peer_id}", 5.0)
        assert caller._connections.live() == []

    run_on_network(check)


Meddle = Callable[[bytes], bytes]


@contextlib.asynccontextmanager
async def carrier(called: Libp2pHost, upwards: Meddle, downwards: Meddle) -> AsyncIterator[str]:
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
            far_reader, far_writer = await open_socket(called)
            await asyncio.gather(copy(reader, far_writer, upwards), copy(far_reader, writer, downwards))

    async with listener(carry) as address:
        yield f"{address.rpartition('/p2p/')[0]}/p2p/{called.peer_id}"
    # On a busy machine the end of one direction has not come yet when both hosts know that it is over.
    for task in carrying:
        task.cancel()
    await asyncio.gather(*carrying)


def test_bytes_changed_on_the_way_end_the_connection() -> None:
    async def check(network: Libp2pNetwork) -> None:
        caller, called = await network.host({}), await network.host({ECHO: echo})
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
            await until(lambda: not caller._connections.live() and not called._connections.live())

    run_on_network(check)


async def talk(caller: Libp2pHost, called: Libp2pHost, address: str) -> None:
    await caller.connect(address, 0.2)
    await assert_echo(caller, called)


@pytest.mark.parametrize("is_upwards", [True, False], ids=["from the dialler", "to the dialler"])
def test_a_handshake_with_any_bit_changed_fails(is_upwards: bool) -> None:
    async def check(network: Libp2pNetwork) -> None:
        caller, called = await network.host({}), await network.host({ECHO: echo})
        chance = random.Random(3)
        for position in range(0, 360, 8):
            place = position + chance.randrange(8)
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
            for host in (caller, called):
                for connection in host._connections.live():
                    connection.muxer.end("the next try")
            await until(lambda: not caller._connections.live() and not called._connections.live())
        await caller.connect(called.addresses()[0], 5.0)
        await assert_echo(caller, called)

    run_on_network(check)


def test_one_remote_gets_so_many_streams_and_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS_PER_PEER", 1)

    async def check(network: Libp2pNetwork) -> None:
        served: list[Stream] = []
        enough = asyncio.Event()

        async def hold(stream: Stream) -> None:
            served.append(stream)
            if len(served) == MAX_INCOMING_STREAMS_PER_PEER:
                enough.set()
            await stream.receive(10)

        caller, called = await network.host({}), await network.host({ECHO: hold})
        await caller.connect(called.addresses()[0], 5.0)
        streams = [await caller.open_stream(called.peer_id, ECHO, 5.0) for _ in range(MAX_INCOMING_STREAMS_PER_PEER)]
        await enough.wait()
        with pytest.raises(PeerUnreachable):
            await caller.open_stream(called.peer_id, ECHO, 5.0)
        await streams[0].close()
        # Room is made as soon as the other side has noticed.
        await until(lambda: called._incoming.total() < MAX_INCOMING_STREAMS_PER_PEER)
        await caller.open_stream(called.peer_id, ECHO, 5.0)
        # Who comes back, while its old connection still seems to live, is let in; the old one gives way.
        again = Libp2pHost(caller._identity)
        network.hosts.append(again)
        await again.start()
        await again.connect(called.addresses()[0], 5.0)
        await until(lambda: not caller._connections.live() and len(called._connections.live()) == 1)
        await until(lambda: not called._incoming.total())
        await again.open_stream(called.peer_id, ECHO, 5.0)

    run_on_network(check)


def test_an_idle_connection_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)

    async def check(network: Libp2pNetwork) -> None:
        caller = await network.host({})
        others = [await network.host({ECHO: echo}) for _ in range(3)]
        for other in others:
            await caller.connect(other.addresses()[0], 5.0)
            await assert_echo(caller, other)
        await until(lambda: len(caller._connections.live()) <= 2)
        # The one that gave way is dialled again when it is wanted.
        for other in others:
            await assert_echo(caller, other)

    run_on_network(check)


def test_a_peer_is_found_by_its_id_through_those_who_route(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(network: Libp2pNetwork) -> None:
        observer = Libp2pHost(Identity.generate())
        network.hosts.append(observer)
        await observer.start()
        middle, far = await network.host({}), await network.host({ECHO: echo})
        await far.connect(middle.addresses()[0], 5.0)
        await observer.connect(middle.addresses()[0], 5.0)
        await until(lambda: bool(middle._known) and bool(observer._routers))
        await assert_echo(observer, far)
        # An observer is no router, and tells no addresses.
        assert messages.KAD_PROTOCOL not in observer._handlers
        assert observer.peer_id not in middle._known
        assert observer.peer_id not in middle._routers

    run_on_network(check)


def test_loopback_addresses_told_from_afar_are_not_believed() -> None:
    host = Libp2pHost(Identity.generate())
    peer = Identity.generate().peer_id
    host._learn(peer, [parse_multiaddr("/ip4/127.0.0.1/tcp/22")], from_loopback=False)
    assert host._known == {}
    outside = parse_multiaddr("/ip4/203.0.113.5/tcp/4001")
    host._learn(peer, [parse_multiaddr("/ip4/127.0.0.1/tcp/22"), outside], from_loopback=False)
    assert host._known == {peer: (outside,)}


def test_what_is_known_of_others_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libp2p_host, "MAX_KNOWN_PEERS", 3)
    host = Libp2pHost(Identity.generate())
    peers = [Identity.generate().peer_id for _ in range(5)]
    for peer in peers:
        host._learn(peer, [parse_multiaddr("/ip4/203.0.113.5/tcp/4001")], from_loopback=False)
    assert list(host._known) == peers[2:]


def test_a_port_that_is_taken_or_of_another_kind_is_said_so() -> None:
    async def check(network: Libp2pNetwork) -> None:
        first = await network.host({})
        taken = first.addresses()[0].rpartition("/p2p/")[0]
        with pytest.raises(LocalFault, match="taken by another program"):
            await Libp2pHost(Identity.generate(), [taken]).start()
        with pytest.raises(LocalFault, match="cannot listen on /ip4/192"):
            await Libp2pHost(Identity.generate(), ["/ip4/192.0.2.1/tcp/0"]).start()
        with pytest.raises(UsageFault, match="expected /ip4/ADDRESS/tcp/PORT"):
            await Libp2pHost(Identity.generate(), ["/ip4/127.0.0.1/udp/0/quic-v1"]).start()

    run_on_network(check)


DECODERS: list[Callable[[bytes], Any]] = [
    messages.decode_identify,
    messages.decode_find_node,
    messages.decode_closer_peers,
    messages.check_hop_status,
    messages.peer_id_of_bytes,
]


@given(st.binary(max_size=300))
def test_bytes_of_strangers_give_a_message_error_or_a_message(content: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(messages.MessageError):
            decode(content)


@given(st.data())
def test_changed_messages_give_a_message_error_or_a_message(data: st.DataObject) -> None:
    peer = Identity.from_seed(bytes(32)).peer_id
    addresses = [parse_multiaddr("/ip4/203.0.113.5/tcp/4001"), parse_multiaddr("/dns4/example.org/tcp/1")]
    found = messages.encode_closer_peers(b"key", [(peer, addresses)])
    assert messages.decode_closer_peers(found) == {peer: tuple(addresses)}
    introduction = messages.encode_identify(peer, addresses, ["/a/1"], "x")
    assert messages.decode_identify(introduction).addresses == tuple(addresses)
    for message, decode in ((found, DECODERS[2]), (introduction, DECODERS[0])):
        changed = bytearray(message)
        changed[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        with contextlib.suppress(messages.MessageError):
            decode(bytes(changed))


def test_a_socket_stream_negotiates_as_others_do() -> None:
    async def check(network: Libp2pNetwork) -> None:
        called = await network.host({})
        reader, writer = await open_socket(called)
        await propose(SocketStream(reader, writer), "/noise")
        writer.close()
        assert MULTISTREAM == "/multistream/1.0.0"

    run_on_network(check)


def test_the_transport_is_chosen_by_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_backend(None) == ("libp2p", "")
    assert choose_backend("libp2p") == ("libp2p", "")
    assert choose_backend("p2pd") == ("p2pd", "")
    with pytest.raises(UsageFault, match="expected libp2p or p2pd"):
        choose_backend("quic")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    backend, remark = choose_backend(None)
    assert backend == "p2pd"
    assert "not installed" in remark
    assert "murmuration-swarm[observer]" in remark
    with pytest.raises(UsageFault, match=r"pip install 'murmuration-swarm\[observer\]'"):
        choose_backend("libp2p")


def test_a_broken_installation_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with observer_network("libp2p", []):
            raise AssertionError("there is no such network")

    monkeypatch.setitem(sys.modules, "dht.pylibp2p.host", None)
    with pytest.raises(LocalFault, match=r"cannot be loaded .*--host-backend p2pd"):
        asyncio.run(check())


def test_both_libraries_have_their_key_messages_in_one_process() -> None:
    # conftest made room before either was loaded; `peer status` in the process tests loads them the other way round.
    ours = importlib.import_module("hivemind.proto.crypto_pb2")
    theirs = importlib.import_module("libp2p.crypto.pb.crypto_pb2")
    assert ours.PrivateKey(key_type=ours.KeyType.RSA, data=b"x").SerializeToString() == bytes.fromhex("08001201") + b"x"
    assert theirs.KeyType.X25519 == 5
    assert ours.DESCRIPTOR.pool is not theirs.DESCRIPTOR.pool
    make_room_for_libp2p()


def test_room_that_is_made_too_late_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = importlib.import_module("libp2p.crypto.pb.crypto_pb2")
    monkeypatch.setitem(sys.modules, "hivemind.proto.crypto_pb2", theirs)
    make_room_for_libp2p()
    monkeypatch.delitem(sys.modules, "libp2p")
    with pytest.raises(LocalFault, match="hivemind was loaded before"):
        make_room_for_libp2p()


def test_the_host_loads_without_torch() -> None:
    program = "import sys, dht.pylibp2p.host; sys.exit('torch' in sys.modules or 'hivemind' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
