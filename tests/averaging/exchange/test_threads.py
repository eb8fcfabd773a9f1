"""The exchange with its work on values in real threads: nothing of a round depends on where it is done."""

from __future__ import annotations

import asyncio

from averaging.outer.outer_step import CHUNK_VALUES
from averaging.rounds.round_facts import RoundCommitted
from tests.kit.rounds.exchange_swarm import Swarm

NUM_ROUNDS = 2


def test_rounds_with_threads_agree_and_show_everything():
    async def play():
        size = 6 * CHUNK_VALUES + 1000
        swarm = Swarm(3, sizes=(size,), latency_seconds=(0.001, 0.002), upload_bits_per_second=4e8)
        changed = asyncio.Event()
        for peer in swarm.live():
            peer.compute = asyncio.to_thread

            def report(said, peer=peer, old=peer._report):
                old(said)
                if isinstance(said, RoundCommitted):
                    changed.set()

            peer._report = report
        async with asyncio.timeout(120):
            for number in range(NUM_ROUNDS):
                await asyncio.gather(*(peer.work(0, 10 * number + place) for place, peer in enumerate(swarm.live())))
                while any(peer.exchange.fragments[0].machine.version <= number for peer in swarm.live()):
                    changed.clear()
                    await changed.wait()
        swarm.assert_agreement(least_version=NUM_ROUNDS)
        swarm.assert_shown()
        await swarm.close()

    asyncio.run(play())
