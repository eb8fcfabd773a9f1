"""SwarmView: what one peer believes about the swarm, folded from the valid records it has seen. Pure.

The fold does not depend on the order in which records arrive, or on how often. Everything it returns is sorted by
PeerId, so that equal views give equal decisions on every peer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dht.host import PeerId
from dht.records import PeerRecord


@dataclass(frozen=True, slots=True)
class Side:
    """Members that share one digest of a fragment at one version."""

    digest: bytes
    lineage_tokens: int
    num_members: int

    @property
    def weight(self) -> tuple[bool, int, int, bytes]:
        """What decides between sides: never one member's word against two, then committed tokens, then members.

        The one rule for whose anchor counts: in the view, when a joiner chooses, and when a peer audits its own.
        """
        return (self.num_members >= 2, self.lineage_tokens, self.num_members, self.digest)


def heaviest_side(sides: Iterable[Side]) -> Side:
    """Of the sides at one version. Tokens are claims of their members, so those of a few do not outweigh the heads of
    many: a side with less than half as many members as another one does not count."""
    known = list(sides)
    most = max(side.num_members for side in known)
    return max((side for side in known if 2 * side.num_members >= most), key=lambda side: side.weight)


class HeaviestAnchor(NamedTuple):
    """The anchor of a fragment that most work stands behind, and who announces it."""

    version: int
    digest: bytes
    """First 8 bytes of the anchor's digest."""
    lineage_tokens: int
    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class _Session:
    record: PeerRecord
    """The newest of the session."""
    first_issued: float
    """Of the earliest record seen of it; see `_issued`."""


class SwarmView:
    """Immutable; `merge` returns the next view.

    `joined` and `left` are the PeerIds that the last `merge` added to or removed from the members.
    """

    __slots__ = ("_current", "_expires_at", "_members", "_sessions", "joined", "left", "run_id")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.joined: tuple[PeerId, ...] = ()
        self.left: tuple[PeerId, ...] = ()
        self._sessions: Mapping[PeerId, Mapping[int, _Session]] = {}
        self._current: Mapping[PeerId, PeerRecord] = {}
        self._expires_at = math.inf
        """Nothing expires before."""
        self._members: tuple[PeerRecord, ...] = ()
        """Of `_current` those that have not said that they left."""

    def merge(self, records: Iterable[PeerRecord], now: float) -> SwarmView:
        """The view at `now` (unix seconds) with `records` folded in; what has expired by then is gone.

        Of each session the record with the highest sequence counts, of each peer the session that started last. A
        peer whose record says "left" is gone at once; that record is kept until it expires, so that an older one
        which arrives late does not bring the peer back.

        Takes time for what has changed. The rest is copied as it is, or shared when nothing has.

        Raises:
            ValueError: a record belongs to another run.
        """
        changed: dict[PeerId, dict[int, _Session]] = {}
        expires_at = self._expires_at
        if now >= expires_at:
            changed, expires_at = self._without_expired(now)
        for record in records:
            if record.run_id != self.run_id:
                raise ValueError(f"a record of run {record.run_id}; expected {self.run_id}")
            if record.expires_at <= now:
                continue
            peer_id = record.peer_id
            sessions = changed[peer_id] if peer_id in changed else self._sessions.get(peer_id, {})
            held = sessions.get(record.session)
            if held is None or held.record is not record:
                changed[peer_id] = {**sessions, record.session: _fold(held, record)}
                expires_at = min(expires_at, record.expires_at)
        view = SwarmView(self.run_id)
        view._expires_at = expires_at
        if not changed:
            view._sessions, view._current, view._members = self._sessions, self._current, self._members
            return view
        view._sessions, view._current = _with(self._sessions, self._current, changed)
        view._members = tuple(record for record in view._current.values() if record.state != "left")
        view.joined = tuple(sorted(peer_id for peer_id in changed if view._has(peer_id) and not self._has(peer_id)))
        view.left = tuple(sorted(peer_id for peer_id in changed if self._has(peer_id) and not view._has(peer_id)))
        return view

    def _without_expired(self, now: float) -> tuple[dict[PeerId, dict[int, _Session]], float]:
        """What is left of the peers of which something has expired, and when the next of all others does."""
        changed: dict[PeerId, dict[int, _Session]] = {}
        expires_at = math.inf
        for peer_id, sessions in self._sessions.items():
            for session in sessions.values():
                if session.record.expires_at > now:
                    expires_at = min(expires_at, session.record.expires_at)
                elif peer_id not in changed:
                    live = {key: other for key, other in sessions.items() if other.record.expires_at > now}
                    changed[peer_id] = live
        return changed, expires_at

    def _has(self, peer_id: PeerId) -> bool:
        record = self._current.get(peer_id)
        return record is not None and record.state != "left"

    def members(self, now: float) -> tuple[PeerRecord, ...]:
        """The record of every live peer, whatever it does at the moment."""
        if now < self._expires_at:
            return self._members
        return tuple(record for record in self._members if record.expires_at > now)

    def trainers(self, now: float) -> tuple[PeerRecord, ...]:
        """Those of `members` that train: role trainer, state training."""
        return tuple(record for record in self.members(now) if record.is_training)

    def get(self, peer_id: PeerId, now: float) -> PeerRecord | None:
        """The record of one live peer, or None."""
        record = self._current.get(peer_id)
        return record if record is not None and record.expires_at > now and record.state != "left" else None

    def duplicate_sessions(self, peer_id: PeerId, now: float) -> tuple[int, ...]:
        """The sessions of `peer_id` that are alive together, the earliest started first; empty when all is well.

        A restarted peer has two unexpired records for a while, and that is no duplicate: the older session must have
        published again after the newer one began, seen from expiry times because all records of a run live equally
        long but for what they say that they live longer. Two or more sessions mean several processes with one key file.
        """
        live = sorted(
            (
                session
                for session in self._sessions.get(peer_id, {}).values()
                if session.record.expires_at > now and session.record.state != "left"
            ),
            key=lambda session: _session_age(session.record),
        )
        together = {
            number
            for position, newer in enumerate(live)
            for older in live[:position]
            if _issued(older.record) > newer.first_issued
            for number in (older.record.session, newer.record.session)
        }
        return tuple(session.record.session for session in live if session.record.session in together)

    def differing(self, now: float) -> dict[PeerId, tuple[int, ...]]:
        """Fragments of which a member announces another digest than the heaviest side at the very same version.

        Members that hold another version are not compared: records do not say what they had before.
        """
        sides: dict[tuple[int, int], dict[bytes, list[PeerRecord]]] = {}
        for record in self.members(now):
            if record.state != "joining":
                for fragment, (version, digest) in enumerate(zip(record.versions, record.digests, strict=True)):
                    sides.setdefault((fragment, version), {}).setdefault(digest, []).append(record)
        found: dict[PeerId, tuple[int, ...]] = {}
        for (fragment, _), by_digest in sorted(sides.items()):
            heaviest = heaviest_side(
                Side(digest, max(record.lineage_tokens[fragment] for record in records), len(records))
                for digest, records in by_digest.items()
            ).digest
            for digest, records in by_digest.items():
                if digest != heaviest:
                    for record in records:
                        found[record.peer_id] = (*found.get(record.peer_id, ()), fragment)
        return found

    def heaviest(self, fragment: int) -> HeaviestAnchor | None:
        """The anchor of `fragment` whose side weighs most (see `Side`); a version counts as a side of its own.

        Peers that are still joining do not count. None when no member at the last `merge` announces the fragment.
        """
        announced: dict[tuple[int, bytes, int], list[PeerId]] = {}
        for peer_id, record in self._current.items():
            if record.state not in ("joining", "left") and 0 <= fragment < len(record.versions):
                key = (record.lineage_tokens[fragment], record.digests[fragment], record.versions[fragment])
                announced.setdefault(key, []).append(peer_id)
        if not announced:
            return None
        (lineage_tokens, digest, version), peers = max(
            announced.items(), key=lambda item: (Side(item[0][1], item[0][0], len(item[1])).weight, item[0][2])
        )
        return HeaviestAnchor(version, digest, lineage_tokens, tuple(peers))


