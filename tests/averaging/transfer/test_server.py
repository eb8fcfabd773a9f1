"""What a donor keeps for those who fetch from it, how many it serves, and requests without sense."""

from __future__ import annotations

import asyncio

import pytest

from averaging.codec.digests import digest_of
from averaging.lanes.handshake import open_greeted_stream
from averaging.transfer import messages, server, snapshots
from averaging.transfer.client import fetch_header
from averaging.transfer.messages import STATE_PROTOCOL
from averaging.transfer.snapshots import HeldSnapshots
from dht.ground.errors import PeerFault
from dht.ground.host import Stream
from dht.streams.fair_turns import NoTurn
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.network.memory_networks import MIB, named, now
from tests.kit.rounds.donor_scene import FILE, NUM_VALUES, RULE, Scene, assert_same, in_scene
from tests.simulator.network.host import MemoryHost


def test_ten_joiners_at_once_ask_different_donors_and_share_snapshots() -> None:
    async def play(scene: Scene) -> None:
        joiners = [scene.joiner(100 + number) for number in range(10)]
        first = [joiner.donors.best_first(0)[0] for joiner in joiners]
        assert len(set(first)) >= 3
        results = await asyncio.gather(
            *(joiner.fetch(0, NUM_VALUES, joiner.donors.best_first(0)) for joiner in joiners),
        )
        for found in results:
            assert found is not None
            assert_same(found.snapshot, scene.world.state("main", 0, 5))
        assert [donor.num_snapshots for donor in scene.donors] == [1] * 5
        sent = [scene.network.sent_bytes(donor.peer_id) for donor in scene.donors]
        assert max(sent) < 1.5 * sum(sent) / len(sent)
        # What nobody asks for is let go.
        await asyncio.sleep(2 * snapshots.HOLD_SECONDS)
        assert [donor.server._snapshots.num_bytes for donor in scene.donors] == [0] * 5

    in_scene(5, play)


def test_a_donor_holds_few_large_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SMALL_BYTES", 0)

    async def play(scene: Scene) -> None:
        donor = scene.donors[0]
        held = HeldSnapshots(donor)
        first = await held.newest(0, named(9))
        assert first is not None
        assert await held.newest(0, named(9)) is first
        donor.advance(0)
        second = await held.newest(0, named(9))
        assert second is not None
        assert second.snapshot.version == 6
        assert held.num_bytes == 16 * NUM_VALUES
        donor.advance(0)
        # No room: the newest copy that is there, and nothing of another fragment.
        assert await held.newest(0, named(9)) is second
        with pytest.raises(NoTurn):
            await held.newest(1, named(9))
        assert await held.at(0, 5, first.snapshot.digest, named(9)) is first
        assert await held.at(0, 5, bytes(32), named(9)) is None
        assert await held.at(0, 4, first.snapshot.digest, named(9)) is None
        await asyncio.sleep(snapshots.IDLE_SECONDS)
        assert await held.newest(1, named(9)) is not None
        assert held.num_bytes == 16 * NUM_VALUES
        await asyncio.sleep(snapshots.HOLD_SECONDS)
        assert held.num_bytes == 0

    in_scene(1, play)


def test_a_copy_that_all_joiners_are_done_with_makes_room_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SMALL_BYTES", 0)
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOTS", 1)

    async def play(scene: Scene) -> None:
        held = HeldSnapshots(scene.donors[0])
        copy = await held.newest(0, named(9))
        assert copy is not None
        held.begin(copy)
        held.begin(copy)
        held.end(copy, is_done=True)
        await asyncio.sleep(snapshots.DONE_SECONDS)
        with pytest.raises(NoTurn):  # one joiner still takes from it
            await held.newest(1, named(9))
        held.end(copy, is_done=False)
        with pytest.raises(NoTurn):  # its line broke: it comes again
            await held.newest(1, named(9))
        held.begin(copy)
        held.end(copy, is_done=True)
        assert await held.newest(0, named(9)) is copy
        with pytest.raises(NoTurn):  # somebody has just been told of it
            await held.newest(1, named(9))
        held.begin(copy)
        held.end(copy, is_done=True)
        await asyncio.sleep(snapshots.DONE_SECONDS)
        assert await held.newest(1, named(9)) is not None

    in_scene(1, play)


