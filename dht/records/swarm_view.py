"""SwarmView: one peer's view of the swarm, combined from the valid records that it has received. Pure.

The result does not depend on the order or repetition of records. All results are sorted by PeerId, so that equal views
give equal decisions on all peers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dht.ground.host import PeerId
from dht.records.lineages import Side, heaviest_side
from dht.records.peer_record import PeerRecord

MAX_SESSIONS: Final = 8
"""Sessions stored for one peer, those that started last. A restart leaves one more for minutes; only a peer that
invents sessions has more."""


class Session(NamedTuple):
    record: PeerRecord
    """The newest record of the session."""
    first_issued: float
    """Issue time of the session's earliest known record; see `issued_at`."""


def issued_at(record: PeerRecord) -> float:
    """Return when a record was signed, in unix seconds, plus the common lifetime of the run's records."""
    return record.expires_at - record.longer_seconds


def session_age(session: Session) -> tuple[float, int]:
    """Return a sort key that puts the session that started first first."""
    return (session.record.started_at, session.record.session)


def is_newer(record: PeerRecord, than: PeerRecord) -> bool:
    """Return whether `record` replaces `than`, a record of the same session."""
    if record.sequence != than.sequence:
        return record.sequence > than.sequence
    if record == than:
        return False
    # A faulty peer may sign two records with one sequence; any fixed choice keeps the fold independent of order.
    return (record.expires_at, repr(record)) > (than.expires_at, repr(than))


def with_record(held: Session | None, record: PeerRecord) -> Session:
    """Return the session with one more record."""
    issued = issued_at(record)
    if held is None:
        return Session(record, issued)
    newest = record if is_newer(record, held.record) else held.record
    return Session(newest, held.first_issued if held.first_issued <= issued else issued)


def without_oldest(sessions: dict[int, Session]) -> dict[int, Session]:
    """Return the sessions without the one that started first if there is one too many."""
    if len(sessions) > MAX_SESSIONS:
        del sessions[min(sessions, key=lambda number: session_age(sessions[number]))]
    return sessions


def sessions_together(sessions: Iterable[Session], now: float) -> tuple[int, ...]:
    """Return the concurrently live sessions of one member, earliest first; empty if there is no conflict.

    Two or more sessions mean several processes with one key file. The unexpired record that a peer leaves when it
    restarts is not a second session: an older session counts if it published again after the newer one began. Expiry
    times show this, because all records of a run live equally long, apart from the additional time that they state.
    """
    live = sorted(
        (one for one in sessions if one.record.expires_at > now and one.record.state != "left"), key=session_age
    )
    together = {
        number
        for position, newer in enumerate(live)
        for older in live[:position]
        if issued_at(older.record) > newer.first_issued
        for number in (older.record.session, newer.record.session)
    }
    return tuple(one.record.session for one in live if one.record.session in together)


