"""Keeps a peer connected: always looks for members, and reports once when all are lost and once when they are back.

One mechanism covers all causes of a loss: an hour without a connection, a changed address, a laptop that slept. After
each of them this peer looks and announces itself at once, without waiting for its next turn.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass

from averaging.rounds.round_facts import Fact
from dht.ground.host import PeerId
from dht.ground.sleep_detection import Wakefulness
from dht.ground.tasks import set_within
from peer.events.peer_events import SwarmContact

TICK_SECONDS = 1.0
"""Pause between two counts of the members, which are cheap."""
ALONE_SECONDS = 5.0
"""Pause between two attempts to reach a member while none is reachable."""
CONNECTED_SECONDS = 60.0
"""Pause between two looks that repair and merge the DHT while members are reachable."""
ASLEEP_SECONDS = 5.0
"""Delay of a tick that means this process was suspended. Records live longer, so no member notices it earlier."""
PATIENCE_SECONDS = 10.0
"""Time within which the swarm may return without being reported as lost, e.g. after waking up."""


@dataclass
class ReconnectLoop:
    """Always looks for members; reports once when all are lost and once when they are back. `run` never ends.

    Attributes:
        look: dials, looks around and reads records; returns the number of DHT members known afterwards.
        records: returns the other members' records in a form that changes with each announcement.
        silent_seconds: a member without a new record for this long counts as absent; much shorter than a record's life,
            which allows for wrong clocks.
        rejoin: called when members are reachable after a time without any; announces this peer.
        is_training: whether this peer takes inner steps now.
        wall_clock: unix seconds, which advance while the machine sleeps, unlike the event loop's seconds.
    """

    look: Callable[[], Awaitable[int]]
    records: Callable[[], Mapping[PeerId, object]]
    rejoin: Callable[[], Awaitable[None]]
    report: Callable[[Fact], None]
    _: KW_ONLY
    silent_seconds: float
    wall_clock: Callable[[], float]
    randomness: random.Random
    is_training: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        self._last_changes: dict[PeerId, tuple[object, float]] = {}
        self._has_met = self._has_slept = self._is_lost = False
        self._seen_at = self._patient_from = self.wall_clock()
        self._wakefulness = Wakefulness(TICK_SECONDS + ASLEEP_SECONDS)
        self._hurry = asyncio.Event()
        self._must_rejoin = asyncio.Event()

    async def run(self) -> None:
        """Look, count and report."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_looking())
            group.create_task(self._keep_rejoining())
            group.create_task(self._keep_counting())

    async def _keep_looking(self) -> None:
        while True:
            self._hurry.clear()
            num_reached = await self.look()
            is_among_others = num_reached > 0 and self._count() > 0
            seconds = CONNECTED_SECONDS if is_among_others else ALONE_SECONDS
            await set_within(self._hurry, seconds * self.randomness.uniform(0.8, 1.2))

    async def _keep_rejoining(self) -> None:
        while True:
            await self._must_rejoin.wait()
            self._must_rejoin.clear()
            await self.rejoin()

    async def _keep_counting(self) -> None:
        self._wakefulness.note(self.wall_clock())
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self.wall_clock()
            if self._wakefulness.note(now):
                # This peer may have worked with members in its records even if it has not counted them yet.
                self._has_slept = self._has_met or bool(self.records())
                # Records from before the sleep do not show which members are reachable now.
                self._last_changes = {peer_id: (record, -math.inf) for peer_id, record in self.records().items()}
                self._patient_from = now
                self._hurry.set()
            if self._note(self._count(), now):
                self._must_rejoin.set()

    def _count(self) -> int:
        """Return the number of members that announced themselves recently."""
        now = self.wall_clock()
        changes = {}
        for peer_id, record in self.records().items():
            last = self._last_changes.get(peer_id)
            changes[peer_id] = last if last is not None and last[0] == record else (record, now)
        self._last_changes = changes
        return sum(now - changed_at <= self.silent_seconds for _, changed_at in changes.values())

    def _note(self, num_members: int, now: float) -> bool:
        """Return whether members are reachable after a time without any, as far as this peer knows."""
        if num_members:
            was_away = self._is_lost or self._has_slept
            if was_away:
                self.report(SwarmContact("found", max(0.0, now - self._seen_at), num_members))
            is_first = not self._has_met
            self._seen_at = self._patient_from = now
            self._has_met, self._is_lost, self._has_slept = True, False, False
            return was_away or is_first
        if self._has_met and not self._is_lost and now - self._patient_from >= PATIENCE_SECONDS:
            self._is_lost = True
            self.report(SwarmContact("lost", now - self._seen_at, is_training=self.is_training()))
            self._hurry.set()
        return False
