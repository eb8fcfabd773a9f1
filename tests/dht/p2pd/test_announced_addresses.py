"""Which addresses are announced as names: those that libp2p takes for neither private nor of the internet."""

from __future__ import annotations

import pytest

from dht.identity.multiaddr import Multiaddr, parse_multiaddr
from dht.p2pd.announced_addresses import announceable, is_odd, must_announce


def at(*ips: str) -> list[Multiaddr]:
    return [parse_multiaddr(f"/ip{6 if ':' in ip else 4}/{ip}/tcp/4001") for ip in ips]


@pytest.mark.parametrize(
    "ip", ["192.0.0.8", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "240.0.0.1"]
)
def test_what_daemons_did_not_pass_on_is_a_name(ip: str) -> None:
    (address,) = at(ip)
    assert is_odd(address)
    assert announceable(address) == f"/dns4/{ip}/tcp/4001"


@pytest.mark.parametrize(
    "ip",
    [
        *("10.1.2.3", "192.168.1.2", "172.17.0.1"),  # private, docker's bridge among them
        *("100.64.0.1", "169.254.1.1"),  # of carrier-grade NAT, of a link without a server
        *("11.1.1.1", "192.0.0.170"),
        *("fd00::2", "2001:db8::1", "2a0f:1234::1", "64:ff9b::a01:203"),
    ],
)
def test_what_daemons_passed_on_stays(ip: str) -> None:
    (address,) = at(ip)
    assert not is_odd(address)
    assert announceable(address) == str(address)


def test_names_and_relays_stay() -> None:
    for text in ("/dns4/seed.example.org/tcp/4001", "/ip4/203.0.113.5/tcp/4001"):
        relayed = parse_multiaddr(f"{text}/p2p/12D3KooWBhvxmvKvTYGJY4G1wUjXKRTBzKYUnn7XnhKDwBpxbAeH/p2p-circuit")
        assert must_announce([relayed]) == ()


def test_all_is_announced_only_where_every_ipv4_address_is_odd() -> None:
    assert must_announce(at("127.0.0.1", "::1", "192.0.2.2", "fd00::2")) == at("192.0.2.2", "fd00::2")
    assert must_announce(at("192.168.1.5", "198.18.0.1")) == ()  # a home whose VPN has an odd address
    assert must_announce(at("192.0.2.2", "11.1.1.1")) == ()
    assert must_announce(at("127.0.0.1", "fd00::2")) == ()
    assert must_announce([]) == ()