def test_busy_donors_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SMALL_BYTES", 0)
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOTS", 1)

    async def play(scene: Scene) -> None:
        for donor in scene.donors:
            await donor.server._snapshots.newest(1, named(9))
        began = now()
        await scene.fetch(0)
        assert now() - began > snapshots.IDLE_SECONDS - 0.5

    in_scene(2, play)


async def ask_for_all(
    scene: Scene, host: MemoryHost, handshake_policy: RunHandshakePolicy
) -> tuple[Stream, list[object], float]:
    """(stream, first answer, seconds until then) of a request for every chunk of fragment 0."""
    donor = scene.donors[0]
    stream = await open_greeted_stream(host, handshake_policy, donor.peer_id, STATE_PROTOCOL)
    began = now()
    await stream.send(messages.pack(["chunks", 0, 5, donor.state(0).digest, 0, 14]))
    answer = messages.unpack(await stream.receive(64), donor.peer_id, 2)
    return stream, answer, now() - began


def test_a_donor_serves_few_at_once_and_nobody_takes_all_its_turns() -> None:
    async def play(scene: Scene) -> None:
        streams = []
        for number, answers in ((3, ["chunks", "chunks", "busy"]), (4, ["chunks", "chunks", "busy"]), (5, ["busy"])):
            host = MemoryHost(scene.network, named(number))
            handshake_policy = RunHandshakePolicy(RULE, named(number), "trainer")
            for expected in answers:
                stream, answer, seconds = await ask_for_all(scene, host, handshake_policy)
                streams.append(stream)
                assert answer == [expected]
        # The last one waited for its turn before it was told to go elsewhere.
        assert seconds >= messages.QUEUE_SECONDS
        await streams[0].close()
        await asyncio.sleep(1.0)
        stream, answer, seconds = await ask_for_all(scene, host, handshake_policy)
        assert answer == ["chunks"]
        for opened in (*streams, stream):
            await opened.close()

    in_scene(1, play)


def test_a_range_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_RANGE_CHUNKS", 13)

    async def play(scene: Scene) -> None:
        with pytest.raises(PeerFault):
            await ask_for_all(scene, MemoryHost(scene.network, named(3)), RunHandshakePolicy(RULE, named(3), "trainer"))

    in_scene(1, play)


