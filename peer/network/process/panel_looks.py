"""This peer's view of the swarm for its panel: the members every few seconds, and people's names."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from averaging.signing.commit_credit import round_of
from dht.ground.errors import LocalFault, PeerFault, UsageFault
from dht.ground.store import RecordStore
from dht.identity.keys import Identity, public_key_of
from dht.records.profiles import Profile
from peer.config.peer_config import PeerConfig
from peer.network.membership.profile_file import choice_path, profile_of, read_choice
from peer.network.membership.profile_publisher import newest_profiles
from peer.network.node.node import Node
from peer.view.run_view import NUM_COMMITS, work_in
from peer.view.swarm_seen import MAX_NAMES, SwarmSeen, SwarmWatch

SEEN_SECONDS = 2.0
"""Pause between two updates of the panel's members; longer in a large swarm."""
SEEN_SECONDS_PER_MEMBER = 0.01
PROFILES_SECONDS = 300.0
"""Pause between two reads of profiles, which seldom change; a newcomer's name may take as long to appear."""
FIRST_PROFILES_SECONDS = 10.0
"""Time until the first read of profiles, so that it does not disturb the state transfer."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PanelLooks:
    """Collects the panel's view of the swarm for one peer.

    Attributes:
        contributor: key of this machine's owner; None: there is none.
        wall_clock: unix seconds.
        on_seen: called every few seconds with this peer's view of the swarm.
    """

    config: PeerConfig
    store: RecordStore
    contributor: Identity | None
    wall_clock: Callable[[], float]
    on_seen: Callable[[SwarmSeen], object]

    async def _profiles(self) -> dict[bytes, Profile]:
        """Return people's profiles, by their contributor keys."""
        try:
            found = await newest_profiles(self.store, self.config.run_id, self.wall_clock(), MAX_NAMES)
        except (PeerFault, LocalFault) as fault:
            log.debug("profiles could not be looked up: %s", fault)
            return {}
        return {public_key_of(key): one for key, one in found.items()}

    def _own_profile(self) -> Profile | None:
        """Return this person's profile from the file, which may change at any time; None if there is none or it is
        unreadable.
        """
        if self.contributor is None or self.config.contributor_key is None:
            return None
        try:
            choice = read_choice(choice_path(self.config.contributor_key))
        except UsageFault as fault:
            log.debug("the profile of this person could not be read: %s", fault)
            return None
        return profile_of(choice, self.contributor, self.config.run_id, self.wall_clock())

    async def run(self, node: Node) -> None:
        """Pass this peer's view of the swarm to `on_seen` every few seconds."""
        watch = SwarmWatch(node.me, self.config.name, "" if self.contributor is None else self.contributor.peer_id)
        profiles_at = time.monotonic() + FIRST_PROFILES_SECONDS
        while True:
            members = [record for record in node.membership.members() if record.peer_id != node.me]
            if time.monotonic() >= profiles_at:
                profiles_at = time.monotonic() + PROFILES_SECONDS
                watch.take_profiles(await self._profiles())
            if (own := self._own_profile()) is not None:
                watch.take_own_profile(public_key_of(own.contributor_id), own)
            commits = sorted(node.fragments[0].log.newest.items())[-NUM_COMMITS:]
            work = work_in([round_of(commit, sum(node.mailbox.sizes)) for _, commit in commits])
            here = [*members, node.own_record()]
            self.on_seen(watch.look(here, self.wall_clock(), node.membership.suspected(), work))
            await asyncio.sleep(SEEN_SECONDS + SEEN_SECONDS_PER_MEMBER * len(members))
