"""MemoryHost and MemoryStore: the contract of every host, then what only a simulated network can be asked for."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.errors import PeerFault, PeerUnreachable
from dht.host import Host, PeerId, Stream, StreamHandler
from dht.identity import Identity, make_run_id, peer_id_of
from dht.memory_host import MemoryHost, MemoryNetwork
from dht.memory_store import MemoryRecords, MemoryStore
from dht.records import encode_peer_record, encode_run_record, sign_run_record
from peer.virtual_time import run_virtual, trace_digest
from tests.host_contract import CONTRACT, Check, run_check
from tests.test_records import make_record

TALK = "/murmuration/test/talk/1"
MIB = 1024 * 1024
LATENCY = 0.05


def named(number: int) -> PeerId:
    return peer_id_of(number.to_bytes(32, "big"))


def now() -> float:
    return asyncio.get_running_loop().time()


def fixed_network(**options: Any) -> MemoryNetwork:
    defaults: dict[str, Any] = {"upload_bits_per_second": 8e6, "download_bits_per_second": 80e6}
    return MemoryNetwork(1, latency_seconds=(LATENCY, LATENCY), **{**defaults, **options})


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


class Inbox:
    """A handler that keeps what arrives, with its time."""

    def __init__(self) -> None:
        self.frames: list[tuple[float, PeerId, bytes]] = []
        self.end: PeerFault | None = None
        self.ended = asyncio.Event()

    async def __call__(self, stream: Stream) -> None:
        try:
            while True:
                frame = await stream.receive(64 * MIB)
                self.frames.append((now(), stream.remote, frame))
        except PeerFault as fault:
            self.end = fault
            raise
        finally:
            self.ended.set()


async def talker(network: MemoryNetwork, inbox: StreamHandler, **line: float) -> tuple[MemoryHost, MemoryHost, Stream]:
    """(caller, called, the caller's stream) for a fresh network."""
    caller, called = MemoryHost(network, named(1), **line), MemoryHost(network, named(2))
    called.handle(TALK, inbox)
    return caller, called, await caller.open_stream(named(2), TALK, 10.0)


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
        MemoryHost(network, named(0), download_bits_per_second=8e6).handle(TALK, inbox)
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


# --- crash, stall, partition, loss ---


def test_a_crash_breaks_streams_on_both_sides_and_stops_handlers() -> None:
    async def main() -> None:
        network, inbox = fixed_network(), Inbox()
        caller, called, stream = await talker(network, inbox)
        receiving = asyncio.create_task(stream.receive(10))
        await asyncio.sleep(1.0)
        network.crash(named(2))
        began = now()
        with pytest.raises(PeerUnreachable) as caught:
            await receiving
        assert caught.value.peer_id == named(2)
        assert now() - began == pytest.approx(LATENCY)
        await inbox.ended.wait()
        with pytest.raises(PeerUnreachable):
            await stream.send(b"anybody?")
        with pytest.raises(PeerUnreachable, match="nobody answers"):
            await caller.open_stream(named(2), TALK, 10.0)
        assert now() - began < 1.0
        with pytest.raises(PeerUnreachable):
            await called.open_stream(named(1), TALK, 10.0)
        assert network.live_peers() == [named(1)]
        assert network.num_streams == 0

        network.restore(named(2))
        again = await caller.open_stream(named(2), TALK, 10.0)
        await again.send(b"welcome back")
        await asyncio.sleep(1.0)
        assert inbox.frames[-1][2] == b"welcome back"

    run_virtual(main())


def test_a_crashed_peer_may_return_as_a_new_host() -> None:
    async def main() -> None:
        network = fixed_network()
        caller, old, _ = await talker(network, Inbox())
        with pytest.raises(ValueError, match="a live host already"):
            MemoryHost(network, named(2))
        network.crash(named(2))
        new, inbox = MemoryHost(network, named(2)), Inbox()
        new.handle(TALK, inbox)
        assert new.is_live
        assert not old.is_live
        with pytest.raises(PeerUnreachable):
            await old.open_stream(named(1), TALK, 1.0)
        await (await caller.open_stream(named(2), TALK, 10.0)).send(b"hello")
        await asyncio.sleep(1.0)
        assert len(inbox.frames) == 1
        assert new.addresses() == old.addresses()

    run_virtual(main())


def test_a_stalled_peer_stays_connected_and_lets_nothing_through() -> None:
    async def main() -> None:
        network, inbox = fixed_network(), Inbox()
        caller, _, stream = await talker(network, inbox)
        network.stall(named(2))
        await stream.send(b"first")
        sending = asyncio.create_task(stream.send(bytes(4 * MIB)))
        began = now()
        with pytest.raises(PeerUnreachable, match="did not answer within 7 s"):
            await caller.open_stream(named(2), TALK, 7.0)
        assert now() - began == pytest.approx(7.0)
        await asyncio.sleep(3600.0)
        assert not sending.done()
        assert inbox.frames == []
        assert not network.can_reach(named(1), named(2))
        network.resume(named(2))
        await sending
        await asyncio.sleep(60.0)
        assert [len(frame) for _, _, frame in inbox.frames] == [5, 4 * MIB]

    run_virtual(main())


def test_a_partition_silences_then_breaks() -> None:
    async def main() -> None:
        network, inbox = fixed_network(partition_break_seconds=20.0), Inbox()
        caller, _, stream = await talker(network, inbox)
        beside = MemoryHost(network, named(3))
        beside.handle(TALK, Inbox())
        network.partition([named(2)])
        began = now()
        await stream.send(b"lost")
        with pytest.raises(PeerUnreachable, match="did not answer within 5 s"):
            await caller.open_stream(named(2), TALK, 5.0)
        await (await caller.open_stream(named(3), TALK, 5.0)).send(b"same side")
        with pytest.raises(PeerUnreachable, match="the network between"):
            await stream.receive(10)
        assert now() - began == pytest.approx(20.0)
        await inbox.ended.wait()
        assert inbox.frames == []
        network.heal()
        await (await caller.open_stream(named(2), TALK, 5.0)).send(b"after")
        await asyncio.sleep(1.0)
        assert [frame for _, _, frame in inbox.frames] == [b"after"]

    run_virtual(main())


def test_a_short_partition_only_delays() -> None:
    async def main() -> None:
        network, inbox = fixed_network(partition_break_seconds=20.0), Inbox()
        caller, _, stream = await talker(network, inbox)
        network.partition([named(1)], [named(2)])
        opening = asyncio.create_task(caller.open_stream(named(2), TALK, 15.0))
        for number in range(3):
            await stream.send(bytes([number]) * 100_000)
        await asyncio.sleep(10.0)
        assert inbox.frames == []
        network.heal()
        await (await opening).close()
        await asyncio.sleep(60.0)
        assert [frame[0] for _, _, frame in inbox.frames] == [0, 1, 2]
        await stream.send(b"still open")

    run_virtual(main())


def test_lost_streams_break_on_both_sides() -> None:
    async def main() -> list[int]:
        network = MemoryNetwork(7, stream_loss=0.5)
        caller, called, broken = MemoryHost(network, named(1)), MemoryHost(network, named(2)), []
        inboxes: list[Inbox] = []

        async def listen(stream: Stream) -> None:
            inboxes.append(Inbox())
            await inboxes[-1](stream)

        called.handle(TALK, listen)
        streams = [await caller.open_stream(named(2), TALK, 10.0) for _ in range(60)]
        await asyncio.sleep(6.0)
        for number, stream in enumerate(streams):
            try:
                await stream.send(b"there?")
            except PeerUnreachable:
                broken.append(number)
        assert broken == [number for number, inbox in enumerate(inboxes) if inbox.ended.is_set()]
        assert network.num_streams == 60 - len(broken)
        return broken

    broken = run_virtual(main())
    assert 15 < len(broken) < 45
    assert broken == run_virtual(main())


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


# --- one seed, one trace ---


def churn(seed: int) -> list[str]:
    trace: list[str] = []

    async def main() -> None:
        network = MemoryNetwork(seed, stream_loss=0.2, partition_break_seconds=3.0)
        hosts = [MemoryHost(network, named(number)) for number in range(12)]

        def listener(host: MemoryHost) -> StreamHandler:
            async def listen(stream: Stream) -> None:
                while True:
                    frame = await stream.receive(MIB)
                    trace.append(f"{now():.9f} {host.peer_id[-4:]} got {len(frame)} from {stream.remote[-4:]}")

            return listen

        async def gossip(host: MemoryHost, number: int) -> None:
            for turn in range(12):
                target = named((number * 7 + turn * 5 + 1) % 12)
                try:
                    stream = await host.open_stream(target, TALK, 2.0)
                    await stream.send(bytes(1000 * (turn + 1) * (number + 1)))
                    await asyncio.sleep(0.4)
                    await stream.close()
                except PeerUnreachable as fault:
                    trace.append(f"{now():.9f} {fault}")

        for host in hosts:
            host.handle(TALK, listener(host))
        tasks = [asyncio.create_task(gossip(host, number)) for number, host in enumerate(hosts)]
        steps: list[Callable[[], Any]] = [
            lambda: network.crash(named(3)),
            lambda: network.partition([named(n) for n in range(6)]),
            lambda: network.stall(named(8)),
            lambda: network.restore(named(3)),
            network.heal,
            lambda: network.resume(named(8)),
        ]
        for step in steps:
            await asyncio.sleep(0.9)
            step()
        await asyncio.gather(*tasks)
        for host in hosts:
            await host.close()
        assert network.handler_errors == []
        trace.extend(
            f"{peer[-4:]} {network.sent_bytes(peer)} {network.received_bytes(peer)}" for peer in map(named, range(12))
        )

    run_virtual(main())
    return trace


def test_same_seed_same_trace() -> None:
    traces = [churn(seed) for seed in (1, 1, 2)]
    assert len(traces[0]) > 100
    assert trace_digest(traces[0]) == trace_digest(traces[1]) != trace_digest(traces[2])


# --- MemoryStore ---

OWNER = Identity.generate()
PEERS = [Identity.generate() for _ in range(3)]
RUN_ID = make_run_id("tiny", OWNER.public_key)
START = 1_800_000_000.0


def peer_record(identity: Identity, sequence: int = 1, life_seconds: float = 90.0) -> tuple[bytes, float]:
    record = dataclasses.replace(
        make_record(), run_id=RUN_ID, peer_id=identity.peer_id, sequence=sequence, expires_at=now() + life_seconds
    )
    return encode_peer_record(record, identity), record.expires_at


def run_record(revision: int) -> bytes:
    return encode_run_record(sign_run_record(RUN_ID, b'{"revision":%d}' % revision, OWNER))


def with_stores(
    program: Callable[[MemoryNetwork, list[MemoryStore]], Awaitable[None]], delay_seconds: float = 0.0
) -> None:
    async def main() -> None:
        network = fixed_network()
        records = MemoryRecords(network, now, delay_seconds)
        await program(network, [MemoryStore(records, MemoryHost(network, peer.peer_id)) for peer in PEERS])

    run_virtual(main(), START)


def test_records_are_shared_replaced_and_expire() -> None:
    async def program(network: MemoryNetwork, stores: list[MemoryStore]) -> None:
        first, expires_at = peer_record(PEERS[0])
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, first, expires_at) == 2
        assert await stores[1].fetch_peers(RUN_ID) == [first]
        await asyncio.sleep(10.0)
        second, later = peer_record(PEERS[0], 2)
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, second, later) == 2
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, first, expires_at) == 0
        assert await stores[2].fetch_peers(RUN_ID) == [second]
        await asyncio.sleep(90.0)
        assert await stores[2].fetch_peers(RUN_ID) == []

    with_stores(program)