class SwarmView:
    """Immutable view; `merge` returns the next one.

    `changed` are the sorted PeerIds whose record the last `merge` replaced or removed.
    """

    __slots__ = ("_current", "_expires_at", "_first_issued", "_is_sorted", "_members", "_several", "changed", "run_id")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.changed: tuple[PeerId, ...] = ()
        # A simulated swarm has as many views as peers, so the memory for each peer in each view matters.
        self._current: Mapping[PeerId, PeerRecord] = {}
        """The newest record in the latest session of each peer."""
        self._is_sorted = True
        """Whether `_current` is sorted by PeerId."""
        self._first_issued: Mapping[PeerId, float] = {}
        """Issue time of the earliest known record of that session; see `issued_at`."""
        self._several: Mapping[PeerId, Mapping[int, Session]] = {}
        """All sessions of peers with more than one."""
        self._expires_at = math.inf
        """When the next record expires."""
        self._members: tuple[PeerRecord, ...] | None = ()
        """Records in `_current` of peers that have not left; None until first used."""

    def merge(self, records: Iterable[PeerRecord], now: float) -> SwarmView:
        """Return the view at `now` (unix seconds) with `records` added and expired records removed.

        The record with the highest sequence counts for each session, and the session that started last for each peer. A
        peer whose record has state "left" disappears at once. That record stays stored until it expires, so that a late
        older one does not bring the peer back.

        The time depends on the number of changes. The rest is copied, or shared if nothing changed.

        Raises:
            ValueError: a record belongs to another run.
        """
        changed: dict[PeerId, dict[int, Session]] = {}
        expires_at = self._expires_at
        if now >= expires_at:
            changed, expires_at = self._without_expired(now)
        newest: dict[PeerId, PeerRecord] = {}
        first_issued: dict[PeerId, float] = {}
        """Both for peers with one session, which are nearly all."""
        for record in records:
            if record.run_id != self.run_id:
                raise ValueError(f"a record of run {record.run_id}; expected {self.run_id}")
            if record.expires_at <= now:
                continue
            peer_id = record.peer_id
            if peer_id in changed or peer_id in self._several:
                sessions = changed[peer_id] if peer_id in changed else self._several[peer_id]
                held = sessions.get(record.session)
                if held is not None and held.record is record:
                    continue
                changed[peer_id] = without_oldest({**sessions, record.session: with_record(held, record)})
            else:
                current = newest[peer_id] if peer_id in newest else self._current.get(peer_id)
                if current is record:
                    continue
                first = first_issued[peer_id] if peer_id in first_issued else self._first_issued.get(peer_id, math.inf)
                if current is not None and current.session != record.session:
                    live = {current.session: Session(current, first), record.session: with_record(None, record)}
                    newest.pop(peer_id, None)
                    first_issued.pop(peer_id, None)
                    changed[peer_id] = live
                else:
                    if current is None or is_newer(record, current):
                        newest[peer_id] = record
                    if issued_at(record) < first:
                        first_issued[peer_id] = issued_at(record)
            if record.expires_at < expires_at:
                expires_at = record.expires_at
        view = SwarmView(self.run_id)
        view._expires_at = expires_at
        if not changed and not newest and not first_issued:
            view._current, view._first_issued, view._several = self._current, self._first_issued, self._several
            view._members, view._is_sorted = self._members, self._is_sorted
            return view
        view._take_over(self, newest, first_issued, changed)
        differs = (key for key in (*newest, *changed) if view._current.get(key) is not self._current.get(key))
        view.changed = tuple(sorted(differs))
        return view

    def _take_over(
        self,
        before: SwarmView,
        newest: Mapping[PeerId, PeerRecord],
        first_issued: Mapping[PeerId, float],
        changed: Mapping[PeerId, Mapping[int, Session]],
    ) -> None:
        """Take the content of `before`, except for peers with a `newest` record or `changed` live sessions."""
        current = {**before._current, **newest}
        issued: dict[PeerId, float | None] = dict(first_issued)
        for peer_id, live in changed.items():
            if not live:
                del current[peer_id]
                issued[peer_id] = None
            else:
                current[peer_id], issued[peer_id] = max(live.values(), key=session_age)
        # A dictionary keeps its order when a value changes; only new keys are appended.
        known = before._current.keys()
        self._is_sorted = before._is_sorted and newest.keys() <= known and changed.keys() <= known
        others = {key: sessions for key, sessions in before._several.items() if key not in changed}
        self._current = current
        self._several = others | {key: live for key, live in changed.items() if len(live) > 1}
        self._first_issued = _changed(before._first_issued, issued) if issued else before._first_issued
        self._members = None

    def _sessions_of(self, peer_id: PeerId) -> Mapping[int, Session]:
        """Return all known sessions of a peer, by number."""
        if peer_id in self._several:
            return self._several[peer_id]
        lone = self._current.get(peer_id)
        return {} if lone is None else {lone.session: Session(lone, self._first_issued[peer_id])}

    def _without_expired(self, now: float) -> tuple[dict[PeerId, dict[int, Session]], float]:
        """Return the remaining sessions of peers with expired ones, and when the next record of all others expires."""
        changed: dict[PeerId, dict[int, Session]] = {}
        expires_at = math.inf
        for peer_id, record in self._current.items():
            if peer_id not in self._several:
                if record.expires_at > now:
                    expires_at = min(expires_at, record.expires_at)
                else:
                    changed[peer_id] = {}
        for peer_id, sessions in self._several.items():
            live = {key: session for key, session in sessions.items() if session.record.expires_at > now}
            expires_at = min(expires_at, *(session.record.expires_at for session in live.values()), math.inf)
            if len(live) < len(sessions):
                changed[peer_id] = live
        return changed, expires_at

    def members(self, now: float) -> tuple[PeerRecord, ...]:
        """Return the record of each live peer, whatever its state."""
        if self._members is None:
            if not self._is_sorted:
                # Sorted only now, because most views during the start of a swarm are never read.
                self._current = {peer_id: self._current[peer_id] for peer_id in sorted(self._current)}
                self._is_sorted = True
            self._members = tuple([record for record in self._current.values() if record.state != "left"])
        if now < self._expires_at:
            return self._members
        return tuple(record for record in self._members if record.expires_at > now)

    def get(self, peer_id: PeerId, now: float) -> PeerRecord | None:
        record = self._current.get(peer_id)
        return record if record is not None and record.expires_at > now and record.state != "left" else None

    def duplicate_sessions(self, peer_id: PeerId, now: float) -> tuple[int, ...]:
        """Return the concurrently live sessions of `peer_id`; see `sessions_together`."""
        return sessions_together(self._sessions_of(peer_id).values(), now)

    def differing(self, now: float) -> dict[PeerId, tuple[int, ...]]:
        """Return by member the fragments whose announced digest differs from the heaviest side's at the same version.

        Members with another version are not compared, since records do not contain earlier digests.
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


def _changed(before: Mapping[PeerId, float], changes: Mapping[PeerId, float | None]) -> dict[PeerId, float]:
    """Return `before` with changed values; None removes the key."""
    after = dict(before)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after
