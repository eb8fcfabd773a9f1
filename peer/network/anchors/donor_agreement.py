"""Chooses among the anchors that donors offer: the one that enough members confirm.

A donor's header states its anchor; other members are asked for their digest at that version. An anchor that more than
half of them have is chosen at once. Members that are a round behind are asked again for a while. Then the anchor with
the most members is chosen, and among equals the one with more tokens in signed commits (`dht.records.lineages`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from averaging.lanes.handshake import HandshakePolicy
from averaging.transfer.client import fetch_header
from averaging.transfer.messages import Header
from dht.ground.errors import PeerFault
from dht.ground.host import Host, PeerId
from dht.ground.tasks import in_turn
from dht.records.lineages import MAX_CLAIMED_VERSION, Side, heaviest_side, is_majority
from peer.network.anchors.claimed_anchors import Claims
from peer.network.anchors.donors import MAX_WITNESSES, Donors

HEADER_SECONDS = 5.0
"""Time before one more donor is asked for its header; a donor reads its whole fragment to answer."""
CONFIRM_SECONDS = 1.0
MAX_CONFIRM_ROUNDS = 5
"""Number of times that members behind a donor's version are asked again; they apply a round in less time."""
MAX_CANDIDATES = 4
"""Largest number of anchors compared when none has more than half of the members."""
BUSY_SECONDS = 2.0
MAX_BUSY_ROUNDS = 60
"""After two minutes with every donor busy, the caller decides."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Votes:
    """The members' votes on a donor's anchor.

    Attributes:
        held: the anchor; its tokens are those that most members with this anchor announce.
        confirmed_by: members that have the anchor, including the donor.
        num_asked: members that answered, including the donor.
        is_refuted: more members share a different anchor of that version, or more than half do.
    """

    donor: PeerId
    held: Header
    confirmed_by: tuple[PeerId, ...]
    num_asked: int
    is_refuted: bool = False

    @property
    def is_confirmed(self) -> bool:
        """Whether more than half of the members have the anchor; a version beyond `MAX_CLAIMED_VERSION` also needs a
        second one.
        """
        is_believable = self.held.version <= MAX_CLAIMED_VERSION or len(self.confirmed_by) > 1
        return is_believable and is_majority(len(self.confirmed_by), self.num_asked)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Finds the anchor to fetch, for one joiner."""

    host: Host
    handshake_policy: HandshakePolicy
    donors: Donors
    claims: Claims

    async def agree(
        self, fragment: int, num_values: int, candidates: Sequence[PeerId], voters: frozenset[PeerId]
    ) -> Votes | None:
        """Return the votes for a candidate's anchor; None if no candidate has an anchor that enough members confirm.

        Args:
            voters: members that may confirm the anchor, more than half of which must do so; busy ones are not waited
                for.
                Empty: every member.
        """
        for _ in range(MAX_BUSY_ROUNDS):
            num_busy = 0
            undecided: dict[bytes, Votes] = {}
            calls = [
                partial(self._header, fragment, num_values, donor)
                for donor in sorted(candidates, key=self.donors.is_slow)
            ]
            async with contextlib.aclosing(in_turn(calls, HEADER_SECONDS)) as answers:
                async for donor, header in answers:
                    if header is None or isinstance(header, str):
                        num_busy += header == "busy"
                        continue
                    if self.donors.is_outvoted(donor, fragment, header.digest) or header.digest in undecided:
                        continue
                    found = await self.confirm(fragment, donor, header, voters)
                    if found.is_confirmed:
                        return found
                    if not found.is_refuted and len(undecided) < MAX_CANDIDATES:
                        undecided[header.digest] = found
            if undecided:
                return await self._choose(fragment, list(undecided.values()), voters)
            if not num_busy or voters:
                return None
            await asyncio.sleep(BUSY_SECONDS)
        return None

    async def _header(
        self, fragment: int, num_values: int, donor: PeerId
    ) -> tuple[PeerId, Header | Literal["none", "busy"] | None]:
        """Return a donor's header; None if the donor is not asked, or does not answer."""
        if self.donors.is_blamed(donor):
            return donor, None
        try:
            header = await fetch_header(self.host, self.handshake_policy, donor, fragment, num_values)
        except PeerFault as fault:
            self.donors.note_fault(donor, fragment, fault)
            return donor, None
        except asyncio.CancelledError:
            self.donors.note_answer(donor, in_time=False)
            raise
        self.donors.note_answer(donor, in_time=True)
        return donor, header

    async def confirm(self, fragment: int, donor: PeerId, held: Header, voters: frozenset[PeerId]) -> Votes:
        """Find the members that have a donor's anchor; a refuted anchor is not voted on again for a while."""
        version, digest = held.version, held.digest
        if voters:
            others = self.donors.in_own_order(voters - {donor})[:MAX_WITNESSES]
            known = await self.claims.digests_of(others, fragment, version)
            # The voters were weighed before; one that is still on the way does not have that version, and may never
            # reach it.
            answers = {name: digest for name, digest in known.items() if digest}
        else:
            answers = await self.claims.digests(fragment, version, besides=donor)
        answers[donor] = digest
        confirmed_by = tuple(name for name, other in answers.items() if other == digest)
        against = Counter(other for other in answers.values() if other and other != digest)
        most = max(against.values(), default=0)
        is_refuted = most > len(confirmed_by) or is_majority(most, len(answers))
        if is_refuted:
            log.warning(
                "version %d of fragment %d is not taken from donor %s: %d others have a different digest",
                version,
                fragment,
                donor[-8:],
                most,
            )
            self.donors.outvote(donor, fragment, digest)
        held = replace(held, lineage_tokens=self.known_tokens(fragment, held, confirmed_by))
        return Votes(donor, held, confirmed_by, len(answers), is_refuted)

    def known_tokens(self, fragment: int, held: Header, confirmed_by: Sequence[PeerId]) -> int:
        """Return the tokens that most members announce for this anchor, because the digest does not cover them."""
        announced = [
            record.lineage_tokens[fragment]
            for record in self.donors.givers(fragment)
            if record.peer_id in confirmed_by
            and (record.versions[fragment], record.digests[fragment]) == (held.version, held.digest[:8])
        ]
        if announced and announced.count(held.lineage_tokens) == 0:
            return max(announced, key=lambda tokens: (announced.count(tokens), tokens))
        return held.lineage_tokens

    def _num_elsewhere(self, fragment: int, votes: Votes) -> int:
        """Return the largest number of other members that announce one anchor."""
        others = [
            (record.versions[fragment], record.digests[fragment])
            for record in self.donors.givers(fragment)
            if record.peer_id not in votes.confirmed_by
        ]
        return max(Counter(others).values(), default=0)

    async def _choose(self, fragment: int, found: list[Votes], voters: frozenset[PeerId]) -> Votes | None:
        """Choose among anchors that at most half of the members have: the first that gets a majority, or the heaviest.

        None if more members share a different anchor: an unknown version that no member contradicts is not confirmed.
        """
        for _ in range(MAX_CONFIRM_ROUNDS):
            await asyncio.sleep(CONFIRM_SECONDS)
            found = [await self.confirm(fragment, one.donor, one.held, voters) for one in found]
            confirmed = [one for one in found if one.is_confirmed]
            if confirmed:
                return confirmed[0]
        if voters:
            return None  # the counting anchor was decided before: its members have parted since
        found = [
            one
            for one in found
            if one.held.version <= MAX_CLAIMED_VERSION and len(one.confirmed_by) >= self._num_elsewhere(fragment, one)
        ]
        if len(found) < 2:
            return found[0] if found else None
        chains = [await self.claims.chain(fragment, one.donor, {}, one.held.version) for one in found]
        sides = [
            Side(
                one.held.digest,
                chain.tokens if chain is not None and chain.digest == one.held.digest else 0,
                len(one.confirmed_by),
            )
            for one, chain in zip(found, chains, strict=True)
        ]
        return found[sides.index(heaviest_side(sides))]
