"""Waiting for one of two things: work or its end, an event or the time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from dht.task_ending import end_tasks

T = TypeVar("T")


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


async def in_turn(calls: Iterable[Callable[[], Coroutine[Any, Any, T]]], seconds: float) -> AsyncGenerator[T, None]:
    """Answers as they come. The next call begins when one has ended, or when none has for so many seconds.

    What is under way ends when this is closed (`contextlib.aclosing`).
    """
    waiting, asking = list(calls), set[asyncio.Task[T]]()
    try:
        while waiting or asking:
            if waiting:
                asking.add(asyncio.get_running_loop().create_task(waiting.pop(0)()))
            timeout = seconds if waiting else None
            done, asking = await asyncio.wait(asking, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        await end_tasks(asking)
