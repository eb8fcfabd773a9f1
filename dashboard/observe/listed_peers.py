"""The peers that a page lists, and their condition: here, late, silent or left. Bounded whatever strangers publish.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dashboard.history_facts import Condition
from dashboard.observe.shown_manifest import ANNOUNCE_SECONDS, ShownManifest
from dashboard.observe.strangers_words import label_text
from dht.ground.host import PeerId
from dht.records.peer_record import MAX_LABEL_LENGTH, MAX_SOFTWARE_LENGTH, PeerRecord
from dht.records.profiles import contributor_id_of

MAX_PEERS: Final = 2500
"""Rows kept. Peers seen first and peers in signed commits stay, so a flood of new keys cannot displace a
contributor."""

MISSED_ANNOUNCEMENTS: Final = 3
"""A peer without a new record for this many announcements is `late`. A slow observation may lose one, but not three in
a row."""


@dataclass(frozen=True, slots=True)
class Look:
    """An observation of the swarm at `now` (unix seconds), with checked records."""

    now: float
    num_members: int
    """Number of DHT members that answered."""
    records: Sequence[PeerRecord] = ()
    num_invalid_records: int = 0
    run: ShownManifest | None = None
    problem: str = ""
    """Why this observation failed, as a sentence."""
    vouched: Collection[str] = ()
    """Peers that signed commits list."""
    work: Mapping[str, int] = field(default_factory=dict)
    """Recent work of each peer in signed commits, in any unit."""
    withdrawn: Collection[str] = ()
    """Peers whose owner has withdrawn their name."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A peer: its newest record with cleaned text, and when the record was received."""

    record: PeerRecord
    condition: Condition
    first_heard_at: float
    heard_at: float
    """When its newest record was first received."""
    same_manifest: bool
    """Whether the peer follows the known manifest; others are listed but never counted."""
    is_vouched: bool = False
    """Whether signed commits list the peer."""
    work: int = 0
    """See `Look.work`."""
    contributor_id: str = ""
    """The contributor in its record; empty: none."""


def merge_peers(old: tuple[PeerRow, ...], look: Look, run: ShownManifest | None) -> tuple[tuple[PeerRow, ...], int]:
    newest: dict[PeerId, PeerRecord] = {}
    for record in look.records:
        if record.peer_id not in newest or _order(record) > _order(newest[record.peer_id]):
            newest[record.peer_id] = record
    merged: dict[PeerId, PeerRow] = {}
    for row in old:
        record = newest.pop(row.record.peer_id, row.record)
        heard_at = row.heard_at
        if _order(record) <= _order(row.record):
            record = row.record
        else:
            record, heard_at = _stripped(record), look.now
        merged[record.peer_id] = _row(record, row.first_heard_at, heard_at, look, run, row.condition)
    # Newcomers take free rows, then those of the peers that left longest ago. A present peer keeps its row, unless a
    # peer in commits takes the row of the newest peer without commits.
    gone = sorted((row for row in merged.values() if row.condition != "here"), key=lambda row: -row.heard_at)
    strangers = [row for row in merged.values() if row.condition == "here" and row.record.peer_id not in look.vouched]
    strangers.sort(key=lambda row: row.first_heard_at)
    num_unlisted = 0
    for record in sorted(newest.values(), key=lambda record: (record.peer_id not in look.vouched, record.peer_id)):
        if len(merged) >= MAX_PEERS:
            if gone:
                del merged[gone.pop().record.peer_id]
            elif strangers and record.peer_id in look.vouched:
                del merged[strangers.pop().record.peer_id]
                num_unlisted += 1
            else:
                num_unlisted += 1
                continue
        merged[record.peer_id] = _row(_stripped(record), look.now, look.now, look, run)
    rows = [
        replace(row, record=replace(row.record, name="")) if row.record.peer_id in look.withdrawn else row
        for row in merged.values()
    ]
    return tuple(rows), num_unlisted


def _row(
    record: PeerRecord,
    first_heard_at: float,
    heard_at: float,
    look: Look,
    run: ShownManifest | None,
    before: Condition = "here",
) -> PeerRow:
    condition: Condition = "here"
    patience = MISSED_ANNOUNCEMENTS * (run.announce_seconds if run is not None else ANNOUNCE_SECONDS)
    is_late = look.now - heard_at > patience + record.longer_seconds
    if record.state == "left":
        condition = "left"
    elif record.expires_at <= look.now:
        # The last peer that leaves has no one to spread its last record.
        condition = "left" if record.state == "leaving" else "silent"
    elif is_late:
        # A failed observation shows nothing about peers.
        condition = before if look.problem else "left" if record.state == "leaving" else "late"
    same_manifest = run is None or record.manifest_hash == run.manifest_hash
    return PeerRow(
        record,
        condition,
        first_heard_at,
        heard_at,
        same_manifest,
        record.peer_id in look.vouched,
        look.work.get(record.peer_id, 0),
        contributor_id_of(record),
    )


def _order(record: PeerRecord) -> tuple[float, int]:
    return record.expires_at, record.sequence


def _stripped(record: PeerRecord) -> PeerRecord:
    return replace(
        record,
        name=label_text(record.name, MAX_LABEL_LENGTH),
        device=label_text(record.device, MAX_LABEL_LENGTH),
        software=label_text(record.software, MAX_SOFTWARE_LENGTH),
    )
