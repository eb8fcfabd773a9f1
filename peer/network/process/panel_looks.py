"""What the person at this peer's panel sees of the others: a look every few seconds, and names."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from averaging.wire.messages import Commit
from dht.ground.errors import LocalFault, PeerFault, UsageFault
from dht.ground.host import PeerId
from dht.ground.store import RecordStore
from dht.identity.keys import Identity, public_key_of
from dht.records.profiles import Profile
from peer.config.peer_config import PeerConfig
from peer.network.membership.profile_file import choice_path, profile_of, read_choice
from peer.network.membership.profile_publisher import newest_profiles
from peer.network.node.node import Node
from peer.view.swarm_seen import MAX_NAMES, SwarmSeen, SwarmWatch

SEEN_SECONDS = 2.0
"""Between two looks at the members for the person at this peer's panel; in a swarm of many longer."""
SEEN_SECONDS_PER_MEMBER = 0.01
PROFILES_SECONDS = 300.0
"""Between two looks at what people say of themselves, which seldom changes; a newcomer waits as long for its name."""
FIRST_PROFILES_SECONDS = 10.0
"""After joining: not while the state comes."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PanelLooks:
    """Looks for the panel of one peer.

    Attributes:
        contributor: key of the person whose machine this is; None: it has none.
        wall_clock: unix seconds.
        on_seen: called every few seconds with what this peer sees of the swarm.
    """

    config: PeerConfig
    store: RecordStore
    contributor: Identity | None
    wall_clock: Callable[[], float]
    on_seen: Callable[[SwarmSeen], object]

    async def _profiles(self) -> dict[bytes, Profile]:
        """What people say of themselves, by their contributor keys."""
        try:
            found = await newest_profiles(self.store, self.config.run_id, self.wall_clock(), MAX_NAMES)
        except (PeerFault, LocalFault) as fault:
            log.debug("profiles were not found: %s", fault)
            return {}
        return {public_key_of(key): one for key, one in found.items()}

    def _own_profile(self) -> Profile | None:
        """What this person says in the file, which may change at any time; None: nothing, or it cannot be read."""
        if self.contributor is None or self.config.contributor_key is None:
            return None
        try:
            choice = read_choice(choice_path(self.config.contributor_key))
        except UsageFault as fault:
            log.debug("the profile of this person was not read: %s", fault)
            return None
        return profile_of(choice, self.contributor, self.config.run_id, self.wall_clock())

    async def run(self, node: Node) -> None:
        """Say every few seconds what this peer sees of the swarm."""
        watch = SwarmWatch(node.me, self.config.name, "" if self.contributor is None else self.contributor.peer_id)
        profiles_at = time.monotonic() + FIRST_PROFILES_SECONDS
        while True:
            members = [record for record in node.membership.members() if record.peer_id != node.me]
            if time.monotonic() >= profiles_at:
                profiles_at = time.monotonic() + PROFILES_SECONDS
                watch.take_profiles(await self._profiles())
            if (own := self._own_profile()) is not None:
                watch.take_own_profile(public_key_of(own.contributor_id), own)
            here, work = [*members, node.own_record()], work_in(node.fragments[0].log.newest.values())
            self.on_seen(watch.look(here, self.wall_clock(), node.membership.suspected(), work))
            await asyncio.sleep(SEEN_SECONDS + SEEN_SECONDS_PER_MEMBER * len(members))


def work_in(commits: Iterable[Commit]) -> dict[PeerId, int]:
    """Return the tokens of each member in signed commits, as far as they were averaged."""
    work: Counter[PeerId] = Counter()
    for commit in commits:
        averaged = zip(commit.roster, commit.tokens_averaged, strict=True)
        work.update({entry.peer_id: tokens for entry, tokens in averaged if tokens})
    return dict(work)
