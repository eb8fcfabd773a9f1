"""Restart a task after an error of this software: one bad record or commit must not end the page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from dht.ground.errors import LocalFault

MAX_WAIT_SECONDS: Final = 60.0

log = logging.getLogger("dashboard.http")


async def keep_going(work: Callable[[], Awaitable[None]], what: str, tell: Callable[[str], None]) -> None:
    """Run `work`. When it fails, report this in a sentence, wait 1 s, 2 s, up to a minute, and start again.

    Args:
        what: subject of the sentence, such as ``Observing the swarm``.
        tell: called once for each failure, so finally once a minute; the log gets the traceback at most once a minute.

    Raises:
        LocalFault: an error that the owner of this dashboard can act on; the work is not restarted.
    """
    wait_seconds = 1.0
    while True:
        try:
            await work()
            return
        except LocalFault:
            raise
        except Exception as error:  # an error in one observation must not end the page
            log.exception("%s failed", what)
            tell(
                f"{what} was stopped by an error of this software ({type(error).__name__}: {str(error)[:200]}); it "
                f"starts again in {wait_seconds:.0f} s; please report this, with the log."
            )
        await asyncio.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, MAX_WAIT_SECONDS)
