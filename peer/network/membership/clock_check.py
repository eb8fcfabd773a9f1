"""Compares this peer's clock with those of members: where no member has its time, it waits and says what to do.

Records with a wrong time are worth nothing to others, and so is the work of a peer that publishes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from averaging.rounds.round_facts import Fact
from dht.ground.clocks import CLOCK_SKEW_SECONDS, SwarmClock
from peer.events.peer_events import ClockIsWrong

SETTLE_SECONDS = 2.0
"""Pause between two comparisons while this peer waits for its clock to be set."""


@dataclass
class ClockCheck:
    """Reports a wrong clock once, and again when it is wrong by something else.

    Attributes:
        read: reads the clocks of members; returns what they show now, in unix seconds.
        report: takes the event.
    """

    clock: SwarmClock
    read: Callable[[], list[float]]
    report: Callable[[Fact], None]
    _told: float = field(default=0.0, init=False)

    def look(self) -> bool:
        """Compare the clocks; returns False when this peer's records would be worth nothing to any member.

        A peer with one member at its side goes on. It takes a lie of everybody that answers to hold a peer up.
        """
        shown = self.read()
        off = self.clock.seconds_off(shown)
        if off and abs(off - self._told) > CLOCK_SKEW_SECONDS:
            self.report(ClockIsWrong(off, len(shown)))
        self._told = off
        return not off or any(self.clock.agrees_with(one) for one in shown)

    async def settle(self, refresh: Callable[[], Awaitable[object]]) -> bool:
        """Wait until this peer's clock is right; returns True. `refresh` asks members before each further look."""
        while not self.look():
            await asyncio.sleep(SETTLE_SECONDS)
            await refresh()
        return True
