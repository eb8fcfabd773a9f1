"""Publishes the profile of the person whose machine this is, beside the machine's own record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from dht.errors import LocalFault, PeerFault
from dht.host import PeerId
from dht.identity.keys import Identity
from dht.records.profiles import Profile, decode_profile, encode_profile
from dht.store import RecordStore
from peer.network.membership.profile_file import choice_path, merged, profile_of, read_choice, write_choice

PUBLISH_SECONDS = 300.0
"""So soon does a change of the profile file reach the others."""
ALONE_SECONDS = 20.0
"""Between two tries while nobody keeps it."""

log = logging.getLogger(__name__)


class Contributing:
    """Keeps one contributor's profile published from one machine, `me`.

    Args:
        key_path: of the contributor's key; the choice is beside it and may be changed while this runs.
        wall_clock: unix seconds.
    """

    def __init__(
        self,
        store: RecordStore,
        contributor: Identity,
        key_path: Path,
        run_id: str,
        me: PeerId,
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._contributor = contributor
        self._path = choice_path(key_path)
        self._run_id = run_id
        self._me = me
        self._wall_clock = wall_clock

    async def run(self) -> None:
        """Publish, again and again, until it is cancelled."""
        while True:
            try:
                num_copies = await self.publish()
            except (LocalFault, PeerFault) as fault:
                log.warning("the profile was not published: %s", fault)
                num_copies = 0
            await asyncio.sleep(PUBLISH_SECONDS if num_copies else ALONE_SECONDS)

    async def publish(self) -> int:
        """Publish once; returns how many others keep it.

        Raises:
            LocalFault: the file of the choice is damaged, or cannot be written.
        """
        now = self._wall_clock()
        mine = read_choice(self._path)
        choice = merged(mine, await published(self._store, self._run_id, self._contributor.peer_id, now), self._me, now)
        if choice != mine:
            write_choice(self._path, choice)
        profile = profile_of(choice, self._contributor, self._run_id, now)
        encoded = encode_profile(profile, self._contributor)
        return await self._store.publish_profile(self._run_id, profile.contributor_id, encoded, profile.expires_at)


async def published(store: RecordStore, run_id: str, contributor_id: PeerId, now: float) -> Profile | None:
    """A contributor's newest profile in a run; None when nobody reachable has one."""
    found = []
    for data in await store.fetch_profiles(run_id):
        with contextlib.suppress(PeerFault):
            profile = decode_profile(data, run_id=run_id, now=now)
            if profile.contributor_id == contributor_id:
                found.append(profile)
    return max(found, key=lambda profile: (profile.sequence, profile.expires_at), default=None)
