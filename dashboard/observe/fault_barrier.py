"""A task that goes on after a fault of ours: what one record or commit does to it must not end everybody's page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from dht.ground.errors import LocalFault

MAX_WAIT_SECONDS: Final = 60.0

log = logging.getLogger("dashboard.http")


async def keep_going(work: Callable[[], Awaitable[None]], what: str, tell: Callable[[str], None]) -> None:
    """Do `work`; when it fails, tell so in a sentence, wait 1 s, 2 s, up to a minute, and begin again.

    Args:
        what: of the sentence, such as ``Looking at the swarm``.
        tell: told once per failure, so once a minute at last; the log gets the traceback, once a minute at most.

    Raises:
        LocalFault: something that the owner of this dashboard can act on; it is not tried again.
    """
    wait_seconds = 1.0
    while True:
        try:
            await work()
            return
        except LocalFault:
            raise
        except Exception as error:  # a fault in one look must not end the page for all
            log.exception("%s failed", what)
            tell(
                f"{what} was stopped by a fault of this software ({type(error).__name__}: {str(error)[:200]}); it "
                f"begins again in {wait_seconds:.0f} s; please report this, with the log."
            )
        await asyncio.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, MAX_WAIT_SECONDS)
