"""Tasks: ending them, waiting for one of two things, and those that nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

END_SECONDS = 10.0
"""Seconds for cancelled tasks; closing what they hold takes a few seconds at most, also on a busy machine."""

T = TypeVar("T")

log = logging.getLogger(__name__)


async def end_tasks(tasks: Iterable[asyncio.Future[Any]], seconds: float = END_SECONDS) -> None:
    """Cancel all tasks but the one that calls, and wait until they have ended, at most for `seconds`.

    What they raise is theirs. One that goes on nevertheless is a bug; it is logged, and holds nobody up.
    """
    ending = {task for task in tasks if task is not asyncio.current_task()}
    for task in ending:
        task.cancel()
    if not ending:
        return
    done, left = await asyncio.wait(ending, timeout=seconds)
    for task in done:
        if not task.cancelled():
            task.exception()  # asked for: nobody else does
    for task in left:
        log.warning("%s did not end within %.0f s after it was cancelled; this is a bug", task, seconds)


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


class Background:
    """Tasks that nobody waits for; what ends one unexpectedly is logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, unless everything was stopped already."""
        if self._closed:
            coroutine.close()
            return
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def close(self) -> None:
        """Stop all of them; none begins any more."""
        self._closed = True
        await end_tasks(self._tasks)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("something that went on in the background failed", exc_info=task.exception())