def _with(
    sessions: Mapping[PeerId, Mapping[int, _Session]],
    current: Mapping[PeerId, PeerRecord],
    changed: Mapping[PeerId, Mapping[int, _Session]],
) -> tuple[dict[PeerId, Mapping[int, _Session]], dict[PeerId, PeerRecord]]:
    """Both with what has changed of some peers, sorted by PeerId."""
    all_sessions, all_current = dict(sessions), dict(current)
    for peer_id, live in changed.items():
        if live:
            all_sessions[peer_id] = live
            all_current[peer_id] = max((session.record for session in live.values()), key=_session_age)
        else:
            all_sessions.pop(peer_id, None)
            all_current.pop(peer_id, None)
    # A dictionary keeps its order when a value changes; only new keys come last.
    if not changed.keys() <= sessions.keys():
        return dict(sorted(all_sessions.items())), dict(sorted(all_current.items()))
    return all_sessions, all_current


def _fold(held: _Session | None, record: PeerRecord) -> _Session:
    if held is None:
        return _Session(record, _issued(record))
    newest = record if _is_newer(record, held.record) else held.record
    return _Session(newest, min(held.first_issued, _issued(record)))


def _issued(record: PeerRecord) -> float:
    """Unix seconds at which it was signed, later by what every record of the run lives."""
    return record.expires_at - record.longer_seconds


def _is_newer(record: PeerRecord, than: PeerRecord) -> bool:
    if record.sequence != than.sequence:
        return record.sequence > than.sequence
    # A faulty peer may sign two records with one sequence; any fixed choice keeps the fold independent of order.
    return (record.expires_at, repr(record)) > (than.expires_at, repr(than))


def _session_age(record: PeerRecord) -> tuple[float, int]:
    return (record.started_at, record.session)