def test_the_highest_revision_is_in_force() -> None:
    async def program(network: MemoryNetwork, stores: list[MemoryStore]) -> None:
        assert await stores[0].fetch_run(RUN_ID) is None
        for store, revision in zip(stores, (1, 3, 2), strict=True):
            assert await store.publish_run(RUN_ID, run_record(revision), now() + 600.0) == 2
        assert await stores[0].fetch_run(RUN_ID) == run_record(3)
        assert await stores[1].publish_run(RUN_ID, run_record(1), now() + 600.0) == 0
        assert await stores[0].fetch_run(RUN_ID) == run_record(3)

    with_stores(program)


def test_invalid_records_are_refused() -> None:
    async def program(network: MemoryNetwork, stores: list[MemoryStore]) -> None:
        record, expires_at = peer_record(PEERS[0])
        for peer_id, data, expiry in (
            (PEERS[1].peer_id, record, expires_at),
            (PEERS[0].peer_id, record[:-1] + b"x", expires_at),
            (PEERS[0].peer_id, record, expires_at + 1),
        ):
            with pytest.raises(PeerFault):
                await stores[0].publish_peer(RUN_ID, peer_id, data, expiry)
        with pytest.raises(PeerFault):
            await stores[0].publish_run(RUN_ID, run_record(1)[:-1], expires_at)
        assert await stores[1].fetch_peers(RUN_ID) == []

    with_stores(program)


