"""Fetches anchors from the swarm, chooses their donors, and handles donors that fail.

For each fragment, the anchor that enough members confirm (`peer.network.anchors.donor_agreement`) is fetched from all
members that have it (`averaging.transfer.many_donors`). If all of them have moved on to a later version, only that
fragment is fetched again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from averaging.lanes.handshake import HandshakePolicy
from averaging.signing.round_signatures import Checker
from averaging.transfer.chunked_pieces import FragmentPiece
from averaging.transfer.client import fetch_digest
from averaging.transfer.many_donors import Transfer
from averaging.transfer.messages import Header
from averaging.transfer.snapshots import Snapshot
from averaging.wire.field_checks import Limits
from averaging.wire.messages import KEPT_COMMITS, Commit
from dht.ground.errors import PeerFault
from dht.ground.host import Host, PeerId
from peer.network.anchors.claimed_anchors import Claims
from peer.network.anchors.donor_agreement import Agreement, Votes
from peer.network.anchors.donors import Donors, Members

FRAGMENTS_AT_ONCE = 2
"""Members agree on one fragment while another is downloaded; donors hold that many snapshots."""
MAX_RESTARTS = 5
"""Restarts of a fragment whose donors keep moving on."""
log = logging.getLogger(__name__)


class HeldState(Protocol):
    """The caller's state of a fragment; implemented by `averaging.outer.fragment_anchor_and_residual.FragmentState`."""

    @property
    def num_values(self) -> int: ...
    @property
    def lineage_tokens(self) -> int: ...
    @property
    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fragment's state from the swarm.

    Attributes:
        donors: members that sent it, the largest senders first.
        confirmed_by: members with the same digest at the same version, including the donor of the header.
    """

    snapshot: Snapshot
    donors: tuple[PeerId, ...]
    confirmed_by: tuple[PeerId, ...]


@dataclass
class Fetcher:
    """State transfer on the joiner's side.

    Attributes:
        checker: checks the signatures of commits.
        has_worked, was_met: see `Donors`.
    """

    host: Host
    handshake_policy: HandshakePolicy
    limits: Limits
    members: Members
    checker: Checker
    has_worked: Callable[[PeerId], bool] = lambda peer_id: False
    was_met: Callable[[PeerId], bool] = lambda peer_id: False

    def __post_init__(self) -> None:
        self.donors = Donors(self.host.peer_id, self.members, self.has_worked, self.was_met)
        self.claims = Claims(self.host, self.handshake_policy, self.limits, self.checker, self.donors)
        self._agreement = Agreement(self.host, self.handshake_policy, self.donors, self.claims)

    # ------------------------------------------------------------------------------------------------ what is wanted

    async def fetch_better(
        self,
        states: Mapping[int, HeldState],
        adopt: Callable[[int, Fetched], Awaitable[None]],
        on_progress: Callable[[int, int], None] = lambda done_bytes, total_bytes: None,
    ) -> dict[int, tuple[PeerId, ...]]:
        """Fetch every fragment for which the swarm has a heavier state than `states`, several at once.

        `adopt` is called with each fragment on its arrival, `on_progress` with the bytes of all fragments that have
        arrived.
        Returns the donors of each adopted fragment.
        """
        wanted = [index for index, state in sorted(states.items()) if self._is_behind(index, state)]
        total_bytes = sum(8 * states[index].num_values for index in wanted)
        arrived = dict.fromkeys(wanted, 0)
        donors: dict[int, tuple[PeerId, ...]] = {}
        turn = asyncio.Semaphore(FRAGMENTS_AT_ONCE)

        async def fetch(index: int) -> None:
            def count(num_bytes: int) -> None:
                arrived[index] = num_bytes
                on_progress(sum(arrived.values()), total_bytes)

            async with turn:
                names = self.donors.best_first(index)
                found = await self.fetch(index, states[index].num_values, names, count, states[index])
                if found is not None:
                    await adopt(index, found)
                    donors[index] = found.donors

        async with asyncio.TaskGroup() as group:
            for index in wanted:
                group.create_task(fetch(index))
        return donors

    async def fetch(
        self,
        fragment: int,
        num_values: int,
        candidates: Sequence[PeerId],
        on_bytes: Callable[[int], None] = lambda num_bytes: None,
        held: HeldState | None = None,
        voters: frozenset[PeerId] = frozenset(),
    ) -> Fetched | None:
        """Fetch one fragment of `num_values` values; None if no candidate has an anchor that enough members confirm.

        Args:
            candidates: members asked for their header, in this order; chunks come from all members that confirm it.
            on_bytes: called with the number of bytes arrived so far, which starts again after a restart.
            held: only an anchor heavier than this is fetched.
            voters: members that share the counting anchor; more than half of them must confirm it. They are asked only
                once, because the caller takes part in no round of this fragment meanwhile. Empty: every member.
        """
        for _ in range(1 if voters else MAX_RESTARTS):
            agreed = await self._agreement.agree(fragment, num_values, candidates, voters)
            if agreed is None or (held is not None and not _is_heavier(agreed.held, held)):
                return None
            found = await self._fetch_shared(fragment, num_values, agreed, on_bytes)
            if found is not None:
                return found
        return None

    def _is_behind(self, fragment: int, state: HeldState) -> bool:
        ours = (state.lineage_tokens, state.digest[:8])
        return any(
            (record.lineage_tokens[fragment], record.digests[fragment]) > ours
            for record in self.donors.givers(fragment)
        )

    # --------------------------------------------------------------------------------------------------- the transfer

    async def _fetch_shared(
        self,
        fragment: int,
        num_values: int,
        agreed: Votes,
        on_bytes: Callable[[int], None],
    ) -> Fetched | None:
        on_bytes(0)
        piece = FragmentPiece(fragment, agreed.held, num_values)
        transfer = Transfer(self.host, self.handshake_policy, piece, _summing(on_bytes))
        donors = self.donors.in_own_order(agreed.confirmed_by)
        try:
            is_complete = await transfer.run(donors)
            most = max(transfer.given_bytes, key=lambda donor: transfer.given_bytes[donor], default=donors[0])
            snapshot = piece.snapshot(most) if is_complete else None
        except PeerFault as fault:
            log.warning("fragment %d, which %d members share, was refused: %s", fragment, len(donors), fault)
            return None
        for donor, failure in transfer.faults.items():
            self.donors.note_fault(donor, fragment, failure)
        if snapshot is None:
            return None
        given = transfer.given_bytes
        givers = tuple(sorted(given, key=lambda donor: (-given[donor], donor)))
        commits = await self._commits(fragment, snapshot, [*givers, *donors])
        return Fetched(replace(snapshot, commits=commits), givers, agreed.confirmed_by)

    async def _commits(self, fragment: int, snapshot: Snapshot, donors: Sequence[PeerId]) -> tuple[Commit, ...]:
        """Return recent commits of the snapshot's own lineage, before and after its version, from the first donor with
        them.

        A donor may have changed sides after it sent the snapshot; its commits are then of a different lineage.
        """
        first = max(0, snapshot.version - KEPT_COMMITS)
        for donor in dict.fromkeys(donors):
            try:
                commits = {commit.version: commit for commit in await self.claims.commits(fragment, donor, first)}
                for commit in commits.values():
                    if objection := self.checker.objection(commit):
                        raise PeerFault(donor, f"sent an unsigned commit: {objection}")
                    await asyncio.sleep(0)
                leaving = commits.get(snapshot.version)
                if leaving is not None:
                    fits = leaving.anchor_digest == snapshot.digest[: len(leaving.anchor_digest)]
                else:
                    digest = await fetch_digest(self.host, self.handshake_policy, donor, fragment, snapshot.version)
                    fits = digest == snapshot.digest
                if fits:
                    return tuple(commits[version] for version in sorted(commits))
            except PeerFault as fault:
                self.donors.note_fault(donor, fragment, fault)
        return ()


def _summing(on_bytes: Callable[[int], None]) -> Callable[[int], None]:
    """Return a function that takes the length of each chunk, and passes on the sum."""
    arrived = 0

    def count(num_bytes: int) -> None:
        nonlocal arrived
        arrived += num_bytes
        on_bytes(arrived)

    return count


def _is_heavier(header: Header, state: HeldState) -> bool:
    return (header.lineage_tokens, header.digest) > (state.lineage_tokens, state.digest)
