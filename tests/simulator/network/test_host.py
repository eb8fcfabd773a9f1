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
from tests.simulator.network.lines import LineSettings
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


def test_contract_in_real_time() -> None:
    check = next(check for check in CONTRACT if check.__name__ == "thirty_streams_at_once")
    asyncio.run(run_check(check, MemoryContract()))


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


def test_many_senders_share_the_download_of_one_peer() -> None:
    async def main() -> None:
        network = fixed_network(upload_bits_per_second=1e9)
        inbox = Inbox()
        MemoryHost(network, named(0), LineSettings(None, 8e6)).handle(TALK, inbox)
        streams = [await MemoryHost(network, named(n)).open_stream(named(0), TALK, 10.0) for n in range(1, 5)]
        began = now()
        await asyncio.gather(*(stream.send(bytes(MIB - 4)) for stream in streams))
        await asyncio.sleep(60.0)
        assert len(inbox.frames) == 4
        assert inbox.frames[-1][0] - began == pytest.approx(4 * 8 * MIB / 8e6 + LATENCY, rel=0.01)

    run_virtual(main())


@given(st.lists(st.binary(max_size=300_000), min_size=1, max_size=8), st.integers(1, 3), st.sampled_from([None, 1, 2]))
@settings(max_examples=30)
def test_frames_arrive_whole_and_in_order(frames: list[bytes], num_streams: int, seed: int | None) -> None:
    async def main() -> None:
        network = MemoryNetwork(3, window_bytes=100_000)
        caller, inboxes = MemoryHost(network, named(1)), []
        for number in range(2, 2 + num_streams):
            inboxes.append(Inbox())
            MemoryHost(network, named(number)).handle(TALK, inboxes[-1])

        async def send_all(number: int) -> None:
            stream = await caller.open_stream(named(number), TALK, 10.0)
            for frame in frames:
                await stream.send(frame)

        await asyncio.gather(*(send_all(number) for number in range(2, 2 + num_streams)))
        await asyncio.sleep(60.0)
        for inbox in inboxes:
            assert [frame for _, _, frame in inbox.frames] == frames

    run_virtual(main(), seed=seed)


def test_latency_is_a_property_of_seed_and_pair() -> None:
    first, again, other = MemoryNetwork(5), MemoryNetwork(5), MemoryNetwork(6)
    pairs = [(named(a), named(b)) for a in range(5) for b in range(a)]
    values = [first.latency_between(a, b) for a, b in pairs]
    assert values == [again.latency_between(b, a) for a, b in reversed(pairs)][::-1]
    assert values != [other.latency_between(a, b) for a, b in pairs]
    assert all(0.01 <= value <= 0.08 for value in values)
    assert len(set(values)) == len(values)


# --- back-pressure and cancelling ---


def test_a_sender_waits_when_the_window_is_full() -> None:
    async def main() -> None:
        may_read = asyncio.Event()
        sizes: list[int] = []

        async def read_late(stream: Stream) -> None:
            await may_read.wait()
            while True:
                sizes.append(len(await stream.receive(64 * MIB)))

        network = fixed_network(window_bytes=MIB)
        _, _, stream = await talker(network, read_late)
        sending = asyncio.create_task(stream.send(bytes(5 * MIB)))
        await asyncio.sleep(3600.0)
        assert not sending.done()
        assert network.sent_bytes(named(1)) == MIB
        may_read.set()
        await sending
        await asyncio.sleep(60.0)
        assert sizes == [5 * MIB]

    run_virtual(main())


def test_cancelling_a_receive_loses_nothing() -> None:
    async def main() -> None:
        frames: list[bytes] = []

        async def impatient(stream: Stream) -> None:
            while len(frames) < 3:
                try:
                    async with asyncio.timeout(0.05):
                        frames.append(await stream.receive(4 * MIB))
                except TimeoutError:
                    continue
            await stream.receive(1)

        _, _, stream = await talker(fixed_network(), impatient)
        sent = [bytes([number]) * 700_000 for number in range(3)]
        for frame in sent:
            await stream.send(frame)
        await asyncio.sleep(60.0)
        assert frames == sent

    run_virtual(main())


