"""How tasks are ended: each is cancelled, and none of them is waited for without end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

END_SECONDS = 10.0
"""For tasks that were cancelled. Closing what they hold takes a few seconds at most, also on a busy machine."""

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
