"""The probe protocol: what a member measures and dials for others, and where it stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import pytest

from averaging.lanes.handshake import open_greeted_stream
from dht.admission.handshake_frames import AccessRule
from dht.ground.errors import PeerFault
from dht.ground.fields import pack
from dht.ground.host import PeerId
from dht.identity.keys import Identity, make_run_id
from dht.identity.multiaddr import Multiaddr, parse_multiaddr
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.reachability.probe_client import Busy, DialBack, Probe, probing
from peer.network.reachability.probe_messages import MAX_LISTED, PROBE_PROTOCOL, to_dial
from peer.network.reachability.probe_server import MAX_BYTES_PER_PEER, ProbeServer
from tests.kit.network.memory_networks import MIB, fixed_network, named
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.virtual_time import run_virtual

RULE = AccessRule(make_run_id("tiny", Identity.generate().public_key), bytes(32), "0.1.0")
MEMBER, ASKER = named(1), named(2)
SEEN = parse_multiaddr("/ip4/203.0.113.9/tcp/55555")
AHEAD_SECONDS = 42.0


class SeeingHost(MemoryHost):
    """A memory host that is told where its connections come from."""

    seen: Sequence[Multiaddr] = (SEEN,)

    async def connections(self) -> dict[PeerId, list[Multiaddr]]:
        return {ASKER: list(self.seen)}


class Dialler:
    """Dials nobody; answers as it was told and keeps what it was asked."""

    def __init__(self, why_not: str = "") -> None:
        self.asked: list[str] = []
        self.why_not = why_not

    async def __call__(self, addresses: Sequence[str]) -> dict[str, str]:
        self.asked += addresses
        return dict.fromkeys(addresses, self.why_not)


def probed(ask: Callable[[Probe, Dialler], Awaitable[None]], dialler: Dialler | None = None) -> None:
    """Run `ask` with a probe of one member, whose line carries 8 Mbit/s up and 80 down."""

    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        network: MemoryNetwork = fixed_network()
        member, asker = SeeingHost(network, MEMBER), MemoryHost(network, ASKER)
        dial = dialler or Dialler()
        ProbeServer(
            member,
            RunHandshakePolicy(RULE, MEMBER, "seed"),
            dial,
            wall_clock=lambda: clock() + AHEAD_SECONDS,
            clock=clock,
        )
        async with probing(asker, RunHandshakePolicy(RULE, ASKER, "observer"), MEMBER, clock, clock) as probe:
            await ask(probe, dial)
        await member.close()
        await asker.close()

    run_virtual(scene())


def test_the_clock_offset_is_found() -> None:
    async def ask(probe: Probe, dialler: Dialler) -> None:
        offset, round_trip = await probe.read_clock()
        assert offset == pytest.approx(AHEAD_SECONDS, abs=0.01)
        assert round_trip >= 0.1

    probed(ask)


def test_rates_are_those_of_the_slower_side() -> None:
    async def ask(probe: Probe, dialler: Dialler) -> None:
        assert await probe.download_bits_per_second() == pytest.approx(8e6, rel=0.25)
        assert await probe.upload_bits_per_second() == pytest.approx(8e6, rel=0.25)

    probed(ask)


def test_a_member_gives_so_much_per_minute_and_no_more() -> None:
    async def ask(probe: Probe, dialler: Dialler) -> None:
        moved, last = 0, None
        while last is None and moved <= MAX_BYTES_PER_PEER:
            try:
                await probe._download_seconds(4 * 1024 * 1024)
                moved += 4 * 1024 * 1024
            except Busy as busy:
                last = busy
        assert last is not None
        assert 0 < moved <= MAX_BYTES_PER_PEER
        # The next minute is a new one.
        await asyncio.sleep(1 + float(last.what.split()[-2]))
        await probe._download_seconds(1024)

    probed(ask)


def test_only_the_address_that_is_seen_is_dialled() -> None:
    async def ask(probe: Probe, dialler: Dialler) -> None:
        elsewhere = f"/ip4/198.51.100.1/tcp/4001/p2p/{ASKER}"
        inside = f"/ip4/192.168.1.5/udp/4001/quic-v1/p2p/{ASKER}"
        found = await probe.dial_back([elsewhere, inside, f"/ip6/2001:db8::1/tcp/4001/p2p/{ASKER}"])
        here = [f"/ip4/203.0.113.9/tcp/4001/p2p/{ASKER}", f"/ip4/203.0.113.9/udp/4001/quic-v1/p2p/{ASKER}"]
        assert dialler.asked == here
        assert found == DialBack((SEEN,), tuple(here), ())

    probed(ask)


def test_why_nobody_answers_there_is_told() -> None:
    async def ask(probe: Probe, dialler: Dialler) -> None:
        found = await probe.dial_back([f"/ip4/10.0.0.2/tcp/4001/p2p/{ASKER}"])
        assert found.failed == ((f"/ip4/203.0.113.9/tcp/4001/p2p/{ASKER}", "did not answer"),)
        with pytest.raises(Busy):
            await probe.dial_back([f"/ip4/10.0.0.2/tcp/4001/p2p/{ASKER}"])

    probed(ask, Dialler("did not\n answer"))


@pytest.mark.parametrize(
    "address",
    [
        f"/ip4/8.8.8.8/udp/0/quic-v1/p2p/{ASKER}",
        f"/ip4/8.8.8.8/tcp/4002/p2p/{ASKER}",
        f"/ip4/8.8.8.8/tcp/4001/p2p/{MEMBER}",
        f"/dns4/a,b/tcp/4001/p2p/{ASKER}",
    ],
)
@pytest.mark.parametrize("why_not", ["", "nobody answers"])
def test_an_answer_about_another_address_than_was_asked_for_is_refused(address: str, why_not: str) -> None:
    """A peer announces what it is said to be reached at, and a daemon does not start with any address."""

    async def lie(addresses: Sequence[str]) -> dict[str, str]:
        return {address: why_not}

    async def ask(probe: Probe, _: object) -> None:
        with pytest.raises(PeerFault, match="answered a probe with"):
            await probe.dial_back([f"/ip4/10.0.0.2/tcp/4001/p2p/{ASKER}"])

    probed(ask, lie)  # type: ignore[arg-type]


def test_who_is_seen_through_a_relay_is_not_dialled() -> None:
    relayed = parse_multiaddr(f"/ip4/203.0.113.1/tcp/4001/p2p/{MEMBER}/p2p-circuit")
    assert to_dial([relayed], [parse_multiaddr("/ip4/10.0.0.1/tcp/1")], ASKER) == []
    assert to_dial([SEEN], [relayed], ASKER) == []


@pytest.mark.parametrize(
    "request_",
    [
        ["unheard"],
        [],
        7,
        ["give", 0],
        ["give", 10**9],
        ["give", True],
        ["take", "1"],
        ["dial", ["/ip4/1.2.3.4/tcp/1"] * (MAX_LISTED + 1)],
        ["dial", "x"],
        ["dial", ["not an address"]],
    ],
)
def test_nonsense_ends_the_stream_and_nothing_else(request_: object) -> None:
    async def ask(probe: Probe, dialler: Dialler) -> None:
        stream = probe.stream
        await stream.send(pack(request_) if isinstance(request_, list) else b"\x07")
        with pytest.raises(PeerFault):
            await stream.receive(1024)
        assert dialler.asked == []
        assert stream.remote == MEMBER
        assert PROBE_PROTOCOL.startswith("/murmuration/")

    probed(ask)


def among(*numbers: int) -> tuple[MemoryNetwork, list[MemoryHost]]:
    """A member that measures for others, and askers."""
    clock = asyncio.get_running_loop().time
    network = fixed_network()
    member = SeeingHost(network, MEMBER)
    ProbeServer(member, RunHandshakePolicy(RULE, MEMBER, "seed"), Dialler(), wall_clock=clock, clock=clock)
    return network, [MemoryHost(network, named(number)) for number in numbers]


async def hold_the_turn(host: MemoryHost) -> None:
    """Ask for bytes and read none, again and again."""
    door = RunHandshakePolicy(RULE, host.peer_id, "observer")
    while True:
        with contextlib.suppress(PeerFault):
            stream = await open_greeted_stream(host, door, MEMBER, PROBE_PROTOCOL)
            await stream.send(pack(["give", 8 * MIB]))
            while not stream.is_over:  # type: ignore[attr-defined]  # noqa: ASYNC110 (virtual time)
                await asyncio.sleep(0.5)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("num_hostile", [1, 2, 3])
def test_who_measures_without_reading_keeps_nobody_from_measuring(num_hostile: int) -> None:
    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        _, (asker, *hostile) = among(2, *range(10, 10 + num_hostile))
        tasks = [asyncio.ensure_future(hold_the_turn(host)) for host in hostile for _ in range(3)]
        await asyncio.sleep(5.0)
        rate = 0.0
        while not rate:
            assert clock() < 180.0, "never had its turn"
            with contextlib.suppress(Busy):
                async with probing(asker, RunHandshakePolicy(RULE, ASKER, "observer"), MEMBER, clock, clock) as probe:
                    rate = await probe.download_bits_per_second()
            await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(scene())


def test_who_asks_for_dials_all_the_time_leaves_turns_to_others() -> None:
    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        _, (asker, hostile) = among(2, 10)

        async def ask_again_and_again() -> None:
            door = RunHandshakePolicy(RULE, hostile.peer_id, "observer")
            async with probing(hostile, door, MEMBER, clock, clock) as probe:
                while True:
                    with contextlib.suppress(Busy):
                        await probe.dial_back([])
                    await asyncio.sleep(0.01)

        task = asyncio.ensure_future(ask_again_and_again())
        await asyncio.sleep(20.0)
        async with probing(asker, RunHandshakePolicy(RULE, ASKER, "observer"), MEMBER, clock, clock) as probe:
            for attempt in range(3):
                try:
                    await probe.dial_back([])
                    break
                except Busy:
                    assert attempt < 2
                    await asyncio.sleep(2.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(scene())
