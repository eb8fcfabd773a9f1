"""Turns between remotes: as many requests as a remote may have, its share is one remote's share."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.ground.host import PeerId
from dht.streams.fair_turns import (
    FORGET_SECONDS,
    LEAST_BYTES,
    LEAST_SECONDS,
    TURN_SECONDS,
    FairTurns,
    NoTurn,
)
from tests.kit.network.memory_networks import named, now
from tests.simulator.virtual_time import run_virtual

GREEDY, MODEST, OTHER = named(1), named(2), named(3)


class Client:
    """Requests of one remote, each of which takes bytes at a rate."""

    def __init__(self, turns: FairTurns, remote: PeerId, bytes_per_second: float = 1e6) -> None:
        self.turns = turns
        self.remote = remote
        self.bytes_per_second = bytes_per_second
        self.began_at = now()
        self.served_seconds = 0.0
        self.num_served = 0

    def moved(self) -> int:
        return round((now() - self.began_at) * self.bytes_per_second)

    async def request(self, seconds: float, wait_seconds: float = 1e6) -> None:
        async with self.turns.turn(self.remote, self.moved, wait_seconds):
            self.num_served += 1
            await asyncio.sleep(seconds)
            self.served_seconds += seconds


@settings(max_examples=20)
@given(num_requests=st.integers(1, 60), num_slots=st.integers(1, 4), num_greedy=st.integers(1, 3))
def test_who_asks_for_little_never_waits_for_all_that_another_asks(
    num_requests: int, num_slots: int, num_greedy: int
) -> None:
    async def play() -> None:
        turns = FairTurns(num_slots, 2)
        greedy = [Client(turns, named(10 + number)) for number in range(num_greedy)]
        tasks = [asyncio.ensure_future(one.request(2.0)) for one in greedy for _ in range(num_requests)]
        await asyncio.sleep(1.0)
        began = now()
        await Client(turns, MODEST).request(0.0)
        # Whoever came before it and was not served yet has one turn; what they ask beside that comes later.
        assert now() - began <= 2.0 * math.ceil(num_greedy / num_slots)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not turns._turns
        assert not turns._waiting

    run_virtual(play())


@pytest.mark.parametrize(
    ("bytes_per_second", "lost_after"),
    [
        (0.0, LEAST_SECONDS),
        (0.5 * LEAST_BYTES / LEAST_SECONDS, LEAST_SECONDS),
        (1.5 * LEAST_BYTES / LEAST_SECONDS, TURN_SECONDS),
    ],
)
def test_a_turn_is_lost_to_others_and_never_without_them(bytes_per_second: float, lost_after: float) -> None:
    async def play() -> None:
        turns = FairTurns(1, 2)
        slow = Client(turns, GREEDY, bytes_per_second)
        tasks = [asyncio.ensure_future(slow.request(100.0)) for _ in range(2)]
        await asyncio.sleep(50.0)
        # Its own second request waits, and takes nothing away.
        assert [turn.has_slot for turn in turns._turns] == [True]
        began = now()
        await Client(turns, MODEST).request(0.0)
        assert now() - began <= LEAST_SECONDS + 1.0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        slow = Client(turns, GREEDY, bytes_per_second)
        task = asyncio.ensure_future(slow.request(100.0))
        await asyncio.sleep(0.0)
        began = now()
        await Client(turns, MODEST).request(0.0)
        assert lost_after <= now() - began <= lost_after + 1.0
        await task
        assert slow.served_seconds == 100.0

    run_virtual(play())


def test_who_waits_too_long_is_told_and_nothing_is_remembered_for_ever() -> None:
    async def play() -> None:
        turns = FairTurns(1, 1)
        tasks = [asyncio.ensure_future(Client(turns, named(number)).request(1.0)) for number in range(10, 300)]
        await asyncio.sleep(0.0)
        with pytest.raises(NoTurn):
            await Client(turns, MODEST).request(0.0, 0.5)
        await asyncio.gather(*tasks)
        await asyncio.sleep(FORGET_SECONDS)
        await Client(turns, MODEST).request(0.0)
        assert len(turns._used) == 1

    run_virtual(play())
