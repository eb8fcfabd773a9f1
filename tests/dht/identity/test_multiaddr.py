"""Multiaddrs: text and bytes say the same, and nothing but the two expected errors comes out of nonsense."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.delimited import decode_varint, encode_varint
from dht.ground.errors import UsageFault
from dht.identity.keys import Identity
from dht.identity.multiaddr import (
    Multiaddr,
    multiaddr_from_bytes,
    parse_multiaddr,
    parse_peer_multiaddr,
)

ALICE, BOB = Identity.generate().peer_id, Identity.generate().peer_id
HOSTS = st.one_of(
    st.ip_addresses(v=4).map(lambda ip: f"/ip4/{ip}"),
    st.ip_addresses(v=6).map(lambda ip: f"/ip6/{ip}"),
    st.sampled_from(["/dns/seed.example.org", "/dns4/a.example", "/dns6/b.example", "/dnsaddr/c.example"]),
)
PORTS = st.integers(0, 65535)
TRANSPORTS = st.one_of(
    PORTS.map(lambda port: f"/tcp/{port}"),
    PORTS.map(lambda port: f"/udp/{port}/quic-v1"),
    PORTS.map(lambda port: f"/tcp/{port}/ws"),
)
ENDS = st.sampled_from(["", f"/p2p/{ALICE}", f"/p2p/{ALICE}/p2p-circuit/p2p/{BOB}"])
TEXTS = st.builds("{}{}{}".format, HOSTS, TRANSPORTS, ENDS)


@given(text=TEXTS)
def test_text_and_bytes_round_trip(text: str) -> None:
    address = parse_multiaddr(text)
    assert str(address) == text
    assert multiaddr_from_bytes(address.to_bytes()) == address


def test_bytes_are_those_of_another_implementation() -> None:
    reference = pytest.importorskip("hivemind.utils.multiaddr")

    # Without PeerIds: hivemind packs them as CIDs where the specification and the Go daemon want the multihash.
    @given(text=st.builds("{}{}".format, HOSTS, TRANSPORTS))
    def compare(text: str) -> None:
        assert parse_multiaddr(text).to_bytes() == reference.Multiaddr(text).to_bytes()

    compare()


@pytest.mark.parametrize(
    ("named", "plain"),
    [
        ("/dns4/192.0.2.7/tcp/1", "/ip4/192.0.2.7/tcp/1"),
        ("/dns/2001:db8::1/tcp/1", "/ip6/2001:db8::1/tcp/1"),
        ("/dns4/192.0.2.300/tcp/1", "/dns4/192.0.2.300/tcp/1"),
    ],
)
def test_a_name_that_is_an_ip_address_is_that_address(named: str, plain: str) -> None:
    assert str(parse_multiaddr(named)) == plain
    as_written = Multiaddr(tuple(zip(*[iter(named.split("/")[1:])] * 2, strict=True)))
    assert str(multiaddr_from_bytes(as_written.to_bytes())) == plain


@given(data=st.binary(max_size=200))
def test_any_bytes_are_an_address_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        address = multiaddr_from_bytes(data)
        assert multiaddr_from_bytes(address.to_bytes()) == address


@given(text=st.text(max_size=80), words=st.lists(st.sampled_from(["ip4", "tcp", "1", "p2p", "", "unix"]), max_size=8))
def test_any_text_is_an_address_or_a_usage_fault(text: str, words: list[str]) -> None:
    for candidate in (text, "/" + "/".join(words)):
        with contextlib.suppress(UsageFault):
            address = parse_multiaddr(candidate)
            assert parse_multiaddr(str(address)) == address


@given(value=st.integers(0, 2**64 - 1), tail=st.binary(max_size=3))
def test_varint_round_trip(value: int, tail: bytes) -> None:
    encoded = encode_varint(value)
    assert decode_varint(encoded + tail, 0) == (value, len(encoded))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11])
def test_a_varint_that_does_not_end_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="number"):
        decode_varint(data, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "ip4/1.2.3.4/tcp/1",
        "/ip4/1.2.3/tcp/1",
        "/ip4/1.2.3.4/tcp/65536",
        "/ip4/1.2.3.4/tcp/00111111",
        "/ip4/1.2.3.4/tcp/²",
        "/ip4/1.2.3.4/tcp",
        "/ip4/1.2.3.4/carrier-pigeon/1",
        "/ip6/nonsense/tcp/1",
        "/ip4/1.2.3.4/tcp/1/p2p/12D3KooWnonsense",
        "/dns4/" + "a" * 2000,
    ],
)
def test_wrong_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageFault, match="expected something like /ip4/"):
        parse_multiaddr(text)


@pytest.mark.parametrize(
    "text",
    ["/ip4/1.2.3.4/tcp/1", f"/p2p/{ALICE}", f"/ip4/1.2.3.4/tcp/1/p2p/{ALICE}/p2p-circuit"],
    ids=["no peer", "no place", "a relay's"],
)
def test_an_address_without_its_peer_cannot_be_dialled(text: str) -> None:
    with pytest.raises(UsageFault, match="copy the complete address"):
        parse_peer_multiaddr(text)


def test_a_relayed_address_names_its_destination() -> None:
    text = f"/ip4/203.0.113.5/tcp/4001/p2p/{ALICE}/p2p-circuit/p2p/{BOB}"
    peer_id, rest = parse_peer_multiaddr(text)
    assert peer_id == BOB
    assert str(rest) == f"/ip4/203.0.113.5/tcp/4001/p2p/{ALICE}/p2p-circuit"
    assert rest.is_relayed
    assert not rest.is_loopback
    assert str(rest.with_peer_id(BOB)) == text


def test_parts() -> None:
    address = parse_multiaddr("/ip4/127.0.0.1/udp/7/quic-v1")
    assert (address.transport, address.port, address.is_loopback) == ("udp", 7, True)
    assert str(address.with_port(9)) == "/ip4/127.0.0.1/udp/9/quic-v1"
    assert str(address.with_peer_id(ALICE).with_peer_id(BOB)) == f"/ip4/127.0.0.1/udp/9/quic-v1/p2p/{BOB}".replace(
        "/9/", "/7/"
    )
    assert Multiaddr((("unix", "/tmp/a.sock"),)).to_bytes() == b"\x90\x03\x0b/tmp/a.sock"


@pytest.mark.parametrize(
    ("listens", "dialled"),
    [
        ("/ip4/0.0.0.0/tcp/4001", "/ip4/127.0.0.1/tcp/4001"),
        ("/ip6/::/udp/4001/quic-v1", "/ip6/::1/udp/4001/quic-v1"),
        ("/ip4/203.0.113.5/tcp/4001", "/ip4/203.0.113.5/tcp/4001"),
        ("/dns4/example.org/tcp/1", "/dns4/example.org/tcp/1"),
    ],
)
def test_what_listens_everywhere_is_dialled_on_the_same_machine(listens: str, dialled: str) -> None:
    assert str(parse_multiaddr(listens).on_this_machine()) == dialled
