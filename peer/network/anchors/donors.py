"""Chooses the members that give anchors, and the order to ask them; avoids some of them for a while."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from averaging.rounds.presence import most_newcomers
from dht.ground.bounds import Newest, Pauses
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import PeerId
from dht.records.peer_record import PeerRecord

BLAME_SECONDS = 600.0
"""Time for which a donor of wrong chunks is not asked again."""
MAX_WITNESSES = 12
"""Number of other members asked for their digest at once."""
MAX_REMEMBERED = 1024
"""Limit on avoided donors, and on anchors that are not voted on again; a new one replaces the oldest."""
FORK_SECONDS = 30.0
"""Time for which the anchor of a donor on the lighter side of a fork is not voted on again; its next anchor is."""

log = logging.getLogger(__name__)


class Members(Protocol):
    """Port: the members; implemented by `peer.network.membership.membership.Membership`."""

    def members(self) -> list[PeerRecord]:
        """Return live members other than this peer."""

    def suspect(self, peer_id: PeerId, reason: str) -> None:
        """Suspect a peer that did not answer."""


@dataclass(eq=False)
class Donors:
    """The members from which one peer fetches anchors.

    Attributes:
        has_worked: whether a member has work in signed commits that this peer applied.
        was_met: whether more than a record is known of a member.
    """

    me: PeerId
    members: Members
    has_worked: Callable[[PeerId], bool] = lambda peer_id: False
    was_met: Callable[[PeerId], bool] = lambda peer_id: False

    def __post_init__(self) -> None:
        self._blamed = Pauses[PeerId](BLAME_SECONDS, BLAME_SECONDS, MAX_REMEMBERED)
        self._slow = Newest[PeerId, None](MAX_REMEMBERED)
        self._outvoted = Newest[tuple[PeerId, int], tuple[bytes, float]](MAX_REMEMBERED)

    def givers(self, fragment: int) -> list[PeerRecord]:
        """Return the members that have a fragment's anchor."""
        records = [record for record in self.members.members() if len(record.lineage_tokens) > fragment]
        return [record for record in records if record.state != "joining" and not self.is_blamed(record.peer_id)]

    def in_own_order(self, names: Iterable[PeerId]) -> list[PeerId]:
        """Return members in an order that differs between joiners, so that ten joiners do not all ask the same member
        first.
        """
        return sorted(names, key=self._spread)

    def witnesses(self, names: Iterable[PeerId]) -> list[PeerId]:
        """Return the members whose answers about anchors count: those that have worked, and too few others to decide.

        A newcomer knows no member that has worked, so all members count equally. Members that it met are asked first:
        records are free, and a few hundred of them that never answer would hide the members that do.
        """
        ordered = sorted(self.in_own_order(names), key=lambda name: not self.was_met(name))
        workers = [name for name in ordered if self.has_worked(name)]
        if not workers:
            return ordered[:MAX_WITNESSES]
        known = set(workers)
        others = [name for name in ordered if name not in known][: most_newcomers(len(workers[:MAX_WITNESSES]))]
        return [*workers[: MAX_WITNESSES - len(others)], *others]

    def best_first(self, fragment: int) -> list[PeerId]:
        """Return donors by the number of members with the same anchor; the order of equal donors differs between
        joiners.
        """
        records = self.givers(fragment)
        sides = Counter((record.versions[fragment], record.digests[fragment]) for record in records)

        def rank(record: PeerRecord) -> tuple[int, int, bytes]:
            num_members = sides[record.versions[fragment], record.digests[fragment]]
            return (-num_members, -record.lineage_tokens[fragment], self._spread(record.peer_id))

        return [record.peer_id for record in sorted(records, key=rank)]

    def announced(self, donor: PeerId, fragment: int) -> tuple[int, bytes] | None:
        """Return (version, first bytes of the digest) that a donor announces; None if the member is not a donor."""
        heads = (
            (one.versions[fragment], one.digests[fragment]) for one in self.givers(fragment) if one.peer_id == donor
        )
        return next(heads, None)

    def note_fault(self, donor: PeerId, fragment: int, fault: PeerFault) -> None:
        """Record a failed request."""
        if isinstance(fault, PeerUnreachable):
            self.members.suspect(donor, fault.what)
        else:
            self.blame(donor, fragment, fault.what)

    def blame(self, donor: PeerId, fragment: int, what: str) -> None:
        """Avoid a member that sent wrong data."""
        log.warning("donor %s of fragment %d is avoided for %.0f s: %s", donor[-8:], fragment, BLAME_SECONDS, what)
        self._blamed.begin(donor, asyncio.get_running_loop().time())

    def is_blamed(self, peer_id: PeerId) -> bool:
        """Whether the member sent wrong data recently."""
        return self._blamed.holds(peer_id, asyncio.get_running_loop().time())

    def note_answer(self, donor: PeerId, *, in_time: bool) -> None:
        """Record whether the member answered with its header before others did."""
        self._slow.pop(donor, None)
        if not in_time:
            self._slow[donor] = None

    def is_slow(self, donor: PeerId) -> bool:
        """Whether other members answered faster at the last request; such a member is asked after them."""
        return donor in self._slow

    def outvote(self, donor: PeerId, fragment: int, digest: bytes) -> None:
        """Record that other members have a different anchor than the donor's with this digest."""
        self._outvoted[donor, fragment] = digest, asyncio.get_running_loop().time() + FORK_SECONDS
        self._outvoted.move_to_end((donor, fragment))

    def is_outvoted(self, donor: PeerId, fragment: int, digest: bytes) -> bool:
        """Whether other members recently had a different digest than this one; `digest` may be a prefix."""
        refused, until = self._outvoted.get((donor, fragment), (b"", 0.0))
        return asyncio.get_running_loop().time() < until and refused.startswith(digest)

    def _spread(self, donor: PeerId) -> bytes:
        return hashlib.sha256(f"{self.me}|{donor}".encode()).digest()
