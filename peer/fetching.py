"""Fetches anchors from the swarm: which donor, and whether what it sent is what the swarm has."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from averaging.catch_up import Snapshot, fetch_commits, fetch_digest, fetch_state
from averaging.fragment_state import FragmentState
from averaging.links import Doorkeeper
from averaging.wire import Limits
from dht.errors import PeerFault, PeerUnreachable
from dht.host import Host, PeerId
from peer.membership import Membership

WITNESSES = 3
"""Other members asked whether a donor's digest is theirs too; one honest answer is enough to refuse a lie."""

log = logging.getLogger(__name__)


class Fetcher:
    """State transfer as a joiner sees it. (Several donors at once and resuming belong here when they come.)"""

    def __init__(self, host: Host, doorkeeper: Doorkeeper, limits: Limits, membership: Membership) -> None:
        self._host = host
        self._doorkeeper = doorkeeper
        self._limits = limits
        self._membership = membership

    async def fetch_heaviest(
        self, fragment: int, state: FragmentState, preferred: PeerId
    ) -> tuple[Snapshot | None, PeerId]:
        """The fragment as the swarm has it, when that is heavier than `state`; and the donor it came from.

        Heavier means more committed tokens in its lineage; with equally many, the one that more members announce.
        """
        announced = self._membership.heaviest(fragment)
        if announced is None:
            return None, preferred
        ours = (state.lineage_tokens, state.digest[:8])
        if announced.lineage_tokens < ours[0] or (announced.lineage_tokens, announced.digest) == ours:
            return None, preferred
        donors = sorted(
            (record for record in self._membership.members() if len(record.lineage_tokens) > fragment),
            key=lambda record: (-record.lineage_tokens[fragment], record.peer_id != preferred, record.peer_id),
        )
        names = [record.peer_id for record in donors if record.lineage_tokens[fragment] >= announced.lineage_tokens]
        snapshot = await self.fetch_from(fragment, state.num_values, names or [record.peer_id for record in donors])
        return snapshot, self._last_donor if snapshot is not None else preferred

    async def fetch_from(self, fragment: int, num_values: int, donors: Sequence[PeerId]) -> Snapshot | None:
        """Try donors in order until one sends a state that other members confirm; None when none does."""
        for donor in donors:
            try:
                snapshot = await fetch_state(self._host, self._doorkeeper, donor, fragment, num_values)
                if snapshot is None or not await self._confirmed(fragment, snapshot, donor):
                    continue
                first = max(0, snapshot.version - 8)
                commits = await fetch_commits(self._host, self._doorkeeper, donor, fragment, first, self._limits)
            except PeerUnreachable as fault:
                self._membership.suspect(donor, fault.what)
            except PeerFault as fault:
                log.warning("state of fragment %d was refused: %s", fragment, fault)
            else:
                self._last_donor = donor
                return replace(snapshot, commits=tuple(commits))
        return None

    _last_donor = PeerId("")

    async def _confirmed(self, fragment: int, snapshot: Snapshot, donor: PeerId) -> bool:
        """Whether no other member contradicts the donor, or more agree than contradict."""
        agree = contradict = 0
        witnesses = [record.peer_id for record in self._membership.members() if record.peer_id != donor]
        for witness in witnesses[:WITNESSES]:
            try:
                digest = await fetch_digest(self._host, self._doorkeeper, witness, fragment, snapshot.version)
            except PeerFault as fault:
                log.debug("no witness: %s", fault)
                continue
            agree += digest == snapshot.digest
            contradict += digest not in (b"", snapshot.digest)
        if contradict > agree:
            log.warning(
                "donor %s sent fragment %d version %d with a digest that %d other members contradict; refused",
                donor[-8:],
                fragment,
                snapshot.version,
                contradict,
            )
        return contradict <= agree
