"""A clock that stands still, and one that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Clock:
    """Seconds that pass only when the test says so, or while somebody sleeps or pauses by this clock."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.on_pause: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        """In place of `time.sleep`."""
        self.now += seconds
        self.on_pause()

    async def sleep(self, seconds: float) -> None:
        """In place of `asyncio.sleep`; sleepers wake in the order of their times."""
        wakes_at = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, wakes_at)


async def nothing_for(seconds: float) -> None:
    """A remote that is silent for longer than that: the clock of the real loop jumps, and nobody has to wait."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
    await asyncio.Event().wait()
