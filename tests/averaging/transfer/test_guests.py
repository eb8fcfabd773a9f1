"""What one remote can hold of a donor: hostile readers of state, alone and together, beside a newcomer that joins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from averaging.lanes.handshake import open_greeted_stream
from averaging.transfer import messages, snapshots
from averaging.transfer.client import fetch_log
from averaging.transfer.messages import STATE_PROTOCOL
from averaging.wire.messages import Commit
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId, Stream
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.network.memory_networks import MIB, named, now
from tests.kit.rounds.donor_scene import RULE, Scene, in_scene
from tests.simulator.network.host import MemoryHost

UNDISTURBED_SECONDS = 34.0
"""More than the newcomer takes for both fragments from one donor without anybody else; asserted below."""


class Guest:
    """A member that opens streams to the donor and does with them what it likes."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.host = MemoryHost(scene.network, named(number))
        self.handshake_policy = RunHandshakePolicy(RULE, named(number), "trainer")
        self.scene = scene

    async def open(self) -> Stream:
        return await open_greeted_stream(self.host, self.handshake_policy, self.scene.donors[0].peer_id, STATE_PROTOCOL)

    def ask(self, kind: str, fragment: int = 0) -> bytes:
        donor = self.scene.donors[0]
        if kind == "chunks":
            return messages.pack(["chunks", fragment, 5, donor.state(fragment).digest, 0, 14])
        return messages.pack([kind, fragment] if kind == "header" else [kind, fragment, 0])

    async def read_nothing(self, kind: str, num_requests: int = 1) -> None:
        """Ask, read no answer, and come again when the donor has had enough."""
        while True:
            with contextlib.suppress(PeerFault, TimeoutError):
                stream = await self.open()
                for number in range(num_requests):
                    async with asyncio.timeout(5.0):
                        await stream.send(self.ask(kind, number % 2))
                while not stream.is_over:  # type: ignore[attr-defined]  # noqa: ASYNC110 (virtual time)
                    await asyncio.sleep(0.5)
            await asyncio.sleep(0.1)

    async def drip(self, kind: str, chunk_seconds: float) -> None:
        """Ask for all chunks and take one now and then, for ever."""
        while True:
            with contextlib.suppress(PeerFault):
                stream = await self.open()
                while True:
                    await stream.send(self.ask(kind))
                    if messages.unpack(await stream.receive(MIB), stream.remote, 4) != ["busy"]:
                        for _ in range(14):
                            await asyncio.sleep(chunk_seconds)
                            await stream.receive(MIB)
            await asyncio.sleep(0.1)


async def join_beside(scene: Scene, attacks: list[Awaitable[None]]) -> float:
    """Seconds until a newcomer has both fragments, one after the other as long as it takes."""
    tasks = [asyncio.ensure_future(attack) for attack in attacks]
    await asyncio.sleep(5.0)
    began = now()
    try:
        for fragment in (0, 1):
            found = None
            while found is None:
                assert now() - began < 600, "kept out"
                found = await scene.fetcher.fetch(fragment, scene.donors[0].num_values, [scene.donors[0].peer_id])
        return now() - began
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


Attack = Callable[[Scene], list[Awaitable[None]]]


def streams(kind: str, *numbers: int, each: int, num_requests: int = 1) -> Attack:
    def begin(scene: Scene) -> list[Awaitable[None]]:
        guests = [Guest(scene, number) for number in numbers]
        return [guest.read_nothing(kind, num_requests) for guest in guests for _ in range(each)]

    return begin


def drips(kind: str, *numbers: int, each: int, seconds: float) -> Attack:
    def begin(scene: Scene) -> list[Awaitable[None]]:
        return [
            guest.drip(kind, seconds) for guest in [Guest(scene, number) for number in numbers] for _ in range(each)
        ]

    return begin


