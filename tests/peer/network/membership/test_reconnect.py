"""Losing the swarm and finding it again, in virtual time: one line each, and nothing waits for its turn."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from itertools import pairwise

from dht.ground.host import PeerId
from peer.events.peer_events import Event, SwarmContact
from peer.network.membership.reconnect import (
    ALONE_SECONDS,
    CONNECTED_SECONDS,
    PATIENCE_SECONDS,
    TICK_SECONDS,
    ReconnectLoop,
)
from tests.simulator.virtual_time import run_virtual

HOUR = 3600.0
SILENT_SECONDS = 40.0
EPOCH = 1.8e9


@dataclass
class Scene:
    """A swarm of three others behind a line that can be cut, and a clock that goes on while the machine sleeps."""

    is_cut: bool = False
    slept_seconds: float = 0.0
    announced: int = 0
    looked_at: list[float] = field(default_factory=list)
    rejoined_at: list[float] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)
    rejoining_seconds: float = 0.0
    is_training: bool = True

    def wall(self) -> float:
        return EPOCH + asyncio.get_running_loop().time() + self.slept_seconds

    async def look(self) -> int:
        self.looked_at.append(self.wall())
        await asyncio.sleep(0.5)
        if self.is_cut:
            return 0
        self.announced += 1
        return 3

    def records(self) -> dict[PeerId, object]:
        return {PeerId(f"peer {number}"): self.announced for number in range(3)} if self.announced else {}

    async def rejoin(self) -> None:
        self.rejoined_at.append(self.wall())
        await asyncio.sleep(self.rejoining_seconds)

    async def read_records(self) -> None:
        """What membership does meanwhile."""
        while True:
            await asyncio.sleep(5.0)
            if not self.is_cut:
                self.announced += 1

    def start(self) -> list[asyncio.Task[None]]:
        loop = ReconnectLoop(
            self.look,
            self.records,
            self.rejoin,
            lambda fact: self.told.append(Event(self.wall(), PeerId("me"), fact)),
            silent_seconds=SILENT_SECONDS,
            wall_clock=self.wall,
            randomness=random.Random(1),
            is_training=lambda: self.is_training,
        )
        return [asyncio.create_task(loop.run()), asyncio.create_task(self.read_records())]


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_an_hour_without_network_is_two_lines_and_ends_within_seconds() -> None:
    async def run() -> None:
        scene = Scene()
        tasks = scene.start()
        await asyncio.sleep(300)
        assert scene.told == []
        assert len(scene.looked_at) <= 1 + 300 / (0.8 * CONNECTED_SECONDS)
        assert len(scene.rejoined_at) == 1
        scene.is_cut = True
        await asyncio.sleep(HOUR)
        (lost,) = scene.told
        assert isinstance(lost.fact, SwarmContact)
        assert lost.fact.state == "lost"
        assert PATIENCE_SECONDS <= lost.fact.seconds <= PATIENCE_SECONDS + 2 * TICK_SECONDS
        looks = [at for at in scene.looked_at if at > lost.at]
        assert max(later - earlier for earlier, later in pairwise(looks)) <= 1.2 * ALONE_SECONDS + 1
        scene.is_cut = False
        back_at = scene.wall()
        await asyncio.sleep(1.2 * ALONE_SECONDS + 2)
        _, found = scene.told
        assert isinstance(found.fact, SwarmContact)
        assert found.fact.state == "found"
        assert found.fact.num_members == 3
        # Counted from when the last announcement was too long ago.
        assert abs(found.fact.seconds - HOUR) <= SILENT_SECONDS + 10
        assert scene.rejoined_at[-1] >= back_at
        await end(tasks)

    run_virtual(run())


def test_a_laptop_that_slept_says_one_line_and_looks_at_once() -> None:
    async def run() -> None:
        scene = Scene()
        tasks = scene.start()
        await asyncio.sleep(100.2)
        # The machine's own seconds stand still meanwhile.
        scene.slept_seconds = 8 * HOUR
        woke_at = scene.wall()
        await asyncio.sleep(5)
        (found,) = scene.told
        assert isinstance(found.fact, SwarmContact)
        assert found.fact.state == "found"
        assert 0 <= found.fact.seconds - 8 * HOUR <= 5
        assert any(0 <= at - woke_at <= 1.5 * TICK_SECONDS for at in scene.looked_at)
        assert len([at for at in scene.rejoined_at if at >= woke_at]) == 1
        await end(tasks)

    run_virtual(run())


def test_a_sleep_that_begins_before_the_first_count_is_noticed() -> None:
    async def run() -> None:
        scene = Scene()
        tasks = scene.start()
        await asyncio.sleep(0.8 * TICK_SECONDS)
        assert scene.announced
        assert scene.rejoined_at == []
        scene.slept_seconds = 60.0
        await asyncio.sleep(10)
        (found,) = scene.told
        assert isinstance(found.fact, SwarmContact)
        assert found.fact.state == "found"
        await end(tasks)

    run_virtual(run())


def test_a_short_absence_is_not_worth_a_line() -> None:
    async def run() -> None:
        scene = Scene()
        tasks = scene.start()
        await asyncio.sleep(100)
        scene.is_cut = True
        await asyncio.sleep(SILENT_SECONDS + 0.4 * PATIENCE_SECONDS)
        scene.is_cut = False
        await asyncio.sleep(60)
        assert scene.told == []
        await end(tasks)

    run_virtual(run())
