"""Tasks: ending them, waiting for one of two events, and background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

END_SECONDS = 10.0
"""Time for cancelled tasks to end; closing their resources takes a few seconds at most, also on a busy machine."""

T = TypeVar("T")

log = logging.getLogger(__name__)


async def end_tasks(tasks: Iterable[asyncio.Future[Any]], seconds: float = END_SECONDS) -> None:
    """Cancel all tasks except the calling one, and wait until they have ended, at most `seconds`.

    Their exceptions are ignored. A task that does not end is a bug; it is logged and delays nothing else.
    """
    ending = {task for task in tasks if task is not asyncio.current_task()}
    for task in ending:
        task.cancel()
    if not ending:
        return
    done, left = await asyncio.wait(ending, timeout=seconds)
    for task in done:
        if not task.cancelled():
            task.exception()  # retrieved here, so that asyncio does not warn
    for task in left:
        log.warning("%s did not end within %.0f s after it was cancelled; this is a bug", task, seconds)


async def is_done_before(work: asyncio.Future[Any], stop: asyncio.Event) -> bool:
    """Wait for `work`, and raise its exception. Return False if `stop` was set first, which cancels `work`."""
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
    """Wait until an event is set, at most `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def in_turn(calls: Iterable[Callable[[], Coroutine[Any, Any, T]]], seconds: float) -> AsyncGenerator[T, None]:
    """Yield answers as they arrive. The next call begins when one has ended, or when none has for `seconds`.

    Closing the generator (`contextlib.aclosing`) ends the running calls.
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
    """Background tasks. Unexpected exceptions are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, unless this object is closed."""
        if self._closed:
            coroutine.close()
            return
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def close(self) -> None:
        """Stop all tasks; no task begins afterwards."""
        self._closed = True
        await end_tasks(self._tasks)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())