def test_a_send_cancelled_half_way_ends_the_stream() -> None:
    async def main() -> None:
        inbox = Inbox()
        _, _, stream = await talker(fixed_network(window_bytes=64 * 1024), inbox)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await stream.send(bytes(8 * MIB))
        with pytest.raises(PeerUnreachable, match="given up half-way"):
            await stream.send(b"more")
        await inbox.ended.wait()
        assert inbox.frames == []
        assert isinstance(inbox.end, PeerUnreachable)

    run_virtual(main())


def test_a_send_cancelled_before_it_began_is_as_if_it_never_was() -> None:
    async def main() -> None:
        inbox = Inbox()
        _, _, stream = await talker(fixed_network(), inbox)
        long_one = asyncio.create_task(stream.send(b"1" * 4 * MIB))
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await stream.send(b"2")
        await long_one
        await stream.send(b"3")
        await asyncio.sleep(60.0)
        assert [frame[:1] for _, _, frame in inbox.frames] == [b"1", b"3"]

    run_virtual(main())


def test_a_send_cancelled_before_its_first_byte_fits_is_as_if_it_never_was() -> None:
    async def main() -> None:
        inbox, may_read = Inbox(), asyncio.Event()

        async def read_late(stream: Stream) -> None:
            await may_read.wait()
            await inbox(stream)

        _, _, stream = await talker(fixed_network(window_bytes=64 * 1024), read_late)
        await stream.send(b"1" * (64 * 1024 - 4))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await stream.send(b"2")
        may_read.set()
        await stream.send(b"3")
        await asyncio.sleep(60.0)
        assert [frame[:1] for _, _, frame in inbox.frames] == [b"1", b"3"]

    run_virtual(main())


def test_what_was_sent_before_closing_arrives() -> None:
    async def main(lose: bool) -> list[bytes]:
        inbox = Inbox()
        _, _, stream = await talker(fixed_network(lose_unread_on_close=lose), inbox)
        await stream.send(bytes(300_000))
        await stream.send(b"last words")
        await stream.close()
        await stream.close()
        with pytest.raises(PeerUnreachable, match="closed on this side"):
            await stream.receive(10)
        await inbox.ended.wait()
        assert "closed it" in str(inbox.end)
        return [frame for _, _, frame in inbox.frames]

    assert run_virtual(main(lose=False)) == [bytes(300_000), b"last words"]
    assert run_virtual(main(lose=True))[1:] in ([], [b"last words"])


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


def test_closing_a_host_waits_for_its_handlers() -> None:
    async def main() -> None:
        cleaned = False

        async def slow_to_end(stream: Stream) -> None:
            nonlocal cleaned
            try:
                await stream.receive(1)
            finally:
                await asyncio.sleep(2.0)
                cleaned = True

        _, called, stream = await talker(fixed_network(), slow_to_end)
        await asyncio.sleep(0.1)
        await called.close()
        assert cleaned
        with pytest.raises(PeerUnreachable):
            await stream.receive(1)

    run_virtual(main())


def test_calling_oneself_or_the_wrong_address() -> None:
    async def main() -> None:
        network = fixed_network()
        caller, called, _ = await talker(network, Inbox())
        with pytest.raises(PeerUnreachable, match="this peer itself"):
            await caller.open_stream(named(1), TALK, 1.0)
        place = caller.addresses()[0].rpartition("/p2p/")[0]
        with pytest.raises(PeerUnreachable, match="expected its own address"):
            await caller.connect(f"{place}/p2p/{called.peer_id}", 1.0)
        with pytest.raises(ValueError, match="no MemoryHost was ever made"):
            network.crash(named(99))

    run_virtual(main())


def test_memory_stays_flat_over_many_streams() -> None:
    async def main() -> None:
        network = fixed_network()
        caller, called, _ = await talker(network, Inbox())

        async def answer(stream: Stream) -> None:
            await stream.send(await stream.receive(10))

        called.handle(TALK, answer)
        for _ in range(1000):
            stream = await caller.open_stream(named(2), TALK, 1.0)
            await stream.send(b"ping")
            assert await stream.receive(10) == b"ping"
            await stream.close()
        assert len(network._connections) < 200
        assert len(called._tasks) <= 2

    run_virtual(main())
