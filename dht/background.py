"""What one owner does beside everything else, and stops when it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from dht.task_ending import end_tasks

log = logging.getLogger(__name__)


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
