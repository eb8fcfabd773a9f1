"""Finds out when this peer's anchors are not the swarm's, and fetches those that count.

Whoever is behind, or on the side of a fork with fewer committed tokens, tells the other side at its audit and repairs
when that answers. A peer whose anchor nobody shares gives in to two or more members that share another one, also when
its own lineage has more tokens: joiners never take one member's word against two (`dht.swarm.Side` is the one rule),
so nothing else could end that fork.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from averaging.exchange import Exchange
from averaging.fragment_runtime import FragmentRuntime
from dht.host import PeerId
from dht.records import PeerRecord
from peer.fetching import Fetcher
from peer.fragment_memory import adopt_snapshot


class Neighbours(Protocol):
    """Port: who is there; `peer.membership.Membership` is one."""

    def members(self) -> list[PeerRecord]:
        """Live members other than this one."""
        ...

    def heads(self, fragment: int) -> Collection[tuple[int, bytes]]:
        """(version, first bytes of the digest) of the anchors that members announce.

        Those of this peer, or of suspected ones alone, may be among them.
        """
        ...


class RepairReports(Protocol):
    """Port: who is told; `peer.reporting.Reporter` is one."""

    def anchor_differed(self, fragment: int, version: int, num_others: int) -> None: ...

    def repaired(self, fragment: int, version: int, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Doubt:
    """What announcements of others say against the own anchor.

    Attributes:
        heavier: a member with another anchor and more committed tokens; of several the next one after this peer, so
            that not everybody who is behind asks the same one.
        version: at which a member without more tokens has another anchor than this peer had; `digest`: what it had.
    """

    heavier: PeerId | None = None
    version: int | None = None
    digest: bytes = b""


class Repairs:
    """Audits and repairs of all fragments of one peer."""

    def __init__(self, exchange: Exchange, fetcher: Fetcher, neighbours: Neighbours, reports: RepairReports) -> None:
        self._exchange = exchange
        self._fetcher = fetcher
        self._neighbours = neighbours
        self._reports = reports

    def behind(self) -> dict[int, PeerId]:
        """Fragments of which a member announces more committed tokens than ours have; and that member."""
        doubts = {fragment.index: self._doubt(fragment).heavier for fragment in self._exchange.fragments}
        return {index: peer_id for index, peer_id in doubts.items() if peer_id is not None}

    async def audit(self) -> None:
        """Compare announced anchors with our own; cheap as long as they agree."""
        for fragment in self._exchange.fragments:
            if fragment.repairing:
                continue
            doubt = self._doubt(fragment)
            if doubt.heavier is not None:
                self._exchange.audit(fragment.index, doubt.heavier)
            if doubt.version is not None:
                await self._give_in_when_outvoted(fragment, doubt.version, doubt.digest)

    async def repair(self, index: int, peer_id: PeerId, reason: str) -> None:
        """Fetch a fragment that `peer_id` has a heavier anchor of; `Exchange.repaired` follows in any case."""
        tokens = self._exchange.fragments[index].state.lineage_tokens
        # The one that knows of a better anchor may be gone by now; whoever has committed more will do as well.
        others = [
            record.peer_id
            for record in self._neighbours.members()
            if len(record.lineage_tokens) > index
            and record.lineage_tokens[index] > tokens
            and record.peer_id != peer_id
        ]
        await self._replace(index, [peer_id, *self._from_me_on(others)], reason, must_be_heavier=True)

    def _from_me_on(self, peer_ids: Sequence[PeerId]) -> list[PeerId]:
        """In their order, beginning with the one that follows this peer: each peer begins elsewhere."""
        return sorted(peer_ids, key=lambda peer_id: (peer_id < self._exchange.me, peer_id))

    def _doubt(self, fragment: FragmentRuntime) -> _Doubt:
        state, index, me, doubt = fragment.state, fragment.index, self._exchange.me, _Doubt()
        doubtful = {head for head in self._neighbours.heads(index) if not _had(fragment, *head)}
        if not doubtful:
            return doubt
        for record in self._neighbours.members():
            if len(record.versions) <= index or record.state == "joining":
                continue
            version, digest, tokens = record.versions[index], record.digests[index], record.lineage_tokens[index]
            if (version, digest) not in doubtful:
                continue
            known = fragment.digests.get(version, b"")
            is_heavier = (tokens, digest) > (state.lineage_tokens, state.digest[:8])
            if is_heavier and (doubt.heavier is None or doubt.heavier < me < record.peer_id):
                doubt = _Doubt(record.peer_id, doubt.version, doubt.digest)
            if known:
                doubt = _Doubt(doubt.heavier, version, known)
            elif version > state.version and not is_heavier:
                # It went on from another anchor than ours: ours would have more tokens by that version.
                doubt = _Doubt(doubt.heavier, state.version, state.digest)
        return doubt

    async def _give_in_when_outvoted(self, fragment: FragmentRuntime, version: int, digest: bytes) -> None:
        before = fragment.state.digest
        tokens = fragment.state.lineage_tokens
        others = await self._fetcher.outvoted_by(fragment.index, version, digest, tokens)
        # Asking took a while, in which a round may have closed.
        if not others or fragment.repairing or fragment.state.digest != before:
            return
        fragment.repairing = True
        self._reports.anchor_differed(fragment.index, version, len(others))
        reason = f"more weight stands behind that of {len(others)} other members"
        await self._replace(fragment.index, others, reason, must_be_heavier=False)

    async def _replace(self, index: int, donors: Sequence[PeerId], reason: str, *, must_be_heavier: bool) -> None:
        fragment = self._exchange.fragments[index]
        state = fragment.state
        try:
            found = await self._fetcher.fetch_from(index, state.num_values, donors)
            if found is None:
                return
            snapshot = found
            # Fetching took a while, in which this peer may have come to that anchor by itself, and gone on from it.
            if fragment.digests.get(snapshot.version) == snapshot.digest:
                return
            is_heavier = (found.lineage_tokens, found.digest) > (state.lineage_tokens, state.digest)
            if is_heavier or not must_be_heavier:
                await self._exchange.adopt(index, lambda state: adopt_snapshot(state, snapshot), snapshot.commits)
                self._reports.repaired(index, snapshot.version, reason)
        finally:
            self._exchange.repaired(index)


def _had(fragment: FragmentRuntime, version: int, digest: bytes) -> bool:
    """Whether this peer's anchor is that, or was at that version."""
    if (version, digest) == (fragment.state.version, fragment.state.digest[:8]):
        return True
    known = fragment.digests.get(version, b"")
    return known[: len(digest)] == digest


def holds(record: PeerRecord, fragment: int, lineage_tokens: int) -> bool:
    """Whether a member can give newcomers at least these committed tokens of a fragment."""
    known = record.lineage_tokens
    return record.state in ("training", "serving") and len(known) > fragment and known[fragment] >= lineage_tokens
