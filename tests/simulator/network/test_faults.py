"""MemoryNetwork: crashes, stalls, partitions, lost streams, and one trace per seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dht.ground.errors import PeerUnreachable
from dht.ground.host import Stream, StreamHandler
from tests.kit.network.memory_networks import LATENCY, MIB, TALK, Inbox, fixed_network, named, now, talker
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.virtual_time import run_virtual


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
        assert [peer for peer, host in network._hosts.items() if host.is_live] == [named(1)]
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
    assert traces[0] == traces[1] != traces[2]
