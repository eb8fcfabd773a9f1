"""Publishes the profile of this machine's owner, in addition to the machine's own record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dht.ground.errors import LocalFault, PeerFault
from dht.ground.host import PeerId
from dht.ground.store import RecordStore
from dht.identity.keys import Identity
from dht.records.profiles import Profile, decode_profile, encode_profile
from peer.network.membership.profile_file import choice_path, merged, profile_of, read_choice, write_choice

PUBLISH_SECONDS = 300.0
"""Pause between two publications while nothing changes."""
ALONE_SECONDS = 20.0
"""Pause between two attempts while no member stores the profile."""
GLANCE_SECONDS = 2.0
"""Pause between two checks of the profile file; short, because a hidden name should vanish at once."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Contributing:
    """Keeps one contributor's profile published from one machine, `me`.

    Attributes:
        key_path: path of the contributor's key; the choice beside it may change while this runs.
        wall_clock: unix seconds.
    """

    store: RecordStore
    contributor: Identity
    key_path: Path
    run_id: str
    me: PeerId
    wall_clock: Callable[[], float]

    async def run(self) -> None:
        """Publish repeatedly until cancelled."""
        while True:
            before = _stamp(choice_path(self.key_path))
            try:
                num_copies = await self.publish()
            except (LocalFault, PeerFault) as fault:
                log.warning("the profile could not be published: %s", fault)
                num_copies = 0
            for _ in range(int((PUBLISH_SECONDS if num_copies else ALONE_SECONDS) / GLANCE_SECONDS)):
                await asyncio.sleep(GLANCE_SECONDS)
                if _stamp(choice_path(self.key_path)) != before:
                    break

    async def publish(self) -> int:
        """Publish once; return the number of other members that store the profile.

        Raises:
            LocalFault: the profile file is damaged or not writable.
        """
        now, path = self.wall_clock(), choice_path(self.key_path)
        mine = read_choice(path)
        known = await newest_profiles(self.store, self.run_id, now)
        choice = merged(mine, known.get(self.contributor.peer_id), self.me, now)
        if choice != mine:
            write_choice(path, choice)
        profile = profile_of(choice, self.contributor, self.run_id, now)
        encoded = encode_profile(profile, self.contributor)
        return await self.store.publish_profile(self.run_id, profile.contributor_id, encoded, profile.expires_at)


def _stamp(path: Path) -> tuple[int, int]:
    """Return a value that differs after each change of the file, which is replaced as a whole."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


async def newest_profiles(
    store: RecordStore, run_id: str, now: float, most: int | None = None
) -> dict[PeerId, Profile]:
    """Return the newest profiles of a run's contributors from reachable members, at most `most`."""
    found: dict[PeerId, Profile] = {}
    for data in (await store.fetch_profiles(run_id))[:most]:
        with contextlib.suppress(PeerFault):
            one = decode_profile(data, run_id=run_id, now=now)
            other = found.get(one.contributor_id, one)
            found[one.contributor_id] = max(one, other, key=lambda each: (each.sequence, each.expires_at))
        await asyncio.sleep(0)  # verifying a signature takes a third of a millisecond
    return found
