"""The one string that names a run and where to join it: golden forms, both ways, and strings of strangers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import UsageFault
from dht.identity.join_link import MAX_LINK_ADDRESSES, MAX_LINK_LENGTH, JoinLink, join_link, parse_join_link
from dht.identity.keys import Identity, make_run_id

ADA, BEN = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
RUN_ID = make_run_id("tinybytes", ADA.public_key)
GOLDEN = {
    f"/ip4/203.0.113.5/tcp/4001/p2p/{ADA.peer_id}": f"203.0.113.5:4001/{ADA.peer_id}",
    f"/ip6/2001:db8::5/tcp/4001/p2p/{ADA.peer_id}": f"[2001:db8::5]:4001/{ADA.peer_id}",
    f"/dns/seed.example.org/tcp/4001/p2p/{ADA.peer_id}": f"seed.example.org:4001/{ADA.peer_id}",
    f"/ip4/203.0.113.5/tcp/4001/p2p/{BEN.peer_id}/p2p-circuit/p2p/{ADA.peer_id}": (
        f"203.0.113.5:4001/{BEN.peer_id}/{ADA.peer_id}"
    ),
    f"/ip4/203.0.113.5/udp/4001/quic-v1/p2p/{ADA.peer_id}": f"/ip4/203.0.113.5/udp/4001/quic-v1/p2p/{ADA.peer_id}",
    f"/dns4/seed.example.org/tcp/4001/p2p/{ADA.peer_id}": f"/dns4/seed.example.org/tcp/4001/p2p/{ADA.peer_id}",
}


@pytest.mark.parametrize("address", GOLDEN)
def test_an_address_has_one_written_form_and_is_read_back(address: str) -> None:
    link = JoinLink(RUN_ID, (address,))
    assert str(link) == f"murmuration://{RUN_ID}@{GOLDEN[address]}"
    assert parse_join_link(str(link)) == link


def test_several_addresses_and_none() -> None:
    link = join_link(RUN_ID, GOLDEN)
    assert link.addresses == tuple(GOLDEN)
    assert str(link) == f"murmuration://{RUN_ID}@{','.join(GOLDEN.values())}"
    assert parse_join_link(str(link)) == link
    assert parse_join_link(f"murmuration://{RUN_ID}") == JoinLink(RUN_ID)
    assert parse_join_link(f"MURMURATION://{RUN_ID}") == JoinLink(RUN_ID)


def test_a_link_never_grows_beyond_what_is_read() -> None:
    many = [f"/ip4/203.0.113.5/tcp/{port}/p2p/{ADA.peer_id}" for port in range(1, 40)]
    link = join_link(RUN_ID, many)
    assert len(link.addresses) == MAX_LINK_ADDRESSES
    assert parse_join_link(str(link)) == link


def test_an_address_of_this_machine_alone_is_passed_on_where_there_is_no_other() -> None:
    here, there = (f"/ip4/{ip}/tcp/4001/p2p/{ADA.peer_id}" for ip in ("127.0.0.1", "203.0.113.5"))
    assert join_link(RUN_ID, [here, there]).addresses == (there,)
    assert join_link(RUN_ID, [here]).addresses == (here,)


@pytest.mark.parametrize(
    "near", ["/ip6/fd00::5", "/ip6/fe80::5", "/ip4/192.168.1.5", "/ip4/10.1.2.3", "/ip4/172.20.0.2", "/ip4/100.64.9.9"]
)
@pytest.mark.parametrize("far", ["/ip4/203.0.113.5", "/ip6/2001:db8::5", "/dns4/home.example.org"])
def test_addresses_of_a_home_network_are_in_a_link_only_where_there_are_no_others(near: str, far: str) -> None:
    here, near, far = (f"{one}/tcp/4001/p2p/{ADA.peer_id}" for one in ("/ip6/::1", near, far))
    assert join_link(RUN_ID, [here, near, far]).addresses == (far,)
    assert join_link(RUN_ID, [here, near]).addresses == (near,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("https://run.example.org", "is not a link to a run"),
        (f"murmuration:{RUN_ID}", "is not a link to a run"),
        (f"murmuration://tiny@203.0.113.5:4001/{ADA.peer_id}", "'tiny' is not a run id"),
        (f"murmuration://{RUN_ID}s", "is not a run id"),
        (f"murmuration://{RUN_ID}@203.0.113.5/{ADA.peer_id}", "is not HOST:PORT/PEERID"),
        (f"murmuration://{RUN_ID}@2001:db8::5:4001/{ADA.peer_id}", "is not HOST:PORT/PEERID"),
        (f"murmuration://{RUN_ID}@203.0.113.5:99999/{ADA.peer_id}", "not a port"),
        (f"murmuration://{RUN_ID}@203.0.113.5:4001/{'1' * 52}", "is not a multiaddr"),
        (f"murmuration://{RUN_ID}@" + ",".join(["h:1/x"] * 9), "9 addresses"),
        (f"murmuration://{RUN_ID}@" + "x" * MAX_LINK_LENGTH, "expected at most 4096"),
    ],
)
def test_what_is_wrong_is_said_first(text: str, sentence: str) -> None:
    with pytest.raises(UsageFault) as caught:
        parse_join_link(text)
    assert sentence in str(caught.value)


def test_a_link_that_is_cut_off_anywhere_says_so() -> None:
    link = join_link(RUN_ID, GOLDEN)
    whole, whole_links = str(link), {f"murmuration://{RUN_ID}": 0}
    for number in range(1, len(GOLDEN) + 1):
        one = str(JoinLink(RUN_ID, link.addresses[:number]))
        whole_links |= {one: number, f"{one},": number}
    as_a_relay = f"murmuration://{RUN_ID}@{','.join([*GOLDEN.values()][:3])},203.0.113.5:4001/{BEN.peer_id}"
    for length in range(len("murmuration:"), len(whole)):
        cut = whole[:length]
        if cut == as_a_relay:
            continue  # itself the address of a member: nobody can see that more followed
        if cut in whole_links:
            assert parse_join_link(cut).addresses == link.addresses[: whole_links[cut]]
            continue
        with pytest.raises(UsageFault, match=r"^The link is cut off: it ends in .*; expected .*; copy all its lines"):
            parse_join_link(cut)


PIECES = st.sampled_from(
    [*GOLDEN, *GOLDEN.values(), RUN_ID, "@", ",", "/", ":", "[", "]", "murmuration://", "%00", "é"]
)


@given(
    st.one_of(
        st.text(), st.lists(PIECES).map("".join), st.lists(PIECES).map(lambda parts: f"murmuration://{''.join(parts)}")
    )
)
def test_any_string_is_a_link_that_is_read_back_or_a_sentence(text: str) -> None:
    try:
        link = parse_join_link(text)
    except UsageFault:
        return
    assert parse_join_link(str(link)) == link


def test_the_command_is_one_word_to_any_shell() -> None:
    near = f"/ip4/203.0.113.5/tcp/4001/p2p/{ADA.peer_id}"
    assert join_link(RUN_ID, [near]).command == f"peer join murmuration://{RUN_ID}@203.0.113.5:4001/{ADA.peer_id}"
    link = join_link(RUN_ID, [near, f"/ip6/2001:db8::5/tcp/4001/p2p/{ADA.peer_id}"])
    assert link.command == f"peer join '{link}'"