def test_a_header_that_does_not_fit_and_requests_without_sense_are_faults() -> None:
    async def play(scene: Scene) -> None:
        donor = scene.donors[0]
        host = MemoryHost(scene.network, named(3))
        handshake_policy = RunHandshakePolicy(RULE, named(3), "trainer")
        with pytest.raises(PeerFault, match=r"does not fit|announced"):
            await fetch_header(host, handshake_policy, donor.peer_id, 0, MIB // 4)
        for request in (
            ["chunks", 0, 5, donor.state(0).digest, 0, 0],
            ["chunks", 0, 5, donor.state(0).digest, 0, messages.MAX_RANGE_CHUNKS + 1],
            ["chunks", 0, 5, donor.state(0).digest, 2**40, 1],
            ["chunks", 0, True, donor.state(0).digest, 0, 1],
            ["chunks", 9, 5, donor.state(0).digest, 0, 1],
            ["header", -1],
            ["header"],
            ["what", 0],
        ):
            stream = await open_greeted_stream(host, handshake_policy, donor.peer_id, STATE_PROTOCOL)
            await stream.send(messages.pack(request))
            with pytest.raises(PeerFault):
                await stream.receive(2 * MIB)
            await stream.close()
        # Another version than any the donor had: it says which one it has, however large the number is.
        for version, own in ((6, 5), (2**60, 0)):
            stream = await open_greeted_stream(host, handshake_policy, donor.peer_id, STATE_PROTOCOL)
            await stream.send(messages.pack(["chunks", 0, version, bytes(32), 0, 1]))
            assert messages.unpack(await stream.receive(64), donor.peer_id, 2) == ["version", own]
            await stream.close()
        await scene.fetch(0)

    in_scene(1, play)


async def ask_for_file(scene: Scene, host: MemoryHost, request: list[object]) -> tuple[Stream, list[object]]:
    donor = scene.donors[0]
    handshake_policy = RunHandshakePolicy(RULE, host.peer_id, "trainer")
    stream = await open_greeted_stream(host, handshake_policy, donor.peer_id, STATE_PROTOCOL)
    await stream.send(messages.pack(request))
    return stream, messages.unpack(await stream.receive(4096), donor.peer_id, 2)


def test_files_are_given_chunk_by_chunk_and_others_are_not_here() -> None:
    async def play(scene: Scene) -> None:
        digest, parts = digest_of(FILE), [FILE[at : at + MIB] for at in range(0, len(FILE), MIB)]
        host = MemoryHost(scene.network, named(3))
        stream, answer = await ask_for_file(scene, host, ["file-header", digest])
        assert answer == ["file-header", b"".join(map(digest_of, parts))]
        await stream.send(messages.pack(["file-chunks", digest, 5, 2]))
        assert messages.unpack(await stream.receive(64), stream.remote, 2) == ["file-chunks"]
        assert [await stream.receive(MIB), await stream.receive(MIB)] == parts[5:]
        for request in (["file-header", bytes(32)], ["file-chunks", bytes(32), 0, 1], ["file-chunks", bytes(32), 9, 9]):
            assert (await ask_for_file(scene, host, request))[1] == ["none"]

    in_scene(1, play)


def test_requests_for_files_without_sense_are_faults() -> None:
    async def play(scene: Scene) -> None:
        digest, host = digest_of(FILE), MemoryHost(scene.network, named(3))
        for request in (
            ["file-header"],
            ["file-header", digest[:31]],
            ["file-header", digest.hex()],
            ["file-header", 0],
            ["file-chunks", digest, 0, 0],
            ["file-chunks", digest, 0, 8],
            ["file-chunks", digest, 7, 1],
            ["file-chunks", digest, 0, messages.MAX_RANGE_CHUNKS + 1],
            ["file-chunks", digest, 2**63, 1],
            ["file-chunks", digest, -1, 1],
            ["file-chunks", digest, True, 1],
            ["file-chunks", digest, 0],
        ):
            with pytest.raises(PeerFault):
                await ask_for_file(scene, host, request)

    in_scene(1, play)


def test_files_and_state_share_the_turns_of_a_donor() -> None:
    async def play(scene: Scene) -> None:
        request = ["file-chunks", digest_of(FILE), 0, 7]
        # None of them reads what it asked for.
        hosts = {number: MemoryHost(scene.network, named(number)) for number in (3, 4)}
        given = [(await ask_for_file(scene, hosts[number], request))[1] for number in (3, 3, 3, 4, 4)]
        assert given == [["file-chunks"], ["file-chunks"], ["busy"], ["file-chunks"], ["file-chunks"]]
        host = MemoryHost(scene.network, named(6))
        _, answer, seconds = await ask_for_all(scene, host, RunHandshakePolicy(RULE, named(6), "trainer"))
        assert answer == ["busy"]
        assert seconds >= messages.QUEUE_SECONDS

    in_scene(1, play)


def test_what_a_donor_may_give_is_not_exceeded_however_many_ask() -> None:
    """A chunk takes eight seconds of what the owner allows, and no joiner waits half a minute for one."""
    limit = 1e6

    async def play(scene: Scene) -> None:
        for donor in scene.donors:
            donor.server._most_bits_per_second = lambda: limit
        joiners = [scene.joiner(100 + number) for number in range(4)]
        began = now()
        fetched = await asyncio.gather(
            *(joiner.fetch(0, NUM_VALUES, joiner.donors.best_first(0)) for joiner in joiners),
        )
        assert all(fetched)
        seconds = now() - began
        for donor in scene.donors:
            assert 8 * scene.network.sent_bytes(donor.peer_id) < 1.1 * limit * seconds
            # Who comes next does not pay for what was given before.
            assert donor.server._wait_seconds < 2 * server.LONGEST_PAUSE_SECONDS

    in_scene(2, play)
