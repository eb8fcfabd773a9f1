"""Libp2pHost alone, with real sockets on loopback; together with p2pd hosts it is in `tests/dht/p2pd/`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.delimited import MessageError
from dht.ground.errors import LocalFault, PeerUnreachable, UsageFault
from dht.identity.keys import Identity, peer_id_bytes
from dht.identity.multiaddr import parse_multiaddr
from dht.observer.host_choice import choose_backend
from dht.observer.network import observer_network
from dht.pylibp2p.protobuf_clash import make_room_for_libp2p

pytest.importorskip("libp2p", reason="the observer extra is not installed: pip install '.[observer]'")

from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.kad_dht.pb.kademlia_pb2 import Message

from dht.pylibp2p import host as libp2p_host
from dht.pylibp2p import messages
from dht.pylibp2p.host import Libp2pHost


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

    async def check() -> None:
        async with asyncio.timeout(60), Libp2pHost(Identity.generate()) as caller:
            for serve, sentence in (
                (say_nothing, "did not answer within 0.3 s"),
                (talk_nonsense, "a protocol name|it answered|not libp2p"),
                (hang_up, "it closed the connection|reset"),
            ):
                async with listener(serve) as address:
                    with pytest.raises(PeerUnreachable, match=sentence):
                        await caller.connect(address, 0.3 if serve is say_nothing else 5.0)
            async with listener(say_nothing) as address:
                pass
            with pytest.raises(PeerUnreachable, match="no program listens there"):
                await caller.connect(address, 5.0)
            with pytest.raises(PeerUnreachable, match="network daemon can dial"):
                await caller.connect(f"/ip4/127.0.0.1/udp/1/quic-v1/p2p/{Identity.generate().peer_id}", 5.0)
            assert caller._connections.live() == []

    asyncio.run(check())


def test_relayed_addresses_and_loopback_told_from_afar_are_not_kept() -> None:
    host = Libp2pHost(Identity.generate())
    peer = Identity.generate().peer_id
    host._learn(peer, [parse_multiaddr("/ip4/127.0.0.1/tcp/22")], from_loopback=False)
    assert host._known == {}
    outside = parse_multiaddr("/ip4/203.0.113.5/tcp/4001")
    relayed = parse_multiaddr(f"/ip4/203.0.113.9/tcp/4001/p2p/{peer}/p2p-circuit")
    host._learn(peer, [parse_multiaddr("/ip4/127.0.0.1/tcp/22"), relayed, outside], from_loopback=False)
    assert host._known == {peer: (outside,)}


def test_what_is_known_of_others_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libp2p_host, "MAX_KNOWN_PEERS", 3)
    host = Libp2pHost(Identity.generate())
    peers = [Identity.generate().peer_id for _ in range(5)]
    for peer in peers:
        host._learn(peer, [parse_multiaddr("/ip4/203.0.113.5/tcp/4001")], from_loopback=False)
    assert list(host._known) == peers[2:]


DECODERS: list[Callable[[bytes], Any]] = [
    messages.decode_identify,
    messages.decode_closer_peers,
]


@given(st.binary(max_size=300))
def test_bytes_of_strangers_give_a_message_error_or_a_message(content: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(MessageError):
            decode(content)


@given(st.data())
def test_changed_messages_give_a_message_error_or_a_message(data: st.DataObject) -> None:
    peer = Identity.from_seed(bytes(32)).peer_id
    addresses = [parse_multiaddr("/ip4/203.0.113.5/tcp/4001"), parse_multiaddr("/dns4/example.org/tcp/1")]
    binary = [address.to_bytes() for address in addresses]
    answer = Message(type=Message.FIND_NODE, key=b"key")
    answer.closerPeers.add(id=peer_id_bytes(peer), addrs=binary)
    found = answer.SerializeToString()
    assert messages.decode_closer_peers(found) == {peer: tuple(addresses)}
    introduction = Identify(listen_addrs=binary, protocols=["/a/1"]).SerializeToString()
    assert messages.decode_identify(introduction)[0] == tuple(addresses)
    for message, decode in ((found, messages.decode_closer_peers), (introduction, messages.decode_identify)):
        changed = bytearray(message)
        changed[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        with contextlib.suppress(MessageError):
            decode(bytes(changed))


def test_the_transport_is_chosen_by_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_backend(None) == choose_backend("libp2p") == "libp2p"
    assert choose_backend("p2pd") == "p2pd"
    with pytest.raises(UsageFault, match="expected libp2p or p2pd"):
        choose_backend("quic")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose_backend(None) == "p2pd"
    with pytest.raises(UsageFault, match=r"pip install (-e )?'\.\[observer\]'"):
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
