"""MemoryHost: the contract of every host, then rates, latency, back-pressure and cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import Host, Stream, StreamHandler
from dht.identity.keys import Identity
from tests.kit.host_contract import CONTRACT, Check, run_check
from tests.kit.network.memory_networks import LATENCY, MIB, TALK, Inbox, fixed_network, named, now, talker
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.virtual_time import run_virtual


class MemoryContract:
    def __init__(self) -> None:
        self.network = MemoryNetwork(1, upload_bits_per_second=1e10, download_bits_per_second=1e10)
        self.hosts: list[MemoryHost] = []

    async def host(self, handlers: Mapping[str, StreamHandler]) -> Host:
        host = MemoryHost(self.network, Identity.generate().peer_id)
        for protocol, handler in handlers.items():
            host.handle(protocol, handler)
        self.hosts.append(host)
        return host

    async def send_partial_frame(self, host: Host, to: Host, protocol: str, data: bytes) -> bool:
        return False

    async def close(self) -> None:
        for host in self.hosts:
            await host.close()
        await asyncio.sleep(1.0)
        assert self.network.num_streams == 0


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract_in_virtual_time(check: Check) -> None:
    run_virtual(run_check(check, MemoryContract()))


# --- latency and rates ---


def test_opening_takes_one_round_trip_and_a_frame_one_way() -> None:
    async def main() -> None:
        inbox = Inbox()
        _, _, stream = await talker(fixed_network(), inbox)
        assert now() == pytest.approx(2 * LATENCY)
        await stream.send(b"x" * 996)
        await asyncio.sleep(1.0)
        # 1000 bytes with the header: 1 ms at 8 Mbit/s up, 0.1 ms at 80 Mbit/s down.
        assert inbox.frames[0][0] == pytest.approx(3 * LATENCY + 0.0011)

    run_virtual(main())


@given(st.integers(1, 4 * MIB), st.sampled_from([1e6, 8e6, 80e6]), st.sampled_from([1e6, 8e6, 80e6]))
@settings(max_examples=30)
def test_a_frame_takes_the_time_of_the_narrower_end(num_bytes: int, upload: float, download: float) -> None:
    async def main() -> float:
        inbox = Inbox()
        network = fixed_network(download_bits_per_second=download)
        _, _, stream = await talker(network, inbox, upload_bits_per_second=upload)
        began = now()
        await stream.send(bytes(num_bytes))
        await asyncio.sleep(100.0)
        assert network.sent_bytes(named(1)) == network.received_bytes(named(2)) == num_bytes + 4
        assert network.received_bytes(named(1)) == network.sent_bytes(named(2)) == 0
        return inbox.frames[0][0] - began

    seconds = run_virtual(main())
    ideal = LATENCY + 8 * (num_bytes + 4) / min(upload, download)
    one_segment = 8 * 64 * 1024 / max(upload, download)
    assert ideal - 1e-6 <= seconds <= ideal + one_segment + 1e-6


def test_streams_share_the_upload_of_their_peer() -> None:
    async def main() -> None:
        network = fixed_network(download_bits_per_second=1e9)
        caller = MemoryHost(network, named(1))
        inboxes = [Inbox() for _ in range(4)]
        streams = []
        for number, inbox in enumerate(inboxes, start=2):
            MemoryHost(network, named(number)).handle(TALK, inbox)
            streams.append(await caller.open_stream(named(number), TALK, 10.0))
        began = now()
        await asyncio.gather(*(stream.send(bytes(MIB - 4)) for stream in streams))
        await asyncio.sleep(60.0)
        last = max(inbox.frames[0][0] for inbox in inboxes)
        assert last - began == pytest.approx(4 * 8 * MIB / 8e6 + LATENCY, rel=0.01)

    run_virtual(main())


def test_latency_is_a_property_of_seed_and_pair() -> None:
    first, again, other = MemoryNetwork(5), MemoryNetwork(5), MemoryNetwork(6)
    pairs = [(named(a), named(b)) for a in range(5) for b in range(a)]
    values = [first.latency_between(a, b) for a, b in pairs]
    assert values == [again.latency_between(b, a) for a, b in reversed(pairs)][::-1]
    assert values != [other.latency_between(a, b) for a, b in pairs]
    assert all(0.01 <= value <= 0.08 for value in values)
    assert len(set(values)) == len(values)


# --- handlers ---


def test_a_handlers_bug_is_recorded_and_a_peer_fault_is_not() -> None:
    async def main() -> None:
        async def blame(stream: Stream) -> None:
            raise PeerFault(stream.remote, "sent nonsense")

        async def fail(stream: Stream) -> None:
            raise ZeroDivisionError("a bug")

        network = fixed_network()
        caller, called, stream = await talker(network, blame)
        with pytest.raises(PeerUnreachable):
            await stream.receive(1)
        assert network.handler_errors == []
        called.handle(TALK, fail)
        stream = await caller.open_stream(named(2), TALK, 1.0)
        with pytest.raises(PeerUnreachable):
            await stream.receive(1)
        assert [type(error) for error in network.handler_errors] == [ZeroDivisionError]

    run_virtual(main())
