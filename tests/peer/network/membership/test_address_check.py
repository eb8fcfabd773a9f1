"""A first look at addresses: who answers, whose address it is, and what is said when nobody does."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from dht.ground.errors import Incompatible, NobodyReachable, UsageFault
from dht.identity.keys import Identity
from dht.records.signed_manifest import RunRecord
from peer.network.membership import address_check, way_out
from peer.network.membership.address_check import ask_as_invited, knock, look_first, nobody_answered, why_nobody
from peer.observe.run_page import unreachable

RUN = "demo.aaaaaaaaaaaaaaaaaaaa"
PEER = Identity.generate().peer_id


def address(port: int, host: str = "ip4/127.0.0.1") -> str:
    return f"/{host}/tcp/{port}/p2p/{PEER}"


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> Iterator[int]:
    """A port that is taken, so that nobody else gets it, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_one_who_answers_is_enough(listening: int, closed: int) -> None:
    assert knock([address(closed), address(listening)], 20) is None


def test_why_nobody_answers(closed: int) -> None:
    assert knock([address(closed)], 20) == {address(closed): "connection refused"}


def test_what_cannot_be_knocked_at_is_left_to_the_transport(closed: int) -> None:
    assert knock([address(closed), f"/ip4/127.0.0.1/udp/{closed}/quic-v1/p2p/{PEER}"], 20) is None


def test_a_relayed_member_is_there_when_its_relay_is(listening: int) -> None:
    relay = Identity.generate().peer_id
    assert knock([f"/ip4/127.0.0.1/tcp/{listening}/p2p/{relay}/p2p-circuit/p2p/{PEER}"], 20) is None


def test_nobody_in_time(closed: int) -> None:
    waits: list[str] = []
    with pytest.raises(NobodyReachable) as caught:
        look_first(
            RUN, [address(closed)], 0.1, asks=False, on_waiting=lambda why, _: waits.append(why), advice="; or X"
        )
    said = re.fullmatch(
        rf"no member of {re.escape(RUN)} answered at the address within 0 s \({address(closed)}: connection refused\); "
        r"expected one live member; check the address and this machine's network; or X\.",
        str(caught.value),
    )
    assert said is not None, str(caught.value)
    assert waits
    assert waits[0].startswith(f"no member answers at {address(closed)}: connection refused; trying until ")


def test_ones_own_address_alone(closed: int) -> None:
    with pytest.raises(UsageFault, match="is the address of this peer's own identity; expected another member's"):
        look_first(RUN, [address(closed)], 60, own=PEER)


def test_ones_own_address_among_others_is_not_dialled(closed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Identity.from_seed(bytes([9]) * 32).peer_id
    elsewhere, tried = address(closed).replace(PEER, other), list[str]()

    def note(addresses: Sequence[str], seconds: float) -> None:
        tried.extend(addresses)

    monkeypatch.setattr(address_check, "knock", note)
    look_first(RUN, [address(closed), elsewhere], 60, own=PEER, asks=False, later=lambda: [address(closed)])
    assert tried == [elsewhere]


def test_whoever_answers_is_not_asked_without_need(listening: int) -> None:
    look_first(RUN, [address(listening)], 60, asks=False)


def test_another_peer_at_every_address_is_told_at_once(listening: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answers(
        identity: object, addresses: Sequence[str], ask: object, on_fault: Callable[[str, str], object]
    ) -> list[object]:
        for one in addresses[: len(addresses) - num_silent]:
            on_fault(one, "peer id mismatch: expected a, but remote key matches b")
        return []

    monkeypatch.setattr("peer.network.membership.address_check._answers", answers)
    num_silent = 0
    with pytest.raises(NobodyReachable, match=f"another peer answers at {address(listening)}; expected the PeerId"):
        look_first(RUN, [address(listening)], 60)
    num_silent = 1
    assert look_first(RUN, [address(listening), address(1)], 60) is None, "the other one may be the run's"


def test_an_address_that_is_known_later_is_tried_as_well(listening: int, closed: int) -> None:
    """As of a seed that came back on another port."""
    known: list[list[str]] = [[], [], [address(listening)]]
    waits: list[str] = []
    look_first(
        *(RUN, [address(closed)], 60),
        asks=False,
        on_waiting=lambda why, _: waits.append(why),
        later=lambda: known.pop(0),
    )
    assert len(waits) == 2
    assert known == []


def test_what_one_member_says_counts_also_when_another_is_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lets this key in, one has not heard of that yet, and a third takes no connection and refuses none."""
    given = RunRecord(RUN, b'{"revision": 2}', bytes(32), bytes(64))

    class Dialler:
        def __init__(self, *_: object) -> None: ...

        async def __aenter__(self) -> Dialler:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def connect(self, dialled: str, _: float) -> None:
            if dialled == address(2):
                await asyncio.Event().wait()

    async def ask(_: object, __: object, asked: list[str], on_refused: Callable[[str, str], None]) -> RunRecord | None:
        if asked == [address(1)]:
            on_refused(PEER, "refused this peer: the owner of the run revoked this key")
            return None
        return given

    monkeypatch.setattr("dht.p2pd.host.P2pdHost", Dialler)
    monkeypatch.setattr(address_check, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(address_check, "ask_for_run", ask)
    asked = [address(port) for port in (1, 2, 3)]
    assert ask_as_invited(RUN, asked, Identity.generate(), b"") is given
    with pytest.raises(Incompatible, match="revoked this key; expected to be admitted"):
        ask_as_invited(RUN, asked[:2], Identity.generate(), b"")
    assert ask_as_invited(RUN, asked[1:2], Identity.generate(), b"") is None


def test_a_machine_without_a_network_is_told_that_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way_out, "_has_route", lambda host: host == "127.0.0.1")
    far = [address(4001, "ip4/203.0.113.5"), address(4001, "dns/seed.example.org")]
    assert re.match("this machine has no network connection; trying until", why_nobody(far, {}, 0))
    assert nobody_answered(RUN, far, 20, {}, "; raise --join-timeout") == (
        f"this machine has no network connection, so no member of {RUN} can be reached; connect it, by cable or "
        "wireless, and try again."
    )
    with pytest.raises(NobodyReachable, match=r"^this machine has no network connection, so https://run"):
        raise unreachable("https://run.example.org/demo", "Temporary failure in name resolution")
    for near in ([address(1)], [*far, address(1)], [address(1, "dns/localhost")]):
        assert "answered at" in nobody_answered(RUN, near, 20, {})
    assert "connection refused" in str(unreachable("http://127.0.0.1:8080", "connection refused"))