def test_others_see_a_record_after_the_delay() -> None:
    async def program(network: MemoryNetwork, stores: list[MemoryStore]) -> None:
        record, expires_at = peer_record(PEERS[0])
        await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, record, expires_at)
        assert await stores[0].fetch_peers(RUN_ID) == [record]
        assert await stores[1].fetch_peers(RUN_ID) == []
        await asyncio.sleep(5.0)
        assert await stores[1].fetch_peers(RUN_ID) == [record]
        newer, expires_at = peer_record(PEERS[0], 2)
        await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, newer, expires_at)
        assert await stores[1].fetch_peers(RUN_ID) == [record]
        await asyncio.sleep(5.0)
        assert await stores[1].fetch_peers(RUN_ID) == [newer]

    with_stores(program, delay_seconds=5.0)


def test_each_side_of_a_partition_sees_its_own() -> None:
    async def program(network: MemoryNetwork, stores: list[MemoryStore]) -> None:
        for store, identity in zip(stores, PEERS, strict=True):
            await store.publish_peer(RUN_ID, identity.peer_id, *peer_record(identity))
        network.partition([PEERS[0].peer_id])
        assert [len(await store.fetch_peers(RUN_ID)) for store in stores] == [1, 2, 2]
        record, expires_at = peer_record(PEERS[0], 2)
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, record, expires_at) == 0
        assert await stores[0].bootstrap([]) == 0
        network.heal()
        assert [len(await store.fetch_peers(RUN_ID)) for store in stores] == [3, 3, 3]
        network.crash(PEERS[0].peer_id)
        assert [len(await store.fetch_peers(RUN_ID)) for store in stores] == [0, 3, 3]
        assert await stores[0].publish_peer(RUN_ID, PEERS[0].peer_id, *peer_record(PEERS[0], 3)) == 0

    with_stores(program)


def test_bootstrap_counts_who_is_there() -> None:
    async def program(network: MemoryNetwork, stores: list[MemoryStore]) -> None:
        place = "/ip4/10.9.9.9/tcp/4001/p2p/"
        own = [f"/ip4/10.0.0.1/tcp/4001/p2p/{PEERS[0].peer_id}"]
        assert await stores[0].bootstrap(own) == 2
        network.crash(PEERS[1].peer_id)
        assert await stores[0].bootstrap([place + PEERS[1].peer_id]) == 1
        await stores[0].close()

    with_stores(program)
