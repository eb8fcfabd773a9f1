"""SwarmView: what one peer believes about the live peers of a run. A pure fold of valid records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dht.host import PeerId
from dht.records import PeerRecord


@dataclass(frozen=True, slots=True)
class Announced:
    """The heaviest anchor of a fragment that live members announce, and who does (in PeerId order)."""

    version: int
    digest: bytes
    lineage_tokens: int
    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class SwarmView:
    """Immutable: `merge` returns a new view. Everything it returns is sorted by PeerId."""

    run_id: str
    _newest: Mapping[PeerId, PeerRecord] = field(default_factory=dict)
    _sessions: Mapping[tuple[PeerId, int], PeerRecord] = field(default_factory=dict)

    def merge(self, records: Iterable[PeerRecord], now: float) -> SwarmView:
        """Add records; the later session wins, within one the higher sequence. Expired ones drop out."""
        sessions = {key: record for key, record in self._sessions.items() if record.expires_at > now}
        for record in records:
            if record.run_id != self.run_id or record.expires_at <= now:
                continue
            known = sessions.get((record.peer_id, record.session))
            if known is None or record.sequence > known.sequence:
                sessions[(record.peer_id, record.session)] = record
        newest: dict[PeerId, PeerRecord] = {}
        for key in sorted(sessions):
            record = sessions[key]
            other = newest.get(record.peer_id)
            if other is None or (record.started_at, record.session) > (other.started_at, other.session):
                newest[record.peer_id] = record
        return SwarmView(self.run_id, newest, sessions)

    def members(self, now: float) -> tuple[PeerRecord, ...]:
        """Newest record of every live peer; one that said goodbye is gone at once."""
        return tuple(
            record
            for _, record in sorted(self._newest.items())
            if record.expires_at > now and record.state != "left"
        )

    def trainers(self, now: float) -> tuple[PeerRecord, ...]:
        """Live peers that train; observers, seeds and joiners are none."""
        return tuple(r for r in self.members(now) if r.role == "trainer" and r.state == "training")

    def duplicate_sessions(self, peer_id: PeerId, now: float) -> tuple[int, ...]:
        """Sessions of live records of one PeerId; more than one means that two processes use one identity."""
        return tuple(
            session
            for (owner, session), record in sorted(self._sessions.items())
            if owner == peer_id and record.expires_at > now and record.state != "left"
        )

    def heaviest(self, fragment: int, now: float) -> Announced | None:
        """The anchor with the most committed tokens, then the most announcers, then the largest digest."""
        announced: dict[tuple[int, int, bytes], list[PeerId]] = {}
        for record in self.members(now):
            if fragment < len(record.versions) and any(record.digests[fragment]):
                key = (record.lineage_tokens[fragment], record.versions[fragment], record.digests[fragment])
                announced.setdefault(key, []).append(record.peer_id)
        if not announced:
            return None
        key = max(announced, key=lambda key: (key[0], len(announced[key]), key[2]))
        return Announced(key[1], key[2], key[0], tuple(announced[key]))
