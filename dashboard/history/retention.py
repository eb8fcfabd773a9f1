"""How long each kind of row is kept in the database file, and the deletion of older ones."""

from __future__ import annotations

from typing import Final

import aiosqlite

from dashboard.credit.contributor_ledger import SECONDS_PER_DAY, SECONDS_PER_HOUR

LOOKS_SECONDS: Final = 48 * SECONDS_PER_HOUR
"""Looks, and the coming and going of peers that no commit lists."""
MINUTES_SECONDS: Final = 90 * SECONDS_PER_DAY
"""Minute means; hourly means, totals and signed commits stay."""
WORK_MINUTES_SECONDS: Final = SECONDS_PER_DAY + SECONDS_PER_HOUR
"""Work by the minute: a curve shows a contributor's first day so (`reading.FIRST_DAY_SECONDS`)."""


async def forget_old(database: aiosqlite.Connection, now: float) -> None:
    """Delete what is older than its kind is kept, at `now` (unix seconds)."""
    await database.execute("DELETE FROM looks WHERE at < ?", (now - LOOKS_SECONDS,))
    await database.execute("DELETE FROM events WHERE at < ? AND NOT is_kept", (now - LOOKS_SECONDS,))
    await database.execute("DELETE FROM minutes WHERE at < ?", (now - MINUTES_SECONDS,))
    await database.execute("DELETE FROM work_minutes WHERE minute < ?", ((now - WORK_MINUTES_SECONDS) // 60,))
    await database.commit()
