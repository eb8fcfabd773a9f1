"""Lanes over several streams: bulk data may take more than one, nothing is lost or doubled, one end ends all."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from averaging.lanes.handshake import greet_incoming, open_greeted_stream
from averaging.lanes.links import ACKNOWLEDGED_BYTES, BYTES_AS_SHORT, ROUND_PROTOCOL, LinkPorts, Links
from averaging.wire import frames
from averaging.wire.messages import Commit, RosterEntry, ShardResult, VersionIs
from tests.kit.network.link_pair import LIMITS, PAYLOAD, UPLOAD_BITS_PER_SECOND, A, B, Pair, contribution, shards
from tests.kit.network.memory_networks import named
from tests.kit.rounds.exchange_swarm import OpenDoor
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.virtual_time import run_virtual

assert len(PAYLOAD) >= ACKNOWLEDGED_BYTES
NUM_STREAMS = 3


@pytest.fixture(autouse=True)
def several_streams(monkeypatch):
    monkeypatch.setattr("averaging.lanes.links.DATA_STREAMS", NUM_STREAMS)


def test_bulk_data_takes_several_streams_and_every_frame_arrives_once():
    async def scenario():
        pair = Pair()
        pair.post(40)
        await pair.until_heard(40)
        assert shards(pair.heard) == list(range(40))
        assert pair.opened == NUM_STREAMS
        assert not pair.sending.has_bulk_waiting
        await pair.close()

    run_virtual(scenario())


def test_small_messages_and_single_frames_need_one_stream_each():
    async def scenario():
        pair = Pair()
        for number in range(5):
            pair.sending.post(B, [frames.encode(VersionIs(0, number, bytes(16), 0))])
            pair.post(1)
            await pair.until_heard(2 * number + 2)
        assert pair.opened == 2
        await pair.close()

    run_virtual(scenario())


@pytest.mark.parametrize("refused", [{2}, {2, 3}])
def test_a_remote_that_takes_no_more_streams_gets_everything_on_the_first(refused):
    async def scenario():
        pair = Pair()
        pair.refused = refused
        pair.post(40)
        await pair.until_heard(40)
        assert shards(pair.heard) == list(range(40))
        assert not pair.lost
        await pair.close()

    run_virtual(scenario())


def test_a_remote_that_takes_no_stream_at_all_is_lost_once():
    async def scenario():
        pair = Pair()
        pair.refused = {1, 2, 3}
        pair.post(40)
        await asyncio.sleep(1)
        assert pair.lost == [(B, "takes no more streams")]
        assert not pair.sending.has_bulk_waiting
        pair.refused = set()
        pair.post(1)
        await pair.until_heard(1)
        await pair.close()

    run_virtual(scenario())


def test_when_the_remote_goes_all_streams_end_and_it_is_lost_once():
    async def scenario():
        pair = Pair()
        pair.post(40)
        await pair.until_heard(40)
        pair.network.crash(B)
        await pair.until(lambda: pair.lost)
        await asyncio.sleep(5)
        assert [peer_id for peer_id, _ in pair.lost] == [B]
        assert pair.sending._lanes == {}
        await pair.close()

    run_virtual(scenario())


def test_a_flush_gives_up_when_nobody_reads():
    async def scenario():
        pair = Pair()
        pair.post(1)
        await pair.until_heard(1)
        pair.network.stall(B)
        pair.post(1)
        await pair.sending.flush(3.0)
        assert len(pair.heard) == 1
        await pair.close()

    run_virtual(scenario())


def test_acknowledgements_tell_the_pace_of_the_line():
    async def scenario():
        pair = Pair()
        assert pair.sending.pace_bytes_per_second is None
        for _ in range(4):
            for number in range(400):
                pair.sending.post(B, [contribution(number), bytes(16_384)], "data")
            await pair.sending.flush(600.0)
            await asyncio.sleep(2.0)
        line = UPLOAD_BITS_PER_SECOND / 8
        assert 0.8 * line < pair.sending.pace_bytes_per_second < 1.2 * line
        await pair.close()

    run_virtual(scenario())


def test_an_empty_frame_is_answered_with_the_clock_and_no_message():
    async def scenario():
        pair = Pair()
        stream = await open_greeted_stream(pair.here, OpenDoor(), B, ROUND_PROTOCOL)
        await asyncio.sleep(5.0)
        await stream.send(b"")
        clock = int.from_bytes(await stream.receive(8), "big") * 1e-6
        assert 5.0 <= clock <= asyncio.get_running_loop().time()
        assert pair.heard == []
        await pair.close()

    run_virtual(scenario())


@pytest.mark.parametrize("answers", [[bytes(8)] * 3, [b"?"], [b""], [bytes(9)]])
def test_a_remote_that_acknowledges_what_it_was_not_sent_is_lost(answers):
    async def scenario():
        pair = Pair()

        async def answer(stream):
            await greet_incoming(stream, OpenDoor())
            await stream.receive(10_000)
            for frame in answers:
                await stream.send(frame)
            await asyncio.sleep(60)

        await pair.receiving.close()
        pair.there.handle(ROUND_PROTOCOL, answer)
        pair.post(1)
        await pair.until(lambda: pair.lost)
        assert [peer_id for peer_id, _ in pair.lost] == [B]
        await pair.close()

    run_virtual(scenario())


def test_a_remote_that_floods_with_short_messages_is_read_no_faster_than_anybody_honest_writes(monkeypatch):
    """What it may have said at once is heard at once, the rest later; nothing is lost, and nobody is blamed."""
    monkeypatch.setattr("averaging.lanes.links.SHORT_AT_ONCE", 50)
    monkeypatch.setattr("averaging.lanes.links.SECONDS_PER_SHORT", 0.01)

    async def scenario():
        pair = Pair()
        for number in range(300):
            pair.sending.post(B, [frames.encode(VersionIs(0, number, bytes(16), 0))])
        await asyncio.sleep(1)
        assert 50 < len(pair.heard) <= 150
        await asyncio.sleep(3)
        assert [message.version for message in pair.heard] == list(range(300))
        assert not pair.lost
        await pair.close()

    run_virtual(scenario())


@pytest.mark.parametrize(("have_worked", "fewest", "most"), [(True, 500, 700), (False, 200, 350)])
def test_remotes_that_have_not_worked_share_what_a_few_may_write(monkeypatch, have_worked, fewest, most):
    """One host has as many keys as it likes, and each of them would have an allowance of its own."""
    monkeypatch.setattr("averaging.lanes.links.SHORT_AT_ONCE", 50)
    monkeypatch.setattr("averaging.lanes.links.SECONDS_PER_SHORT", 0.05)

    async def scenario():
        heard = []
        network = MemoryNetwork(seed=1, upload_bits_per_second=UPLOAD_BITS_PER_SECOND)
        clock = asyncio.get_running_loop().time
        silent = LinkPorts(lambda *_: None, lambda *_: None, lambda *_: None)
        ports = LinkPorts(lambda *told: heard.append(told), lambda *_: None, lambda *_: None)
        ports = replace(ports, has_worked=lambda remote: have_worked)
        receiving = Links(MemoryHost(network, B), OpenDoor(), LIMITS, ports, clock)
        keys = [Links(MemoryHost(network, named(10 + key)), OpenDoor(), LIMITS, silent, clock) for key in range(10)]
        for key in keys:
            for number in range(100):
                key.post(B, [frames.encode(VersionIs(0, number, bytes(16), 0))])
        await asyncio.sleep(1)
        assert fewest <= len(heard) <= most
        for links in (receiving, *keys):
            await links.close()

    run_virtual(scenario())


def test_a_remote_that_floods_with_commits_of_many_members_is_slowed_down_by_what_they_take_to_read(monkeypatch):
    """The commit of a large round takes hundreds of times as long to read as a short message."""
    monkeypatch.setattr("averaging.lanes.links.SHORT_AT_ONCE", 50)
    monkeypatch.setattr("averaging.lanes.links.SECONDS_PER_SHORT", 0.01)
    roster = tuple(RosterEntry(peer, 1, 1, 0, 1) for peer in sorted(map(named, range(256))))
    shard = ShardResult(0, 1_000_000, 0, bytes(16), (0,), bytes(64))

    async def scenario():
        pair = Pair()
        for number in range(20):
            commit = Commit(0, number, 0, A, bytes(16), roster, (shard,), b"", bytes(64))
            frame = frames.encode(commit)
            assert 20 < len(frame) / BYTES_AS_SHORT < 40
            pair.sending.post(B, [frame])
        await asyncio.sleep(2)
        assert 3 < len(pair.heard) < 10
        await asyncio.sleep(10)
        assert [message.version for message in pair.heard] == list(range(20))
        assert not pair.lost
        await pair.close()

    run_virtual(scenario())
