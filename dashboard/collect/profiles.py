"""Read contributors' signed profiles, and accept those whose machines confirm them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dashboard.history.history import History
from dashboard.observe.strangers_words import label_text
from dht.ground.errors import LocalFault, PeerFault
from dht.ground.store import RecordStore
from dht.records.peer_record import MAX_LABEL_LENGTH
from dht.records.profiles import Profile, decode_profile

READ_SECONDS: Final = 20.0
"""Interval of readings: a hidden name disappears within this time and the next observation."""
MAX_PROFILES: Final = 4096
"""Profiles decoded in one reading, 0.3 ms each."""

log = logging.getLogger(__name__)


async def follow_profiles(store: RecordStore, history: History, run_id: str, clock: Callable[[], float]) -> None:
    """Read profiles forever; `clock` returns unix seconds."""
    while True:
        try:
            take_over(history, await store.fetch_profiles(run_id), run_id, clock())
        except (PeerFault, LocalFault) as fault:
            log.info("no profiles: %s", fault)
        await asyncio.sleep(READ_SECONDS)


def take_over(history: History, found: list[bytes], run_id: str, now: float) -> None:
    """Add the valid profiles that a visible machine names; a flood of others is ignored."""
    named = {row.contributor_id for row in history.ledger.present.values()}
    for raw in found[:MAX_PROFILES]:
        try:
            profile = decode_profile(raw, run_id=run_id, now=now)
        except PeerFault as fault:
            log.debug("a profile is not shown: %s", fault)
            continue
        if profile.contributor_id in named or profile.contributor_id in history.ledger.profiles:
            history.add_profile(cleaned(profile))


def cleaned(profile: Profile) -> Profile:
    """Return a profile whose texts can be shown."""
    name, team = (label_text(text, MAX_LABEL_LENGTH) for text in (profile.name, profile.team))
    return replace(profile, name=name, team=team)
