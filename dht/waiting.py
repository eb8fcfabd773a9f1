"""Waiting for one of two things: work or its end, an event or the time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


async def is_done_before(work: asyncio.Future[Any], stop: asyncio.Event) -> bool:
    """Wait for `work`, and raise what it raises. False: `stop` was set before, and it was cancelled."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        return work.done()
    finally:
        work.cancel()
        stopping.cancel()
        await asyncio.gather(work, stopping, return_exceptions=True)


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