@pytest.mark.parametrize(
    ("attack", "most_seconds"),
    [
        pytest.param(lambda scene: [], UNDISTURBED_SECONDS, id="nobody"),
        pytest.param(streams("chunks", 3, each=8), UNDISTURBED_SECONDS, id="eight_ranges_of_one_key"),
        pytest.param(streams("chunks", 3, 4, 5, each=4), 2 * UNDISTURBED_SECONDS, id="three_keys_ranges"),
        pytest.param(drips("chunks", 3, each=8, seconds=20), UNDISTURBED_SECONDS, id="drips_of_one_key"),
        pytest.param(drips("chunks", 3, 4, each=4, seconds=20), 3 * UNDISTURBED_SECONDS, id="drips_of_two_keys"),
        pytest.param(streams("log", 3, each=12, num_requests=20), 1.5 * UNDISTURBED_SECONDS, id="logs_unread"),
        pytest.param(
            streams("header", 3, 4, each=12, num_requests=100), 1.5 * UNDISTURBED_SECONDS, id="headers_unread"
        ),
    ],
)
def test_a_newcomer_joins_beside_guests_that_hinder(attack: Attack, most_seconds: float) -> None:
    async def play(scene: Scene) -> float:
        fetcher = scene.fetcher

        async def commits(fragment: int, member: PeerId, first: int) -> list[Commit]:
            await fetch_log(fetcher.host, fetcher.handshake_policy, member, fragment, first)
            return []  # what the donor shows are no commits

        scene.donors[0].commit_frames = lambda fragment, version: 50 * [bytes(20_000)]  # type: ignore[attr-defined]
        fetcher.claims.commits = commits  # type: ignore[method-assign]
        return await join_beside(scene, attack(scene))

    assert in_scene(1, play) < most_seconds


def keeps_copies(*numbers: int) -> Attack:
    """Ask each second for the header of fragment 1, so that its copy is never idle."""

    async def keep(guest: Guest) -> None:
        while True:
            stream = await guest.open()
            await stream.send(guest.ask("header", 1))
            await stream.receive(MIB)
            await stream.close()
            await asyncio.sleep(1.0)

    return lambda scene: [keep(Guest(scene, number)) for number in numbers]


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(keeps_copies(3), id="headers_of_one_key"),
        pytest.param(keeps_copies(3, 4, 5), id="headers_of_three_keys"),
        pytest.param(streams("chunks", 3, 4, each=4), id="ranges_unread"),
        pytest.param(drips("chunks", 3, 4, each=2, seconds=14.0), id="drips_of_two_keys"),
    ],
)
def test_copies_that_hardly_anybody_takes_make_room_for_a_newcomer(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SMALL_BYTES", 0)
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOTS", 1)

    async def play(scene: Scene) -> float:
        return await join_beside(scene, attack(scene))

    assert in_scene(1, play) < 300.0


def test_a_stream_keeps_no_copy_of_versions_that_are_past() -> None:
    async def play(scene: Scene) -> None:
        guest, donor = Guest(scene, 3), scene.donors[0]
        stream = await guest.open()
        copies = []
        for _ in range(5):
            request = ["chunks", 0, donor.versions[0], donor.state(0).digest, 0, 1]
            await stream.send(messages.pack(request))
            await stream.receive(MIB)
            await stream.receive(MIB)
            (copy,) = [held for held in donor.server._snapshots._held if held.snapshot.digest == donor.state(0).digest]
            copies.append(copy)
            donor.advance(0)
        await asyncio.sleep(2 * snapshots.HOLD_SECONDS)
        assert donor.server._snapshots.num_bytes == 0
        assert all(not copy.chunks and not copy.num_bytes for copy in copies)
        await stream.close()

    in_scene(1, play)


def test_a_remote_has_no_more_streams_than_allowed_and_others_have_theirs() -> None:
    async def play(scene: Scene) -> None:
        guest, other = Guest(scene, 3), Guest(scene, 4)
        streams = [await guest.open() for _ in range(messages.MAX_STREAMS_PER_PEER)]
        with pytest.raises(PeerFault):
            await guest.open()
        await (await other.open()).close()
        await streams[0].close()
        await asyncio.sleep(1.0)
        await (await guest.open()).close()

    in_scene(1, play)


def test_answers_that_nobody_reads_end_the_stream() -> None:
    async def play(scene: Scene) -> None:
        scene.donors[0].commit_frames = lambda fragment, version: 50 * [bytes(20_000)]  # type: ignore[attr-defined]
        guest = Guest(scene, 3)
        for kind in ("log", "chunks"):
            stream = await guest.open()
            try:
                # The donor reads the next one only when the answer before has left.
                async with asyncio.timeout(3 * messages.FRAME_SECONDS):
                    while True:
                        await stream.send(guest.ask(kind))
                        await asyncio.sleep(0.1)
            except TimeoutError:
                pytest.fail(f"a stream that reads no {kind} is kept for ever")
            except PeerFault:
                continue

    in_scene(1, play)
