"""Maintains the run's signed record while a peer runs: republishes it, and adopts later revisions."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from averaging.rounds.round_facts import Fact
from dht.admission.admission import Admission
from dht.ground.errors import LocalFault, PeerFault
from dht.ground.host import Host, PeerId
from dht.ground.store import RecordStore
from dht.ground.tasks import set_within
from dht.identity.multiaddr import parse_peer_multiaddr
from dht.records.signed_manifest import RunRecord, decode_run_record, encode_run_record
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig
from peer.events.peer_events import RunChanged
from peer.network.membership.manifest_revisions import describe_changes
from peer.network.membership.members_here import addresses_now
from peer.network.membership.run_finding import keep_record
from peer.network.membership.run_protocol import RUN_RECORD_LIFE_SECONDS, ask_for_run
from peer.network.node.node import Node

LOOKS_PER_REVISION_LOOK = 3
"""Number of announcements between two searches for a later revision of the manifest."""
MAX_ASKED_MEMBERS = 5
"""Most members of a private run asked for its manifest, until one sends it or refuses with a reason."""
REPUBLISH_SECONDS = 600.0
"""Longest pause between two publications of the run record by one member."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RecordUpkeep:
    """One peer's maintenance of the run's record.

    Attributes:
        record: the newest record that this peer follows.
        met_members: set when this peer meets members, or has a newer record for them.
    """

    config: PeerConfig
    record: RunRecord
    host: Host
    store: RecordStore
    admission: Admission
    report: Callable[[Fact], None]
    wall_clock: Callable[[], float] = time.time
    """Unix seconds."""
    met_members: asyncio.Event = field(default_factory=asyncio.Event)
    _refused_revision: int = 0

    async def republish(self) -> None:
        """Republish the record, at once after meeting members, because the owner's machine may be offline."""
        while True:
            self.met_members.clear()
            try:
                encoded = encode_run_record(self.record)
                await self.store.publish_run(self.config.run_id, encoded, self.wall_clock() + RUN_RECORD_LIFE_SECONDS)
            except (PeerFault, LocalFault) as fault:
                log.warning("publishing the run record failed: %s", fault)
            await set_within(self.met_members, REPUBLISH_SECONDS * random.uniform(0.5, 1.0))

    async def follow_revisions(self, node: Node) -> None:
        """Look for later revisions of the manifest, adopt them, and publish them."""
        while True:
            pause = LOOKS_PER_REVISION_LOOK * node.manifest.network.announce_seconds
            await asyncio.sleep(pause * random.uniform(0.7, 1.0))
            try:
                found = await self.store.fetch_run(self.config.run_id)
                if found is not None:
                    self._take_newer(decode_run_record(found, run_id=self.config.run_id), node)
                if self.admission.is_private and (told := await self._ask_members(node)) is not None:
                    self._take_newer(told, node)
            except (PeerFault, LocalFault) as fault:
                log.warning("looking for a revision of the manifest failed: %s", fault)

    async def _ask_members(self, node: Node) -> RunRecord | None:
        """Ask members directly for the manifest; a peer that the DHT no longer answers gets the reason here."""
        refusals: dict[PeerId, str] = {}
        asked = _some_of(addresses_now(self.config), node.me)
        found = await ask_for_run(self.host, self.admission, asked, on_refused=refusals.__setitem__)
        if found is None and refusals:
            node.revisions.refused(next(iter(refusals.values())))
        return found

    def _take_newer(self, record: RunRecord, node: Node) -> None:
        if record.revision <= max(self.record.revision, self._refused_revision):
            return
        before = node.revisions.manifest
        try:
            newer = RunManifest.from_bytes(record.manifest)
        except ValueError as error:
            newer, what = before, f"it is not followed, because this software cannot read it ({error})"
        else:
            differing = before.model_copy(update={"revision": newer.revision, "changes": newer.changes})
            reason = "; ".join(differing.differences(newer))
            what = f"it takes effect once this peer restarts, because it describes a different run ({reason})"
        if node.revisions.take(newer):
            self.record = record
            keep_record(self.config.run_record_path, record)
            what = describe_changes(newer, before)
            self.met_members.set()
        else:
            self._refused_revision = record.revision
        self.report(RunChanged(revision=record.revision, changes=what))


def _some_of(addresses: list[str], me: PeerId) -> list[str]:
    """Return one address each of a few other peers, in random order."""
    named = {parse_peer_multiaddr(address)[0]: address for address in reversed(addresses)}
    named.pop(me, None)
    return random.sample(list(named.values()), min(len(named), MAX_ASKED_MEMBERS))
