"""Compares this peer's clock with those of members; if it agrees with none, waits and reports what to do.

Other members ignore records with a wrong time, and the work of a peer that publishes them is wasted.
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
    """Reports a wrong clock once, and again when the error changes.

    Attributes:
        read: returns the current times on the clocks of members, in unix seconds.
        report: receives the event.
    """

    clock: SwarmClock
    read: Callable[[], list[float]]
    report: Callable[[Fact], None]
    _told: float = field(default=0.0, init=False)

    def look(self) -> bool:
        """Compare the clocks; return False if every member would ignore this peer's records.

        A peer continues if one member agrees with it. So only a lie of all answering members can stop a peer.
        """
        shown = self.read()
        off = self.clock.seconds_off(shown)
        if off and abs(off - self._told) > CLOCK_SKEW_SECONDS:
            self.report(ClockIsWrong(off, len(shown)))
        self._told = off
        return not off or any(self.clock.agrees_with(one) for one in shown)

    async def settle(self, refresh: Callable[[], Awaitable[object]]) -> bool:
        """Wait until this peer's clock is right; return True. `refresh` asks members before each additional check."""
        while not self.look():
            await asyncio.sleep(SETTLE_SECONDS)
            await refresh()
        return True
