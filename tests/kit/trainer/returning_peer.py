"""A peer that comes back to its checkpoint while the swarm has gone on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_step import anchor_digest
from averaging.transfer.snapshots import Snapshot
from averaging.wire.messages import Commit
from dht.ground.compute import compute_inline
from dht.ground.host import PeerId
from peer.events.peer_events import Event
from peer.network.anchors.fetcher import Fetched
from peer.network.node.reporter import Reporter
from peer.network.node.starting_state import StartingState
from tests.kit.trainer.checkpoint_peer import ME, Peer

OTHER = PeerId("12D3KooWOther")


class LaterState:
    """A fetcher that finds fragment 1 at a later version, with the commits that led there."""

    def __init__(self, size: int, version: int, commits: tuple[Commit, ...]) -> None:
        generator = np.random.default_rng(7)
        anchor, momentum = (generator.standard_normal(size, dtype=np.float32) for _ in range(2))
        self.snapshot = Snapshot(version, 10**6, anchor, momentum, anchor_digest(anchor, momentum), commits)

    async def fetch_better(
        self,
        states: Mapping[int, FragmentState],
        adopt: Callable[[int, Fetched], Awaitable[None]],
        on_progress: Callable[[int, int], None],
    ) -> dict[int, tuple[PeerId, ...]]:
        await adopt(1, Fetched(self.snapshot, (OTHER,), (OTHER,)))
        return {1: (OTHER,)}


def return_to(folder: Path, swarm: LaterState) -> tuple[Peer, list[Event]]:
    """A new session of the peer of `folder`: both sides come back, and the swarm has gone on with fragment 1."""
    seen: list[Event] = []

    async def scene() -> Peer:
        peer = Peer(folder)
        reporter = Reporter(ME, peer.mailbox, lambda: 5.0, lambda: 5.0, seen.append)
        options: dict[str, Any] = {
            "trains": True,
            "compute": compute_inline,
            "look_seconds": 1.0,
        }
        start = StartingState(
            peer.mailbox,
            peer.fragments,
            peer.desk,
            None,  # type: ignore[arg-type]
            swarm,  # type: ignore[arg-type]
            peer.keeper,
            reporter,
            **options,
        )
        starting = asyncio.create_task(start.run())
        while not starting.done():
            peer.link.try_post_initial()
            await asyncio.sleep(0.001)
        await starting
        number = peer.mailbox.network.restored_moment
        assert number > 0
        assert peer.trainer_keeper.restore(number) is not None
        handing = asyncio.create_task(start.hand_over())
        while not handing.done():
            peer.link.poll()
            await asyncio.sleep(0.001)
        await handing
        peer.link.poll()
        return peer

    return asyncio.run(scene()), seen
